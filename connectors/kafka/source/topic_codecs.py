"""What reads the keys and values of a source: the same codec for all its topics, or one for each.

A type or a codec is the same for every topic. A format, as ``avro`` makes one, looks its schema up by the name of the
topic: each topic has a codec of its own, which is made when it is first asked for. Rule: a topic that comes later is
read as one that was there from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kafka_eos.abc.codec import Codec, Comparison, Described, Part, TopicFormat
from kafka_eos.codecs import topic_codec
from kafka_eos.codecs.registry.registry_format import RegistryFormat
from kafka_eos.codecs.registry.wire_format import RegistryCodec
from kafka_eos.connectors.kafka.source.decoding import Columns, record_decoder, value_decoder
from kafka_eos.connectors.kafka.source.subscription import Subscription

_ANY: Final = "<topic>"
"""Stands for the name of a topic, for people."""


class TopicCodecs:
    """``whole``: records have keys, too; else there are only values."""

    def __init__(self, topics: Subscription, value: Any, key: Any = None, *, whole: bool = False) -> None:
        self._topics = topics
        self._given: Mapping[Part, Any] = {"key": key, "value": value} if whole else {"value": value}
        self._by_topic = topics.several and any(_depends(tp, part) for part, tp in self._given.items())
        self._made: dict[str, Mapping[Part, Codec[Any]]] = {}
        self._columns: dict[str, Columns] = {}

    def of(self, topic: str) -> Mapping[Part, Codec[Any]]:
        """Of the keys, if they are read, and of the values of one topic."""
        topic = topic if self._by_topic else self._topics.text
        if topic not in self._made:
            self._made[topic] = {part: topic_codec(tp, topic, part) for part, tp in self._given.items()}
        return self._made[topic]

    @property
    def of_any(self) -> Mapping[Part, Codec[Any]]:
        """Of a topic that stands for all of them: types and formats are the same."""
        return self.of(_ANY)

    def columns(self, topic: str) -> Columns:
        """See ``decoding.Decoding``."""
        if topic not in self._columns:
            codecs = self.of(topic)
            key = codecs.get("key")
            self._columns[topic] = (
                value_decoder(codecs["value"]) if key is None else record_decoder(key, codecs["value"])
            )
        return self._columns[topic]

    def named(self) -> Mapping[str, Codec[Any] | Described]:
        """See ``abc.HasCodecs``."""
        found: dict[str, Codec[Any] | Described] = {}
        for part, tp in self._given.items():
            if not self._by_topic or not _depends(tp, part):
                found[part] = self.of_any[part]
            elif self._topics.pattern is None:
                found |= {f"{part} of {topic}": self.of(topic)[part] for topic in self._topics.names}
            else:
                found[f"{part} of each topic"] = self._of_each(tp, part)
        return found

    def _of_each(self, tp: Any, part: Part) -> Codec[Any] | Described:
        shown: Any = self.of_any[part]
        if not isinstance(tp, RegistryFormat):
            return shown  # type: ignore[no-any-return]

        def there() -> Mapping[str, RegistryCodec[Any]]:
            return {topic: tp.for_topic(topic, part) for topic in self._topics.chosen(tp.topics(part))}

        return EachTopic(shown, there)


class EachTopic:
    """The codecs of all topics that match a pattern, seen as one. The registry tells which there are, not a broker."""

    def __init__(self, shown: RegistryCodec[Any], there: Callable[[], Mapping[str, RegistryCodec[Any]]]) -> None:
        """``shown``: of a topic that stands for all. ``there``: those whose subjects the registry has, by topic."""
        self._shown, self._there = shown, there

    def describe(self) -> str:
        """See ``abc.Described``."""
        return self._shown.describe()

    def check(self) -> Sequence[str]:
        """See ``abc.Checked``; a source does not write."""
        return []

    def check_reading(self) -> Sequence[str]:
        return list(dict.fromkeys(notice for codec in self._there().values() for notice in codec.check_reading()))

    def compared(self, reading: bool) -> Comparison:
        """See ``abc.Comparable``."""
        found = {topic: codec.compared(reading) for topic, codec in sorted(self._there().items())}
        if not found:
            return Comparison(f"no subject is there that is called like {self._shown.subject}", is_there=False)
        return Comparison(
            "; ".join(each.beside for each in found.values()),
            [f"{topic}: {line}" for topic, each in found.items() for line in each.differences],
            [f"{topic}: {line}" for topic, each in found.items() for line in each.wrong],
        )


def _depends(tp: Any, part: Part) -> bool:
    """Is what reads these keys or values another codec for each topic?"""
    if isinstance(tp, RegistryFormat):
        return tp.names_the_topic(part)
    return isinstance(tp, TopicFormat) and not isinstance(tp, type)
