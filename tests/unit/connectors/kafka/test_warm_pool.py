"""Warm producers that nobody uses, against a closed port: their statistics come all the same."""

from __future__ import annotations

import itertools
import json
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import KafkaError, Message
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink import producer_pool as pools
from kafka_eos.connectors.kafka.sink.marker_groups import open_marker_group
from kafka_eos.connectors.kafka.sink.producer_pool import ProducerPool, WarmProducer
from kafka_eos.connectors.kafka.sink.shared_transaction import SharedTransactions, TransactionSettings
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
    shared = SharedTransactions(
        pool,
        TransactionSettings(where.scope, 1, 60_000, SECONDS),
        KafkaRequests(where),
        lambda slot: open_marker_group(where, str(slot)),
    )
    shared.join("out")
    known = id(shared.get_transaction(0, "out").warm._events)
    before = heard[known]

    def attended() -> bool:
        shared.poll_errors()
        return heard[known] > before

    eventually(attended, "statistics of the producer in use", SECONDS)


# ---------------------------------------------------------------- what the client tells


def told(*failures: tuple[int, str | None]) -> pools._ProducerEvents:
    events = pools._ProducerEvents()
    for code, topic in failures:
        events.failed(KafkaError(code), Message(topic=topic))
    return events


def test_failed_deliveries_are_told_once_each_five_of_them_at_most_and_topics_that_refuse_all() -> None:
    events = told((87, "a"), (7, "b"), (87, "c"), (7, "b"), (87, None), (13, "d"), (19, "e"), (87, "last"))
    events.failed(None, Message(topic="fine"))

    assert [text.split(":")[0] for text in events.failures if "Broker: Broker failed to validate" not in text] == [
        "b", "d"
    ]  # fmt: skip
    assert len(events.failures) == 5
    assert events.refusing_topics == {"a", "c", "", "last"}
    assert not events.purged


@pytest.mark.parametrize("code", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
def test_a_record_that_was_dropped_is_remembered_whatever_fails_besides(code: int) -> None:
    assert told((code, "a")).purged
    assert told((7, "a"), (code, "a"), (7, "b")).purged


@pytest.mark.parametrize("code", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
def test_a_purged_record_is_no_cause_and_what_failed_before_or_after_it_is_one(code: int) -> None:
    assert not told((code, "a"), (code, "b")).has_cause
    assert told((code, "a"), (87, "a")).has_cause
    assert told((7, "a"), (code, "a")).has_cause


def test_fatal_errors_are_failures_and_refused_logins_are_told_apart() -> None:
    events = told()
    events.error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert (events.failures, events.refused) == ([], "")
    events.error(KafkaError(KafkaError._AUTHENTICATION, "who are you"))
    assert (events.failures, events.refused) == ([], "who are you")
    events.error(KafkaError(KafkaError._FENCED, "fenced", fatal=True))
    assert (events.failures, events.refused) == (["fenced"], "who are you")
    assert events.has_cause and not events.purged


def test_the_identity_is_the_first_that_the_statistics_tell_and_few_are_read_from_then_on() -> None:
    events, brokers = told(), {"a:1/1": {"nodeid": 1, "source": "learned", "state": "UP"}}

    def learn(**eos: int) -> tuple[int, int]:
        events.learn(json.dumps({"brokers": brokers, "eos": eos}))
        return events.producer_id, events.producer_epoch

    assert learn() == (-1, -1)
    assert learn(producer_id=-1, producer_epoch=-1) == (-1, -1)
    assert learn(producer_id=0, producer_epoch=3) == (0, 3)
    for _ in range(30):
        assert learn(producer_id=8, producer_epoch=9) == (0, 3)
    read = 0
    for _ in range(20):
        before = events._statistics_count
        try:
            events.learn("no JSON")
        except ValueError:
            read += 1
        assert events._statistics_count == before + 1
    assert read == 2
