"""Values with schemas of a registry, as users give them to a source or a sink: type, registry, names of subjects.

Rule: it is the same for every topic; what it is for one is a codec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from kafka_eos.abc.codec import Part
from kafka_eos.codecs.registry.header_ids import HeaderCodec, IdIn, naming
from kafka_eos.codecs.registry.registry_client import Registry
from kafka_eos.codecs.registry.wire_format import Language, RegistryCodec
from kafka_eos.core.errors import ConfigError

T = TypeVar("T")

Subject: TypeAlias = "Literal['topic', 'record', 'topic-record'] | Callable[[str, Part, str], str]"
"""How the subject of a topic's schema is called. A function gets the topic, the part, and the name of the record."""
_TOPIC: Final = "\0"
"""Stands for any topic: no name has such a character."""


@dataclass(frozen=True, slots=True)
class RegistryFormat(Generic[T]):
    """Values of one type with schemas of a registry, in any topic: for ``KafkaSource`` and ``KafkaSink``.

    Raises ConfigError for a ``subject`` or ``id_in`` that is none, and for one that does not go with the language.
    """

    language: Language[T]
    registry: Registry
    subject: Subject
    id_in: IdIn
    auto_register: bool

    def __post_init__(self) -> None:
        if self.subject not in ("topic", "record", "topic-record") and not callable(self.subject):
            raise ConfigError(f'subject={self.subject!r}: use "topic", "record", "topic-record" or a function.')
        if self.id_in != "prefix":
            naming(self.id_in, self.language, "value")

    def for_topic(self, topic: str, part: Part) -> RegistryCodec[T]:
        subject = self._subject(topic, part)
        if self.id_in == "prefix":
            return RegistryCodec(self.language, self.registry, subject, self.auto_register)
        named = naming(self.id_in, self.language, part)
        return HeaderCodec(self.language, self.registry, subject, self.auto_register, named)

    def names_the_topic(self, part: Part) -> bool:
        """Has each topic a subject of its own?"""
        return _TOPIC in self._subject(_TOPIC, part)

    def topics(self, part: Part) -> list[str]:
        """The topics whose subjects the registry has, if they have such. Raises what asking it raises."""
        before, _, after = self._subject(_TOPIC, part).partition(_TOPIC)
        return [
            subject[len(before) : len(subject) - len(after)]
            for subject in self.registry.subjects()
            if subject.startswith(before) and subject.endswith(after) and len(subject) > len(before) + len(after)
        ]

    def _subject(self, topic: str, part: Part) -> str:
        name = self.language.record
        match self.subject:
            case "topic":
                return f"{topic}-{part}"
            case "record":
                return name
            case "topic-record":
                return f"{topic}-{name}"
            case _:
                return self.subject(topic, part, name)
