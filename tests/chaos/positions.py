"""Where the input of a job ends, and how far the job shows that it has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaException, TopicPartition

_ANSWER_SECONDS = 10.0
"""For one request: whoever asks in a loop has a deadline of its own."""


class Positions:
    """One client that may ask often: to make a client takes longer than an answer."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer, self._topic = consumer, topic

    def ends(self) -> dict[int, int]:
        """Where each partition ends. Raises KafkaException if the broker does not say."""
        return {
            each.partition: self._consumer.get_watermark_offsets(each, _ANSWER_SECONDS)[1]
            for each in self._partitions()
        }

    def shown(self) -> dict[int, int]:
        """The offsets that the group shows, one committed epoch of its job after another; 0 before the first.

        Raises KafkaException if the broker does not say.
        """
        found = self._consumer.committed(self._partitions(), _ANSWER_SECONDS)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return {each.partition: max(each.offset, 0) for each in found}

    def _partitions(self) -> list[TopicPartition]:
        found = self._consumer.list_topics(self._topic, _ANSWER_SECONDS).topics[self._topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return [TopicPartition(self._topic, partition) for partition in found.partitions]


@contextmanager
def following(bootstrap: str, topic: str, group: str) -> Iterator[Positions]:
    """Positions of a topic, and of the group of a job that reads it. The broker may be away meanwhile."""
    settings = {"group.id": group, "enable.auto.commit": False, "reconnect.backoff.max.ms": 200}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        yield Positions(consumer, topic)
    finally:
        consumer.close()


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """As ``Positions.ends``, once."""
    with following(bootstrap, topic, "ends") as positions:
        return positions.ends()


def shown(bootstrap: str, topic: str, group: str) -> dict[int, int]:
    """As ``Positions.shown``, once."""
    with following(bootstrap, topic, group) as positions:
        return positions.shown()
