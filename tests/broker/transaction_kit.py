"""One prepared transaction at a time, and what can happen to it; for the tests of coordinator answers."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.transaction_status import KafkaCommittable, TransactionDescription
from kafka_eos.connectors.kafka.rpc.twin_names import hash_code
from tests.waiting import PATIENCE, eventually


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE)


def coordinator_partition(name: str, partitions: int) -> int:
    """The partition of a coordinator's log for a transactional id or a group, as Kafka chooses it."""
    code = hash_code(name)
    return min(code, 2**32 - code) % partitions  # the absolute value of Java's signed number


@dataclass
class Writer:
    """A transactional producer and its identity, as its own statistics tell it."""

    producer: Producer
    transactional_id: str
    bootstrap: str
    timeout_ms: int
    identity: tuple[int, int] = (-1, -1)

    def commit_name(self, topic: str, version: int, marker: str = "", group: str = "") -> KafkaCommittable:
        with KafkaRequests(Cluster(self.bootstrap)) as rpc:
            cluster_id, facts = rpc.cluster_id(), rpc.topic(topic)
        assert facts is not None
        return KafkaCommittable(
            transactional_id=self.transactional_id,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            end_txn_version=version,
            uuid=marker,
            marker_group=group,
            marker_topic=topic,
            marker_topic_id=facts.topic_id,
            marker_partition=0,
            prepared_at=int(time.time() * 1000),
            timeout_ms=self.timeout_ms,
            term=1,
            cluster_id=cluster_id,
        )


def new_writer(bootstrap: str, transactional_id: str | None = None, timeout_ms: int = 60_000, **config: Any) -> Writer:
    """A producer after ``init_transactions``, with a known identity."""
    seen: list[tuple[int, int]] = []

    def learn(text: str) -> None:
        eos = json.loads(text)["eos"]
        if eos["producer_id"] >= 0:
            seen.append((eos["producer_id"], eos["producer_epoch"]))

    name = transactional_id or f"t-{uuid.uuid4().hex[:10]}.1.0.0"
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": min(timeout_ms, 30_000),
            "socket.timeout.ms": min(timeout_ms, 30_000),
            "metadata.recovery.strategy": "none",
            "statistics.interval.ms": 50,
            "stats_cb": learn,
            "linger.ms": 0,
            "log_level": 0,
            **config,
        }
    )
    producer.init_transactions(PATIENCE)
    eventually(lambda: producer.poll(0.05) is not None and seen, "statistics")
    return Writer(producer, name, bootstrap, timeout_ms, seen[-1])


def write(writer: Writer, topic: str, *values: str) -> None:
    """Begin a transaction, write and flush: prepared, but for the marker."""
    writer.producer.begin_transaction()
    append(writer, topic, *values)


def append(writer: Writer, topic: str, *values: str) -> None:
    for value in values:
        writer.producer.produce(topic, value, "k")
    assert writer.producer.flush(PATIENCE) == 0


def mark(writer: Writer, topic: str, group: str) -> str:
    """Send the marker with the open transaction; returns its uuid."""
    marker = uuid.uuid4().hex
    consumer = Consumer({"bootstrap.servers": writer.bootstrap, "group.id": group})
    metadata = consumer.consumer_group_metadata()
    writer.producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1, marker)], metadata, PATIENCE)
    consumer.close()
    return marker


def prepared(bootstrap: str, topic: str, **options: Any) -> Writer:
    """A writer whose transaction is written and flushed, and not ended."""
    writer = new_writer(bootstrap, **options)
    write(writer, topic, "a", "b")
    return writer


def end(rpc: KafkaRequests, writer: Writer, version: int, *, commit: bool = True, epoch: int = 0) -> str:
    """The name of EndTxn's answer for the writer's transaction; ``epoch`` is added to its epoch."""
    pid, at = writer.identity
    return rpc.end(writer.transactional_id, pid, at + epoch, commit=commit, version=version)


def state(rpc: KafkaRequests, writer: Writer) -> TransactionDescription:
    found = rpc.describe(writer.transactional_id)
    assert found is not None
    return found


def settled(rpc: KafkaRequests, writer: Writer, wanted: str) -> TransactionDescription:
    """The description once its state is ``wanted``: markers follow an answer by milliseconds."""
    seen: TransactionDescription = eventually(
        lambda: (found := state(rpc, writer)).state == wanted and found, f"{writer.transactional_id} {wanted}"
    )
    return seen


def committed_values(bootstrap: str, topic: str) -> list[str]:
    """All values that a read_committed consumer sees up to the end of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex[:8]}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the broker says at once that there is no more
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < deadline, f"{topic} could not be read to its end"
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is not None:
            break
        values.append((message.value() or b"").decode())
    consumer.close()
    return values
