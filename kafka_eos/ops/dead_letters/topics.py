"""The dead-letter topics of a pipeline's source, and the topics of its records.

Rule: both are derived from the pipeline, so the user names neither topics nor clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter
from kafka_eos.connectors.kafka.sink.kafka_sink import KafkaSink
from kafka_eos.connectors.kafka.source.kafka_source import KafkaSource
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.records import Record
from kafka_eos.plan import Plan


@dataclass(frozen=True, slots=True)
class DeadLetterTopics:
    """The topic that a source reads, and its dead letter topic."""

    source: str
    """Its name in the pipeline."""
    topic: str
    """The topic of the selected records, of those that the source reads."""
    reads: KafkaSource[object]
    dead_letter_sink: KafkaSink[object]
    operators: frozenset[str]
    """The operators of the pipeline."""

    def create_source(self) -> KafkaSource[Record[bytes, bytes]]:
        """Create a source that reads the dead letter topic."""
        return KafkaSource.records(self.dead_letter_sink.topic, **self.dead_letter_sink.connection)

    def create_replay_sink(self, to: str | None) -> KafkaSink[DeadLetter]:
        """Create the sink that writes records back."""
        topic = to or self.topic
        # A replay that was killed and is not restarted hides records of other producers until this timeout.
        return KafkaSink.originals(topic, in_place=to is None, transaction_timeout=300, **self.reads.connection)


def find_dead_letter_topics(plan: Plan, source: str | None, topic: str | None = None) -> DeadLetterTopics:
    """Find the topics of a source's dead letters. Raises ConfigError.

    ``topic`` is one that the source reads, and may be left out if it reads no other. ConfigError if the source has no
    dead letters, or they are not in Kafka, or it does not read the topic.
    """
    known = {node.name: (node.source, letters.sink) for node in plan.sources
             if (letters := plan.find_dead_letter_sink(node.name)) is not None}  # fmt: skip
    names = ", ".join(map(repr, sorted(known))) or "none"
    if not known:
        raise ConfigError(
            f'no source of {plan.name!r} writes dead letters: set on_error=dead_letter("topic") on the source'
        )
    if source is not None and source not in known:
        raise ConfigError(
            f"{plan.name!r} has no source {source!r} with dead letters; sources with dead letters: {names}"
        )
    if source is None and len(known) > 1:
        raise ConfigError(
            f"several sources of {plan.name!r} have dead letters: choose one with --source {' | '.join(sorted(known))}"
        )
    name = source or next(iter(known))
    reads, refused = known[name]
    if not isinstance(reads, KafkaSource) or not isinstance(refused, KafkaSink):
        raise ConfigError(
            f"source {name!r} or its dead letters are not in Kafka: this command supports only Kafka topics"
        )
    if topic is not None and not reads.may_read(topic):
        raise ConfigError(f"source {name!r} reads {reads.topic}, not the topic {topic!r}")
    meant = topic or reads.only_topic
    if meant is None:
        raise ConfigError(
            f"source {name!r} reads several topics ({reads.topic}), but this command works on one at a time: choose "
            "one with --topic NAME"
        )
    return DeadLetterTopics(name, meant, reads, refused, frozenset(node.name for node in plan.nodes))
