"""The benchmark's own dealings with the broker: topics, the preloaded input, and what is visible of an output."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from kafka_eos.connectors.kafka.client.log_bridge import SILENT, SPOKEN

PARTITIONS = 4
_TIMEOUT, _NAP = 30.0, 0.1
_LATER = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
"""What a broker answers while it makes, or loads, the partition that has a group."""


class BrokerClient:
    """One broker. Errors of the client are not caught: a benchmark that cannot reach its broker ends."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **SILENT})

    def create(self, topic: str) -> None:
        """Returns when all partitions of the new topic are served. It keeps records of long ago: results of windows."""
        new = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})
        for future in self._admin.create_topics([new]).values():
            future.result(_TIMEOUT)
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                self.visible(topic)
                return
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
                # A client that once found no leaders may say so for ever: it answers from memory.
                self._admin = AdminClient({"bootstrap.servers": self.bootstrap, **SILENT})

    def delete(self, topic: str) -> None:
        for future in self._admin.delete_topics([topic]).values():
            future.result(_TIMEOUT)

    def load(self, topic: str, records: Iterable[tuple[str, bytes]]) -> None:
        """Write (key, value) records and wait until all are acknowledged. Keys lie where Java's clients put them."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                **SPOKEN,
                "linger.ms": 50,
                "batch.size": 262_144,
                "compression.type": "lz4",
                "partitioner": "murmur2_random",
                "enable.idempotence": True,  # else what is sent again comes behind what was sent after it
            }
        )
        for key, value in records:
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        if left := producer.flush(120):
            raise RuntimeError(f"{left} records of {topic} were not acknowledged")

    def visible(self, topic: str) -> int:
        """Offsets that a read_committed reader can reach, over all partitions. Commit markers are counted too."""
        spec = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(PARTITIONS)}
        asked = self._admin.list_offsets(spec, isolation_level=IsolationLevel.READ_COMMITTED)
        return sum(future.result(_TIMEOUT).offset for future in asked.values())

    def committed(self, topic: str) -> Iterator[bytes]:
        """The value of every committed record, each partition in order."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                **SPOKEN,
                "group.id": "benchmark-check",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.queue.backoff.ms": 5,
            }
        )
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        ended = 0
        while ended < PARTITIONS:
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    yield message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended += 1
                else:
                    raise RuntimeError(str(error))
        consumer.close()


class GroupProgress:
    """How much of some topics a consumer group has read, by its committed offsets."""

    def __init__(self, bootstrap: str, group: str, topics: Iterable[str]) -> None:
        # Not by AdminClient: it was seen to crash on the answer of a cluster that has no groups yet.
        self._asking = Consumer(
            {
                "bootstrap.servers": bootstrap,
                **SPOKEN,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",  # else it waits for offsets that are about to be committed
            }
        )
        self._places = [TopicPartition(topic, p) for topic in topics for p in range(PARTITIONS)]

    def records(self) -> int:
        """0 for a group that is not there yet."""
        while True:
            try:
                found = self._asking.committed(self._places, _TIMEOUT)
            except KafkaException as error:
                if error.args[0].code() not in _LATER:
                    raise
                time.sleep(_NAP)
            else:
                return sum(max(0, place.offset) for place in found)

    def close(self) -> None:
        self._asking.close()
