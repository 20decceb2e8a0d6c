"""The codecs of a source's keys and values: the same for all its topics, or one per topic.

A type or a codec is the same for every topic. A format, such as ``avro``, looks up its schema by the topic's name: each
topic has a codec of its own, created on first use. Rule: a topic that is created later is read in the same way as one
that existed from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kafka_eos.abc.codec import Codec, RecordPart, SchemaChecks, SchemaComparison, TopicFormat
from kafka_eos.codecs import topic_codec
from kafka_eos.codecs.registry.registry_format import RegistryFormat
from kafka_eos.codecs.registry.wire_format import RegistryCodec
from kafka_eos.connectors.kafka.source.message_decoder import Columns, record_decoder, value_decoder
from kafka_eos.connectors.kafka.source.subscription import Subscription

_ANY: Final = "<topic>"
"""A placeholder for a topic's name, for messages."""


class TopicCodecs:
    """The codecs by topic. ``whole``: records also have keys; otherwise only values are read."""

    def __init__(self, topics: Subscription, value: Any, key: Any = None, *, whole: bool = False) -> None:
        self._topics = topics
        self._given: Mapping[RecordPart, Any] = {"key": key, "value": value} if whole else {"value": value}
        self._by_topic = topics.several and any(_depends(tp, part) for part, tp in self._given.items())
        self._made: dict[str, Mapping[RecordPart, Codec[Any]]] = {}
        self._columns: dict[str, Columns] = {}

    def of(self, topic: str) -> Mapping[RecordPart, Codec[Any]]:
        """Return the codecs of one topic's values and, if they are read, keys."""
        topic = topic if self._by_topic else self._topics.text
        if topic not in self._made:
            self._made[topic] = {part: topic_codec(tp, topic, part) for part, tp in self._given.items()}
        return self._made[topic]

    @property
    def of_any(self) -> Mapping[RecordPart, Codec[Any]]:
        """Return codecs that represent those of all topics: types and formats are the same."""
        return self.of(_ANY)

    def columns(self, topic: str) -> Columns:
        """Return the decoding of a topic. See ``message_decoder.MessageDecoder``."""
        if topic not in self._columns:
            codecs = self.of(topic)
            key = codecs.get("key")
            self._columns[topic] = (
                value_decoder(codecs["value"]) if key is None else record_decoder(key, codecs["value"])
            )
        return self._columns[topic]

    def named(self) -> Mapping[str, SchemaChecks]:
        """Return the codecs by name."""
        found: dict[str, SchemaChecks] = {}
        for part, tp in self._given.items():
            if not self._by_topic or not _depends(tp, part):
                found[part] = self.of_any[part]
            elif self._topics.pattern is None:
                found |= {f"{part} of {topic}": self.of(topic)[part] for topic in self._topics.names}
            else:
                found[f"{part} of each topic"] = self._of_each(tp, part)
        return found

    def _of_each(self, tp: Any, part: RecordPart) -> SchemaChecks:
        shown = self.of_any[part]
        if not (isinstance(tp, RegistryFormat) and isinstance(shown, RegistryCodec)):
            return shown

        def there() -> Mapping[str, RegistryCodec[Any]]:
            return {topic: tp.for_topic(topic, part) for topic in self._topics.select_topics(tp.topics(part))}

        return PatternCodecs(shown, there)


class PatternCodecs(SchemaChecks):
    """The codecs of all topics that match a pattern, presented as one.

    The topics come from the registry, not from a broker.
    """

    def __init__(self, shown: RegistryCodec[Any], there: Callable[[], Mapping[str, RegistryCodec[Any]]]) -> None:
        """Create the codecs of several topics.

        ``shown``: a codec that represents all. ``there``: returns those with subjects in the registry, by topic.
        """
        self._shown, self._there = shown, there

    def describe(self) -> str:
        """Return the description of the format."""
        return self._shown.describe()

    def check_reading(self) -> Sequence[str]:
        return list(dict.fromkeys(notice for codec in self._there().values() for notice in codec.check_reading()))

    def compare_schema(self, reading: bool) -> SchemaComparison:
        """Return the comparison with the registry's schemas."""
        found = {topic: codec.compare_schema(reading) for topic, codec in sorted(self._there().items())}
        if not found:
            return SchemaComparison(f"no subject is named {self._shown.subject}", is_there=False)
        return SchemaComparison(
            "; ".join(each.counterpart for each in found.values()),
            [f"{topic}: {line}" for topic, each in found.items() for line in each.differences],
            [f"{topic}: {line}" for topic, each in found.items() for line in each.problems],
        )


def _depends(tp: Any, part: RecordPart) -> bool:
    """Return whether these keys or values need another codec per topic."""
    if isinstance(tp, RegistryFormat):
        return tp.names_the_topic(part)
    return isinstance(tp, TopicFormat)
