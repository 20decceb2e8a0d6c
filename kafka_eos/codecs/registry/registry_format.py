"""Registry formats for sources and sinks: type, registry, and naming of subjects.

Rule: a format is the same for every topic; for one topic it becomes a codec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from kafka_eos.abc.codec import RecordPart, TopicFormat
from kafka_eos.codecs.registry.header_ids import HeaderIdCodec, IdIn, select_id_headers
from kafka_eos.codecs.registry.registry_client import Registry
from kafka_eos.codecs.registry.wire_format import RegistryCodec, SchemaLanguage
from kafka_eos.core.errors import ConfigError

T = TypeVar("T")

Subject: TypeAlias = "Literal['topic', 'record', 'topic-record'] | Callable[[str, RecordPart, str], str]"
"""The naming of a topic's subject. A function receives the topic, the part, and the name of the record."""
_TOPIC: Final = "\0"
"""Stands for any topic: no name contains this character."""


@dataclass(frozen=True, slots=True)
class RegistryFormat(TopicFormat[T]):
    """Values of one type with schemas of a registry, in any topic: for ``KafkaSource`` and ``KafkaSink``.

    Raises ConfigError for an invalid ``subject`` or ``id_in``, and for one that the schema language does not support.
    """

    language: SchemaLanguage[T]
    registry: Registry
    subject: Subject
    id_in: IdIn
    auto_register: bool

    def __post_init__(self) -> None:
        if self.subject not in ("topic", "record", "topic-record") and not callable(self.subject):
            raise ConfigError(f'subject={self.subject!r}: use "topic", "record", "topic-record" or a function.')
        if self.id_in != "prefix":
            select_id_headers(self.id_in, self.language, "value")

    def for_topic(self, topic: str, part: RecordPart) -> RegistryCodec[T]:
        subject = self._subject(topic, part)
        if self.id_in == "prefix":
            return RegistryCodec(self.language, self.registry, subject, self.auto_register)
        named = select_id_headers(self.id_in, self.language, part)
        return HeaderIdCodec(self.language, self.registry, subject, self.auto_register, named)

    def names_the_topic(self, part: RecordPart) -> bool:
        """Return whether each topic has its own subject."""
        return _TOPIC in self._subject(_TOPIC, part)

    def topics(self, part: RecordPart) -> list[str]:
        """Return the topics whose subjects the registry has, if subjects depend on topics.

        Raises the registry's errors.
        """
        before, _, after = self._subject(_TOPIC, part).partition(_TOPIC)
        return [
            subject[len(before) : len(subject) - len(after)]
            for subject in self.registry.subjects()
            if subject.startswith(before) and subject.endswith(after) and len(subject) > len(before) + len(after)
        ]

    def _subject(self, topic: str, part: RecordPart) -> str:
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
