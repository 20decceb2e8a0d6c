"""A record that a broker has named is rejected by content afterwards; no other one is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import Any

from confluent_kafka import KafkaError

from kafka_eos.connectors.kafka.sink.broker_refusals import RefusedRecords, find_refused_before
from kafka_eos.connectors.kafka.sink.record_encoders import ProducerColumns

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


def record(topic: str, *reports: tuple[int, Any, Any], partition: int = 0) -> None:
    """Record the reports of a producer: codes, keys and values."""
    records = RefusedRecords()
    for code, key, value in reports:
        report: Any = Report(topic, (key, value), partition)
        records.record(KafkaError(code), report)


def find(topic: str, keys: Any, *values: Any) -> list[int]:
    return list(find_refused_before(topic, ProducerColumns(values, keys, repeat(0), None))[0])


def find_alone(topic: str, keys: Any, *values: Any) -> list[int]:
    return sorted(find_refused_before(topic, ProducerColumns(values, keys, repeat(0), None))[1])


def test_a_record_that_the_broker_named_is_found_by_its_key_and_value() -> None:
    record("named", (BESIDE, b"a", b"1"), (NAMED, None, b"2"), (NAMED, b"c", None))

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


def test_another_error_names_no_record() -> None:
    record("late", (OTHER, None, b"1"))

    assert find("late", repeat(None), b"1") == []
