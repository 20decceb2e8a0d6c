"""Where the input of a job ends, and how far the job shows that it has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaException, TopicPartition

_ANSWER_SECONDS = 10.0
"""For one request: whoever asks in a loop has a deadline of its own."""


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Where each partition ends. Raises KafkaException if the broker does not say."""
    with _client(bootstrap, "ends") as consumer:
        return {
            each.partition: consumer.get_watermark_offsets(each, _ANSWER_SECONDS)[1]
            for each in _partitions(consumer, topic)
        }


def shown(bootstrap: str, topic: str, group: str) -> dict[int, int]:
    """The offsets that a group shows, one committed epoch of its job after another; 0 before the first.

    Raises KafkaException if the broker does not say.
    """
    with _client(bootstrap, group) as consumer:
        found = consumer.committed(_partitions(consumer, topic), _ANSWER_SECONDS)
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return {each.partition: max(each.offset, 0) for each in found}


def _partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    found = consumer.list_topics(topic, _ANSWER_SECONDS).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return [TopicPartition(topic, partition) for partition in found.partitions]


@contextmanager
def _client(bootstrap: str, group: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()
