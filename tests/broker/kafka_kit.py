"""Contexts, batches and readers for the tests of the Kafka connector."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import CommitOutcome, CommitPermit, Committable, Committer
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import Writer
from kafka_eos.abc.source import Reader
from kafka_eos.connectors.kafka import KafkaSource, Record
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch, Origin, RawRecord
from tests.producers import in_order
from tests.waiting import PATIENCE, eventually


class Rows(Origin):
    """An origin of made-up input rows 0 … n-1 of partition 0."""

    source, topic = "numbers", "in"

    def __init__(self, count: int, first: int = 0) -> None:
        self.partitions: Sequence[int] = [0] * count
        self.offsets: Sequence[int] = range(first, first + count)

    def timestamps(self) -> Sequence[int]:
        return [1_700_000_000_000 + offset for offset in self.offsets]

    def raw(self, row: int) -> RawRecord:
        return RawRecord(self.topic, 0, self.offsets[row], self.timestamps()[row], None, b"raw", ())


def batch(*values: Any, first: int = 0) -> Batch[Any]:
    return Batch(list(values), range(len(values)), Rows(len(values), first))


def job(bootstrap: str, term: int = 1, name: str | None = None) -> JobContext:
    return JobContext(name or f"job-{uuid.uuid4().hex[:8]}", Term(term), {"bootstrap_servers": bootstrap})


def task(ctx: JobContext, operator: str = "out", services: Services | None = None) -> TaskContext:
    return TaskContext(ctx, 0, 1, operator, services or Services())


def epoch(number: int, term: int = 1) -> EpochId:
    return EpochId(Epoch(number), Term(term))


def commit(committer: Committer, committables: Sequence[Committable], at: EpochId) -> list[CommitOutcome]:
    return [committer.commit(CommitPermit(at), one) for one in committables]


def prepare(writer: Writer[Any], rows: Batch[Any], at: EpochId) -> Sequence[Committable]:
    writer.write(rows)
    return writer.seal(at)()


def show(source: KafkaSource[Any], ctx: JobContext, at: EpochId, positions: Positions) -> None:
    """Offsets for lag tools. The first of a cluster wait until it has made the topic for them."""
    Retrier(threading.Event(), print).retry("show offsets", lambda: source.notify_committed(ctx, at, positions))


def send(bootstrap: str, topic: str, *values: bytes | None, **options: Any) -> None:
    producer = in_order(bootstrap)
    for value in values:
        producer.produce(topic, value, **options)
    assert producer.flush(PATIENCE) == 0


def set_topic_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic that exists; returns when the broker goes by it."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(PATIENCE)

    def seen() -> bool:
        (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return bool(found.result(PATIENCE)[name].value == value)

    eventually(seen, f"{name} of {topic} is {value}")


def read(reader: Reader[Any], count: int) -> list[Any]:
    """Poll until ``count`` values are there; AssertionError if they do not come."""
    values: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count} values came"
        found = reader.poll(1000, 0.2)
        values += found.values if found is not None else []
    return values


def read_to(reader: Reader[Any], ends: Positions) -> list[Any]:
    """Poll until ``ends`` are reached."""
    values: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while not reader.has_reached(ends):
        assert time.monotonic() < deadline, f"{ends} not reached from {reader.positions()}"
        found = reader.poll(1000, 0.1)
        values += found.values if found is not None else []
    return values


def visible(bootstrap: str, topic: str) -> list[Record[str, Any]]:
    """Every record that a read_committed reader sees now, by the source under test."""
    source = KafkaSource.records(topic, key=str, value=bytes)
    ctx = job(bootstrap)
    reader = source.reader(task(ctx, "check"), source.discover(ctx, None))
    try:
        return read_to(reader, source.get_end_positions(ctx))
    finally:
        reader.close()


def values_of(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in visible(bootstrap, topic)]
