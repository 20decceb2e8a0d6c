"""The queue of kafka-eos-native: what of it no reader shows. Collected only where the module is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kafka_eos.connectors.kafka.client.librdkafka import TopicPartition
from kafka_eos.connectors.kafka.client.native_module import load_native_module
from kafka_eos.connectors.kafka.source.record_fetchers import NativeFetcher
from tests.kafka_log import Log
from tests.waiting import eventually

NATIVE = load_native_module()


@pytest.fixture
def log() -> Log:
    log = Log(2)
    log.append(0, b"0", b"1")
    log.append(1, b"10")
    return log


@pytest.fixture
def fetcher(log: Log) -> Iterator[NativeFetcher]:
    with log.served() as broker:
        config = {
            "bootstrap.servers": broker.address,
            "group.id": "g",
            "fetch.wait.max.ms": 10,
            "enable.auto.commit": False,
        }
        fetcher = NativeFetcher(config, NATIVE)
        yield fetcher
        fetcher.close()


def fetch(fetcher: NativeFetcher, count: int) -> list[Any]:
    found: list[Any] = []

    def fetched() -> bool:
        for records in fetcher.fetch(10, 0.1).records:
            found.extend(zip(records.partitions, records.offsets, records.values(), strict=True))
        return len(found) >= count

    eventually(fetched, f"{count} records")
    return sorted(found)


def test_a_partition_that_is_assigned_again_does_not_stall(fetcher: NativeFetcher) -> None:
    """librdkafka ends the forwarding of a partition that is unassigned, and does not begin it again."""
    fetcher.assign([TopicPartition("in", 0, 0), TopicPartition("in", 1, 0)])
    assert fetch(fetcher, 3) == [(0, 0, b"0"), (0, 1, b"1"), (1, 0, b"10")]

    for _ in range(3):
        fetcher.consumer.incremental_unassign([TopicPartition("in", 0)])
        fetcher.consumer.incremental_assign([TopicPartition("in", 0, 1)])
        assert fetch(fetcher, 1) == [(0, 1, b"1")]


def test_large_values_are_returned_in_several_batches(log: Log, fetcher: NativeFetcher) -> None:
    """A batch ends with the chunk that fills it."""
    log.append(0, *(b"%d" % number + b" " * 70_000 for number in range(300)), packed=True)
    fetcher.assign([TopicPartition("in", 0, 2)])
    sizes: list[int] = []

    def fetched() -> bool:
        for records in fetcher.fetch(1000, 0.1).records:
            sizes.append(len(records))
            assert all(len(value or b"") > 70_000 for value in records.values())
        return sum(sizes) == 300

    eventually(fetched, "all records")
    assert len(sizes) > 1


def test_a_queue_whose_client_is_closed_says_so(fetcher: NativeFetcher) -> None:
    fetcher.assign([TopicPartition("in", 0, 0)])
    fetcher.consumer.close()

    for call in (lambda: fetcher._queue.consume(10, 10), lambda: fetcher._queue.forward("in", 1)):
        with pytest.raises(RuntimeError, match="the client is closed"):
            call()
    fetcher._queue.forget("in", 0)


def test_a_client_that_is_closed_waits_for_a_fetch_that_is_under_way(fetcher: NativeFetcher) -> None:
    begun, ended = threading.Event(), threading.Event()

    def consume() -> None:
        begun.set()
        fetcher._queue.consume(10, 500)
        ended.set()

    thread = threading.Thread(target=consume)
    thread.start()
    begun.wait()
    fetcher.consumer.close()
    thread.join()

    assert ended.is_set()
    with pytest.raises(RuntimeError, match="the client is closed"):
        fetcher._queue.consume(10, 0)


def test_queues_that_nobody_closes_end_with_their_clients(log: Log, fetcher: NativeFetcher) -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
    for _ in range(20):
        other = NativeFetcher(config, NATIVE)
        other.assign([TopicPartition("in", 0, 0)])
    del other
    fetcher.assign([TopicPartition("in", 1, 0)])

    assert fetch(fetcher, 1) == [(1, 0, b"10")]


def test_a_thread_takes_only_the_client_that_it_has_created() -> None:
    assert NATIVE.module.take_queue() is None


@pytest.mark.parametrize("packed", [b"\x01", b"\x05\0\0\0ab\0\0\0\0", b"\x01\0\0\0a\x09\0\0\0b", b"\xff" * 8])
def test_what_is_not_packed_headers_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="these are no packed headers"):
        NATIVE.module.unpack_headers(packed)


def test_no_records_can_be_asked_for_only_by_mistake(fetcher: NativeFetcher) -> None:
    with pytest.raises(ValueError, match="at least one record"):
        fetcher._queue.consume(0, 0)
