"""Samples of records, against a log at the wire: where each partition begins, what is read of it and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kafka_eos.abc.auditable import SampleStart
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.source.record_sample import read_newest, sample_records
from kafka_eos.core.errors import ConfigError
from tests.kafka_log import FETCH, Log
from tests.scripted_broker import ScriptedBroker

SECOND = 1_000


@pytest.fixture
def log() -> Log:
    """Three partitions: records 0 to 5 in turn in the first two, one a second; the third is empty."""
    log = Log(3)
    for n in range(6):
        log.append(n % 2, b"%d" % n, timestamp=(1 + n) * SECOND, headers=[(b"n", b"%d" % n)])
    return log


@pytest.fixture
def broker(log: Log) -> Iterator[ScriptedBroker]:
    with log.served() as broker:
        yield broker


def cluster(broker: ScriptedBroker) -> Cluster:
    return Cluster(broker.address, {"fetch.wait.max.ms": 10})


def sampled(broker: ScriptedBroker, count: int, start: SampleStart) -> list[bytes | None]:
    return [raw.value for raw in sample_records(cluster(broker), lambda _: ["in"], count, start)]


@pytest.mark.parametrize(
    ("count", "start", "values"),
    [
        (100, "earliest", b"012345"),
        (3, "earliest", b"012"),
        (100, "newest", b"012345"),
        (5, "newest", b"2345"),
        (3, "newest", b"45"),
        (100, datetime.fromtimestamp(4, UTC), b"345"),
        (100, datetime.fromtimestamp(6, UTC), b"5"),
        (100, datetime.fromtimestamp(7, UTC), b""),
    ],
)
def test_a_sample_is_merged_by_time_from_where_each_partition_begins(
    broker: ScriptedBroker, count: int, start: SampleStart, values: bytes
) -> None:
    """Of the newest, each partition gives its share of the count, rounded up."""
    assert sampled(broker, count, start) == [bytes([each]) for each in values]


def test_each_record_of_a_sample_has_its_place_time_and_headers(broker: ScriptedBroker) -> None:
    found = sample_records(cluster(broker), lambda _: ["in"], 100, "earliest")

    assert [
        (raw.topic, raw.partition, raw.offset, raw.timestamp, raw.key, raw.value, raw.headers) for raw in found
    ] == [("in", n % 2, n // 2, (1 + n) * SECOND, None, b"%d" % n, (("n", b"%d" % n),)) for n in range(6)]


def test_records_of_a_partition_keep_their_order_whatever_their_times(log: Log, broker: ScriptedBroker) -> None:
    for n, time in enumerate((90, 10, 50)):
        log.append(2, b"late %d" % n, timestamp=time * SECOND)

    found = [value for value in sampled(broker, 100, "earliest") if value and value.startswith(b"late")]

    assert found == [b"late 0", b"late 1", b"late 2"]


def test_only_committed_records_are_read_and_the_rest_is_waited_for_by_nobody(log: Log, broker: ScriptedBroker) -> None:
    log.parts[0].stable = 2

    assert sampled(broker, 100, "earliest") == [b"0", b"1", b"2", b"3", b"5"]


def test_the_newest_records_of_a_topic_are_those_of_the_last_offsets_of_each_partition(
    log: Log, broker: ScriptedBroker
) -> None:
    found = list(read_newest(cluster(broker), "in", 2))

    assert sorted((raw.partition, raw.offset) for raw in found) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert len(list(read_newest(cluster(broker), "in", 100))) == 6
    log.append(0, None)  # the end of a transaction has an offset and is no record
    assert sorted((raw.partition, raw.offset) for raw in read_newest(cluster(broker), "in", 1)) == [(1, 2)]


def test_a_topic_that_is_missing_or_matches_nothing_is_named(broker: ScriptedBroker) -> None:
    with pytest.raises(ConfigError, match="no topic more, other on"):
        sample_records(cluster(broker), lambda _: ["in", "more", "other"], 5, "earliest")
    with pytest.raises(ConfigError, match="matches the source"):
        sample_records(cluster(broker), lambda _: [], 5, "earliest")
    with pytest.raises(ConfigError, match="no topic other on"):
        next(read_newest(cluster(broker), "other", 5))


def test_a_partition_that_cannot_be_read_is_an_error(log: Log, broker: ScriptedBroker) -> None:
    def refused(request: Any) -> Any:
        log.parts[0].refused = ErrorCode.topic_authorization_failed
        return log.answers[FETCH](request)

    broker.script(FETCH, refused)

    with pytest.raises(ConfigError, match="'in' cannot be read"):
        sample_records(cluster(broker), lambda _: ["in"], 100, "earliest")
