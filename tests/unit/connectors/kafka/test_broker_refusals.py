"""A record that a broker has named is rejected later by its key and value; no other record is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors.kafka.sink.broker_refusals import RefusedRecords, find_refused_before
from kafka_eos.connectors.kafka.sink.cluster_limits import CurrentLimits
from kafka_eos.connectors.kafka.sink.record_encoders import ProducerColumns
from kafka_eos.connectors.kafka.sink.record_sizes import TopicLimits
from kafka_eos.connectors.kafka.sink.writer import AtLeastOnceWriter
from kafka_eos.core.errors import RestartFromCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin

NAMED, BESIDE, OTHER = KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD, KafkaError.INVALID_TIMESTAMP


@dataclass
class Report:
    """A delivery report, which the client builds in C."""

    of: str
    content: tuple[Any, Any]
    number: int = 0

    def topic(self) -> str:
        return self.of

    def partition(self) -> int:
        return self.number

    def key(self) -> Any:
        return self.content[0]

    def value(self) -> Any:
        return self.content[1]


HERE = "here:9092"


def record(topic: str, *reports: tuple[int, Any, Any], partition: int = 0, cluster: str = HERE) -> None:
    """Record the reports of a producer: codes, keys and values."""
    records = RefusedRecords(cluster)
    for code, key, value in reports:
        report: Any = Report(topic, (key, value), partition)
        records.record(KafkaError(code), report)


def find(topic: str, keys: Any, *values: Any) -> list[int]:
    return list(find_refused_before(HERE, topic, ProducerColumns(values, keys, repeat(0), None))[0])


def find_alone(topic: str, keys: Any, *values: Any) -> list[int]:
    return sorted(find_refused_before(HERE, topic, ProducerColumns(values, keys, repeat(0), None))[1])


def test_a_record_that_the_broker_named_is_found_by_its_key_and_value() -> None:
    record("named", (BESIDE, b"a", b"1"), (NAMED, None, b"2"), (BESIDE, b"a", b"1"), (NAMED, b"c", None))

    assert find("named", [b"a", None, "c", b"c", None], b"1", b"2", None, b"", b"3") == [1, 2]
    assert find("named", repeat(None), b"1", b"2") == [1]
    assert find("another", repeat(None), b"1", b"2") == []


def test_the_only_record_of_a_batch_is_named_and_of_several_each_is_sent_alone() -> None:
    record("alone", (NAMED, None, b"1"))
    record("alone", (NAMED, None, b"2"), partition=1)
    record("together", (NAMED, None, b"1"), (NAMED, None, b"2"))

    assert find("alone", repeat(None), b"1", b"2", b"3") == [0, 1]
    assert find_alone("alone", repeat(None), b"1", b"2", b"3") == []
    assert find("together", repeat(None), b"1", b"2") == []
    assert find_alone("together", repeat(None), b"1", b"3", b"2") == [0, 2]

    record("together", (NAMED, None, b"2"))

    assert find("together", repeat(None), b"1", b"2") == [1]
    assert find_alone("together", repeat(None), b"1", b"2") == [0]


def test_a_batch_that_is_reported_alike_is_not_named_by_another_one_of_its_partition() -> None:
    record("before", (NAMED, None, b"1"), (NAMED, None, b"2"), (BESIDE, None, b"3"), (NAMED, None, b"4"))
    record("behind", (NAMED, None, b"4"), (BESIDE, None, b"3"), (NAMED, None, b"1"), (NAMED, None, b"2"))

    for topic in ("before", "behind"):
        assert find(topic, repeat(None), b"1", b"2", b"3", b"4") == [3]
        assert find_alone(topic, repeat(None), b"1", b"2", b"3", b"4") == [0, 1]


def test_a_record_that_one_cluster_refused_is_sent_to_the_topic_of_that_name_on_another() -> None:
    record("mirrored", (NAMED, None, b"1"), cluster="there:9092")

    assert find("mirrored", repeat(None), b"1") == []


def test_a_record_is_sent_again_after_an_hour_because_the_rule_may_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record("repaired", (NAMED, None, b"1"))
    now = time.monotonic()

    monkeypatch.setattr(time, "monotonic", lambda: now + 3000)
    assert find("repaired", repeat(None), b"1") == [0]
    monkeypatch.setattr(time, "monotonic", lambda: now + 3700)
    assert find("repaired", repeat(None), b"1") == []


def test_another_error_names_no_record() -> None:
    record("late", (OTHER, None, b"1"))

    assert find("late", repeat(None), b"1") == []


def test_records_that_are_not_delivered_for_one_reason_name_it_once() -> None:
    job = JobContext("job", Term(1), {})
    limits = CurrentLimits(lambda: TopicLimits("out", None, 1_000_000, 1), "127.0.0.1:1")
    batch = Batch(["a", "b", "c"], range(3), ListOrigin("in", "in", 0, 0, "abc"))
    writer: AtLeastOnceWriter[str] = AtLeastOnceWriter(
        TaskContext(job, 0, 1, "out"),
        limits,
        lambda batch: ProducerColumns([value.encode() for value in batch.values], repeat(None), repeat(0), None),
        {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 50, "log_level": 0},
        5.0,
        provenance=False,
    )
    writer.write(batch)

    with pytest.raises(RestartFromCheckpoint) as told:
        writer.seal(EpochId(Epoch(1), Term(1)))

    assert str(told.value).count("Local: Message timed out") == 1
