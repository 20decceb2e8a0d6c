"""Timestamps at or before 0 are written and read as they are; only a record without one has none."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.core.records import Batch, RawOrigin, RawRecord, Record
from kafka_eos.runtime.operators.timer_firing import FiringOrigin
from tests.kafka_log import Log
from tests.unit.connectors.kafka.test_record_headers import read

TIMES = [-(10**13), -2, -1, 0, 1, 10**13]
WRITABLE = [-(10**13), -2, -2, 1, 1, 10**13]
NOW = -1


def written(sink: KafkaSink[Any], rows: Batch[Any]) -> list[int]:
    def refuse(rows: Batch[Any], index: int, operator: str, error: Exception) -> None:
        raise error

    return [record.timestamp for record in sink.written(rows, "out", refuse)[1]]


def of_records(*times: int) -> Batch[Any]:
    raws = [RawRecord("in", 0, offset, time, None, b"x", ()) for offset, time in enumerate(times)]
    return Batch([b"x"] * len(raws), range(len(raws)), RawOrigin("in", raws))


def test_the_time_of_an_input_record_is_written() -> None:
    """-1 is none: then it is the time of writing."""
    expected = [-(10**13), -2, NOW, 1, 1, 10**13]

    assert written(KafkaSink("out", value=bytes), of_records(*TIMES)) == expected


def test_the_time_of_a_window_or_timer_is_written() -> None:
    origin = FiringOrigin("windows", "timers", [0] * len(TIMES), TIMES)
    rows = Batch([b"x"] * len(TIMES), range(len(TIMES)), origin)

    assert written(KafkaSink("out", value=bytes), rows) == WRITABLE


@pytest.mark.parametrize(("time", "expected"), zip(TIMES, WRITABLE, strict=True))
def test_the_time_that_a_function_or_a_record_gives_is_written(time: int, expected: int) -> None:
    rows = of_records(7)
    assert written(KafkaSink("out", value=bytes, timestamp=lambda value: time), rows) == [expected]
    rows.values = [Record(None, b"x", (), time)]
    assert written(KafkaSink.records("out", key=bytes, value=bytes), rows) == [expected]
    rows.values = [Record(None, b"x")]
    assert written(KafkaSink.records("out", key=bytes, value=bytes, timestamp=lambda value: time), rows) == [expected]
    assert written(KafkaSink.records("out", key=bytes, value=bytes, timestamp=None), rows) == [NOW]


def test_a_record_without_a_timestamp_has_none(record_client: str) -> None:
    log = Log()
    for time in (-1, 0, -5_000):
        log.append(0, b"x", timestamp=time)
    with log.served() as broker:
        records, _ = read(KafkaSource.records("in", value=bytes), broker.address)

    assert [record.timestamp for record in records] == [None, 0, -5_000]


def test_a_replay_reads_the_same_timestamps() -> None:
    raws = [RawRecord("in", 0, offset, time, None, b"x", ()) for offset, time in enumerate((-1, 0, -5_000))]
    batch = KafkaSource.records("in", value=bytes).decode("in", raws, lambda raw, error: None)

    assert [record.timestamp for record in batch.values] == [None, 0, -5_000]
    assert list(batch.origin.timestamps()) == [-1, 0, -5_000]
