"""The gate before each batch, and what passes it when a query ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.core.errors import Bug, CommittableLost, CorruptCheckpoint
from kafka_eos.storage import object_names as paths
from kafka_eos.structured_streaming.spark_checkpoint import OURS
from tests.micro_batches import Driver, MicroBatch
from tests.transactional_broker import TransactionalBroker

Made = Callable[..., Driver]
ROWS = MicroBatch.of(b"a", b"b")


def test_a_batch_that_spark_has_decided_is_made_visible_though_the_query_ends(
    driver: Made, kafka: TransactionalBroker
) -> None:
    """Spark ends between its decision and the next look at it."""
    first = driver()
    first.prepare(0, ROWS)
    first.decide(0)
    first.batch_committer.on_query_end()

    first.start()

    assert first.end() is None
    assert first.batch_committer.last_visible_batch == 0
    assert sorted(kafka.values) == [b"a", b"b"]
    assert kafka.open == []


def test_nothing_passes_the_gate_before_the_batch_is_visible(driver: Made, kafka: TransactionalBroker) -> None:
    first = driver()
    first.prepare(0, ROWS)
    threading.Timer(0.05, first.batch_committer.release_waiters).start()

    with pytest.raises(RetryInterrupted, match="stopped before batch 0 was committed"):
        first.prepare(1, ROWS)

    assert isinstance(first.batch.failure, RetryInterrupted)
    assert not first.batch_committer.wait(0)
    assert first.start().end() is None
    assert kafka.open == []


def test_a_query_that_is_stopped_between_batches_passes_the_gate(driver: Made) -> None:
    first = driver().start()
    first.run(0, ROWS)
    first.batch_committer.release_waiters()

    first.batch_committer.wait_until_committed()

    assert first.end() is None


def test_what_cannot_be_committed_stops_the_query_and_shuts_the_gate(driver: Made, kafka: TransactionalBroker) -> None:
    first = driver().start()
    first.prepare(0, ROWS)
    first.settling.committer.abort(kafka.open)
    first.decide(0)

    with pytest.raises(CommittableLost):
        first.prepare(1, ROWS)

    assert not first.batch_committer.wait(0.1), "its Spark may still decide a batch"
    assert not first.closed
    assert isinstance(first.end(), CommittableLost)
    assert first.stopped
    assert first.batch_committer.last_visible_batch is None


def test_a_receipt_of_another_driver_must_be_a_receipt(driver: Made, tmp_path: Path) -> None:
    first = driver().start()
    first.prepare(0, ROWS)
    (prepared,) = first.settling.list_prepared(0)
    (tmp_path / OURS / paths.receipt_name(prepared.id)).write_bytes(b"{}")

    first.decide(0)

    assert isinstance(first.end(), CorruptCheckpoint)


def test_one_batch_at_a_time_is_handed_over(driver: Made) -> None:
    first = driver()
    first.prepare(0, ROWS)
    (prepared,) = first.settling.list_prepared(0)

    with pytest.raises(Bug, match="batch 0 was prepared before batch 0 was committed"):
        first.batch_committer.submit(prepared)


def test_a_query_that_spark_refuses_to_start_lets_go_of_everything(driver: Made) -> None:
    first = driver()

    with pytest.raises(ValueError, match="no such trigger"), first.batch_committer.close_unless_started():
        raise ValueError("no such trigger")
    assert first.closed

    second = driver()
    with second.batch_committer.close_unless_started():
        pass
    assert not second.closed
    second.start().end()
    assert second.closed
