"""Warm producers that nobody uses, against a closed port: their statistics come all the same."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink import producer_pool as pools
from kafka_eos.connectors.kafka.sink.marker_groups import MarkerGroups
from kafka_eos.connectors.kafka.sink.producer_pool import ProducerPool, WarmProducer
from kafka_eos.connectors.kafka.sink.shared_transaction import PartitionCounts, SharedTransactions, TransactionSettings
from tests.waiting import eventually

SECONDS = 20.0


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many statistics somebody polled, by what was told of a producer."""
    counted: Counter[int] = Counter()
    monkeypatch.setattr(pools._ProducerEvents, "learn", lambda told, _: counted.update([id(told)]))
    monkeypatch.setattr(pools, "_LISTEN_SECONDS", 0.05)
    return counted


@pytest.fixture
def pool(heard: Counter[int], monkeypatch: pytest.MonkeyPatch) -> Iterator[ProducerPool]:
    """Its producers count as ready at once."""
    monkeypatch.setattr(WarmProducer, "init", lambda _warm, _seconds: None)
    config = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    with closing(ProducerPool("warm.{}".format, itertools.count().__next__, lambda: config)) as made:
        yield made


def test_producers_that_wait_are_polled_and_one_in_use_is_not(pool: ProducerPool, heard: Counter[int]) -> None:
    """Statistics that nobody polls pile up without bound; failed deliveries are for the writer alone."""
    eventually(lambda: len(heard) >= 2, "statistics of the producers that wait", SECONDS)

    used = pool.acquire(SECONDS)
    known, before = id(used._events), heard[id(used._events)]
    others = heard.total() - before
    eventually(lambda: heard.total() - heard[known] >= others + 10, "more of the others", SECONDS)

    assert heard[known] == before


def test_a_producer_that_has_prepared_is_polled_until_it_goes(pool: ProducerPool, heard: Counter[int]) -> None:
    used = pool.acquire(SECONDS)
    known, gone = id(used._events), weakref.ref(used)
    before = heard[known]

    pool.poll_idle(used)

    eventually(lambda: heard[known] > before, "statistics of the producer that rests", SECONDS)
    pool.release(used)
    del used
    eventually(lambda: gone() is None, "the end of the producer", SECONDS)


def test_a_producer_in_use_is_polled_whenever_its_writer_is_attended_to(
    pool: ProducerPool, heard: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its input may be quiet for as long as its transaction is open."""
    monkeypatch.setattr(WarmProducer, "begin", lambda _warm: None)
    where = Cluster("127.0.0.1:1")
    groups = MarkerGroups(where)
    shared = SharedTransactions(
        pool,
        TransactionSettings(where.scope, 1, 60_000, SECONDS, PartitionCounts()),
        KafkaRequests(where),
        lambda slot: groups.named(str(slot)),
    )
    shared.join("out")
    known = id(shared.get_transaction(0, "out").warm._events)
    before = heard[known]

    def attended() -> bool:
        shared.poll_errors()
        return heard[known] > before

    eventually(attended, "statistics of the producer in use", SECONDS)
