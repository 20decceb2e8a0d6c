"""The transactions that several writers share, epoch by epoch: when each is prepared, flushed and released."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest

from kafka_eos.abc.committer import Committable
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.marker_groups import open_marker_group
from kafka_eos.connectors.kafka.sink.producer_pool import ProducerPool
from kafka_eos.connectors.kafka.sink.record_sizes import TopicLimits
from kafka_eos.connectors.kafka.sink.shared_transaction import (
    EpochTransaction,
    SharedTransactions,
    TransactionSettings,
)
from kafka_eos.connectors.kafka.sink.sticky_partitioner import StickyPartitioner
from kafka_eos.core.errors import Bug, ConfigError
from kafka_eos.core.ids import Epoch, EpochId, Term
from tests.transactional_broker import TransactionalBroker
from tests.waiting import PATIENCE, eventually

Made = Callable[..., SharedTransactions]


def at(number: int) -> EpochId:
    return EpochId(Epoch(number), Term(3))


@pytest.fixture
def kafka() -> TransactionalBroker:
    return TransactionalBroker({"out": 1, "other": 1})


@pytest.fixture
def made(kafka: TransactionalBroker) -> Iterator[Made]:
    """``made(writers)``: transactions of so many writers."""
    with kafka.served() as broker:
        where = Cluster(broker.address)
        # Nothing is sent before it is flushed.
        late = {"linger.ms": 50_000, "message.timeout.ms": 60_000, "log_level": 0}
        config = {"bootstrap.servers": broker.address, **late}
        opened = list[tuple[ProducerPool, KafkaRequests]]()

        def make(writers: int) -> SharedTransactions:
            clients = ProducerPool("t.{}".format, itertools.count().__next__, lambda: config), KafkaRequests(where)
            opened.append(clients)
            settings = TransactionSettings(where.scope, 3, 60_000, PATIENCE)
            group = cache(lambda slot: open_marker_group(where, f"g.{slot}"))
            shared = SharedTransactions(clients[0], settings, clients[1], group)
            for _ in range(writers):
                assert shared.join("out") is None
            return shared

        yield make
        for pool, requests in opened:
            pool.close()
            requests.close()


def write(shared: SharedTransactions, turn: int, value: bytes) -> EpochTransaction:
    staged = shared.get_transaction(turn, "out")
    staged.begin("a", TopicLimits("out", None, 1_000, 1), None)
    staged.warm.producer.produce("out", value=value, partition=0)
    staged.records["a"] += 1
    return staged


def records(precommit: Callable[[], Sequence[Committable]]) -> list[int]:
    return [each.records for each in precommit()]


def flushes(kafka: TransactionalBroker, *transactions: EpochTransaction) -> list[int]:
    """How many batches the broker has of each."""
    return [kafka.batches[each.warm.transactional_id] for each in transactions]


def test_an_epoch_is_prepared_by_the_last_of_its_writers_whichever_that_is(
    made: Made, kafka: TransactionalBroker
) -> None:
    """The first writer is two epochs ahead of the last one."""
    shared = made(3)
    first = write(shared, 0, b"a")
    sealed = [records(shared.seal(0, at(1)))]
    second = write(shared, 1, b"b")
    assert flushes(kafka, first, second) == [1, 0], "rows of an earlier epoch come first"
    write(shared, 0, b"c")
    sealed += [records(shared.seal(turn, at(turn + 1))) for turn in (0, 1, 1, 0)]
    assert first.epoch == at(1)
    assert second.epoch is None
    write(shared, 1, b"d")
    sealed.append(records(shared.seal(1, at(2))))
    sealed += [records(shared.seal(2, at(3))) for _ in range(3)]

    assert sealed == [[], [], [], [], [2], [2], [], [], []], "nobody has written in the third epoch"
    assert second.epoch == at(2)


def test_rows_of_every_earlier_epoch_are_acknowledged_before_one_of_the_next(
    made: Made, kafka: TransactionalBroker
) -> None:
    """Of one that is sealed and not prepared yet, of one that is sealed by some, and of one that is open."""
    shared = made(2)
    first = write(shared, 0, b"a")
    for _ in range(2):
        shared.seal(0, at(1))
    second = write(shared, 1, b"b")
    shared.seal(1, at(2))
    third = write(shared, 2, b"c")
    write(shared, 1, b"d")
    assert flushes(kafka, first, second, third) == [1, 1, 0]

    fourth = write(shared, 3, b"e")
    assert write(shared, 3, b"f") is fourth

    assert flushes(kafka, first, second, third, fourth) == [1, 2, 1, 0]


def test_a_commit_releases_what_is_prepared_up_to_its_epoch_and_keeps_the_rest(made: Made) -> None:
    shared = made(1)
    staged = []
    for turn in range(4):
        staged.append(write(shared, turn, b"%d" % turn))
        if turn < 3:
            shared.seal(turn, at(turn + 1))
    slots = [each.warm.slot for each in staged]

    shared.committed(at(0))
    assert shared._pool._free == []
    shared.committed(at(2))
    shared.committed(at(2))
    assert shared._pool._free == slots[:2]
    assert shared._prepared == [staged[2]]
    shared.discard()
    shared.discard()


def test_what_belongs_to_nobody_else_ends_with_the_attempt(made: Made, kafka: TransactionalBroker) -> None:
    shared = made(1)
    prepared, name = shared, write(shared, 0, b"a").warm.transactional_id
    assert records(prepared.seal(0, at(1))) == [1]
    later = [write(shared, turn, b"b").warm.transactional_id for turn in (1, 2)]
    shared.seal(1, at(2))
    assert eventually(lambda: kafka.open == sorted([name, *later]), "all have registered their partition")

    shared.discard()

    assert shared._pool._closed.is_set()
    assert (shared._open, shared._prepared) == ({}, [])
    # The others are aborted, because librdkafka may crash when it destroys a client that registers a partition.
    assert eventually(lambda: kafka.open == [name], "recovery commits the prepared one")


def test_a_transaction_that_another_thread_flushes_or_that_is_prepared_is_not_aborted(
    made: Made, kafka: TransactionalBroker
) -> None:
    shared = made(1)
    flushed, prepared = write(shared, 0, b"a"), write(shared, 1, b"b")
    names = sorted(staged.warm.transactional_id for staged in (flushed, prepared))
    prepared.flush(final=True)
    prepared.abandon()
    with flushed._lock:
        flushed.abandon()
    eventually(lambda: kafka.open == names, "both have registered their partition")
    assert not prepared.warm.failures and not flushed.warm.failures
    flushed.flush(final=True)

    assert records(shared.seal(0, at(1))) == [1]


def test_writers_join_before_the_first_barrier_and_agree_on_where_origins_are(made: Made) -> None:
    shared = made(1)
    places = StickyPartitioner("random", 0)

    with pytest.raises(ConfigError, match=r'provenance="ledger" is set for some of the sinks that write to out'):
        shared.join("out", places)
    assert shared.join("other", places) is places
    assert shared.join("other", StickyPartitioner("random", 0)) is places
    with pytest.raises(ConfigError, match="write to other"):
        shared.join("other")
    shared.seal(0, at(1))
    with pytest.raises(Bug, match="opened after the first barrier"):
        shared.join("out")
