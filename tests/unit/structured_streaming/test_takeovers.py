"""Two drivers of one query, and a third that goes on after them: what any Spark decided is visible once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos.core.errors import CommittableLost, ConfigError, Fatal, Fenced
from kafka_eos.core.ids import Term
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.structured_streaming import partition_writer as task
from kafka_eos.structured_streaming.batch_ledger import BatchLedger
from kafka_eos.structured_streaming.spark_checkpoint import OURS
from kafka_eos.structured_streaming.transaction_recovery import RecoveredQuery, claim_term
from tests.micro_batches import NAME, Driver, MicroBatch, rows
from tests.transactional_broker import TransactionalBroker

Made = Callable[..., Driver]
OLD_ROWS, NEW_ROWS = [b"old 1", b"old 2"], [b"new 1", b"new 2"]
OLD, NEW = MicroBatch.of(*OLD_ROWS), MicroBatch.of(*NEW_ROWS)


@pytest.fixture
def older(driver: Made) -> Driver:
    """It has prepared batch 0, and its Spark has not decided yet."""
    made = driver().start()
    made.prepare(0, OLD)
    return made


def exact(kafka: TransactionalBroker, *values: bytes) -> None:
    assert sorted(kafka.values) == sorted(values)
    assert kafka.open == []


# ---------------------------------------------------------------- the older one decides last


def test_what_the_older_decides_after_the_newer_has_ended_is_made_visible(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    newer = driver()
    assert newer.recovered == RecoveredQuery(None, undecided=0)
    assert newer.start().end() is None

    older.decide(0)

    assert isinstance(older.end(), Fenced)
    assert kafka.visible == []
    assert driver().recovered == RecoveredQuery(0)
    exact(kafka, *OLD_ROWS)


def test_what_the_older_decides_while_the_newer_ends_is_made_visible(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    newer = driver()
    older.decide(0)

    newer.settling.abort_undecided()

    driver()
    exact(kafka, *OLD_ROWS)


def test_what_the_older_decides_before_the_newer_begins_a_batch_is_made_visible_first(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    newer = driver()
    list(task.write_partition(newer.assignment(1), [rows(b"given up")]))
    older.decide(0)

    newer.prepare(1, NEW)

    assert sorted(kafka.values) == OLD_ROWS
    assert len(kafka.open) == len(NEW_ROWS)
    newer.decide(1)
    assert newer.start().end() is None
    exact(kafka, *OLD_ROWS, *NEW_ROWS)
    assert isinstance(older.end(), Fenced)


def test_what_the_older_decides_is_made_visible_though_no_batch_begins(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    newer = driver().start()
    older.decide(0)

    assert newer.end() is None
    assert newer.batch_committer.last_visible_batch == 0
    exact(kafka, *OLD_ROWS)


def test_a_batch_that_the_older_has_decided_is_not_written_again(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    """The newer one's Spark had read the commits before."""
    newer = driver().start()
    older.decide(0)

    with pytest.raises(Fenced, match="Spark starts batch 0, but another driver has decided it"):
        newer.prepare(0, NEW)

    assert newer.end() is None
    exact(kafka, *OLD_ROWS)


def test_a_batch_that_is_decided_while_the_newer_prepares_it_is_not_prepared_twice(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    newer = driver().start()

    with pytest.raises(Fenced, match="another driver has decided it"):
        newer.prepare(0, MicroBatch.of(b"new").while_collected(lambda: older.decide(0)))

    assert len(newer.settling.list_prepared(0)) == 1
    newer.end()
    driver()
    exact(kafka, *OLD_ROWS)


def test_of_two_prepared_batches_the_one_that_the_older_decided_is_not_guessed(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    newer = driver().start()
    newer.prepare(0, NEW)
    older.decide(0)

    with pytest.raises(FileExistsError):
        newer.decide(0)

    assert isinstance(newer.end(), Fenced)
    assert isinstance(older.end(), Fenced)
    with pytest.raises(Fatal, match=r"terms 1, 2 .* delete .*/commits/0"):
        driver()
    assert kafka.visible == []
    assert len(kafka.open) == 4

    older.forget(0)
    driver().start().run(0, NEW)
    exact(kafka, *NEW_ROWS)


def test_a_report_of_an_earlier_batch_does_not_make_a_decision_ones_own(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    older.decide(0)
    older.batch_committer.wait_until_committed()
    older.prepare(1, OLD)
    newer = driver().start()
    newer.reported = 0
    newer.prepare(1, NEW)
    older.decide(1)

    assert isinstance(newer.end(), Fenced)

    assert sorted(kafka.values) == OLD_ROWS


def test_attempts_of_several_drivers_stay_while_any_of_them_may_be_decided_and_go_together(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    driver().prepare(0, NEW)
    third = driver().start()
    assert third.recovered == RecoveredQuery(None, undecided=0)
    assert third.end() is None
    assert len(kafka.open) == 4

    fourth = driver(alone=True)

    assert fourth.recovered == RecoveredQuery(None)
    assert fourth.settling.list_prepared(0) == []
    exact(kafka)


# ---------------------------------------------------------------- the newer one decides


def test_a_batch_that_the_newer_decides_is_visible_in_its_attempt_only(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    newer = driver().start()

    newer.run(0, NEW)

    exact(kafka, *NEW_ROWS)
    with pytest.raises(FileExistsError):
        older.decide(0)
    assert isinstance(older.end(), Fenced)
    newer.run(1, MicroBatch.of(b"next"))
    exact(kafka, *NEW_ROWS, b"next")


def test_a_driver_that_was_replaced_while_its_tasks_ran_prepares_nothing(
    driver: Made, kafka: TransactionalBroker
) -> None:
    older, newer = driver().start(), driver().start()

    with pytest.raises(Fenced, match="term 1 was replaced by term 2"):
        older.prepare(0, OLD)

    assert isinstance(older.batch.failure, Fenced)
    assert older.settling.list_prepared(0) == []
    older.batch_committer.release_waiters()
    older.batch_committer.wait_until_committed()  # nothing was handed over
    assert isinstance(older.end(), Fenced)
    newer.run(0, NEW)
    exact(kafka, *NEW_ROWS)
    assert driver().recovered == RecoveredQuery(0)


def test_what_was_prepared_before_the_claim_is_known_after_it(driver: Made, older: Driver) -> None:
    """A driver opens the records before it claims the query; meanwhile another may prepare one, and Spark decide."""
    ledger = BatchLedger(older.settling.ledger.storage, NAME)
    older.decide(0)
    older.batch_committer.wait_until_committed()
    older.prepare(1, NEW)

    claim_term(ledger, older.settling.committer)

    assert [attempt.term for attempt in ledger.attempts(1)] == [older.settling.ctx.term]


def test_a_driver_that_was_replaced_compares_no_replay(driver: Made) -> None:
    older = driver().start()
    older.run(0, OLD)
    older.forget(0)
    driver()

    with pytest.raises(Fenced, match="term 1 was replaced by term 2"):
        older.prepare(0, OLD)


def test_the_term_of_a_driver_is_above_those_of_all_transactions(driver: Made, older: Driver, tmp_path: Path) -> None:
    """Also where the claims of earlier drivers are gone."""
    driver().prepare(0, NEW)
    for claim in (tmp_path / OURS / paths.TERMS).iterdir():
        claim.unlink()

    assert driver().settling.ctx.term == Term(3)


def test_a_driver_aborts_nothing_of_a_later_one(driver: Made, older: Driver, kafka: TransactionalBroker) -> None:
    newer = driver().start()
    newer.prepare(0, NEW)

    older.settling.abort_others()

    assert len(kafka.open) == 2
    newer.decide(0)
    assert newer.end() is None
    exact(kafka, *NEW_ROWS)


# ---------------------------------------------------------------- one after the other


def test_what_nobody_decided_is_aborted_when_the_query_ends(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    assert older.end() is None

    exact(kafka)
    newer = driver()
    assert newer.recovered == RecoveredQuery(None)
    newer.start().run(0, NEW)
    exact(kafka, *NEW_ROWS)


def test_where_no_earlier_spark_lives_nothing_stays_prepared(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    newer = driver(alone=True)

    assert newer.recovered == RecoveredQuery(None)
    exact(kafka)
    newer.start().run(0, NEW)
    exact(kafka, *NEW_ROWS)


def test_a_query_that_has_nothing_decided_begins_with_its_first_batch(driver: Made) -> None:
    with pytest.raises(Fenced, match="Spark starts batch 1"):
        driver().start().prepare(1, NEW)


def test_a_batch_of_another_sink_is_adopted_only_if_told_so(
    driver: Made, kafka: TransactionalBroker, tmp_path: Path
) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "7").touch()

    with pytest.raises(ConfigError, match="Spark committed batch 7"):
        driver()

    adopting = driver(adopt=True)
    assert adopting.recovered == RecoveredQuery(7)
    adopting.start().run(8, NEW)
    exact(kafka, *NEW_ROWS)


def test_a_decided_batch_that_is_gone_is_lost_and_can_be_replayed(driver: Made, kafka: TransactionalBroker) -> None:
    older = driver()
    older.prepare(0, OLD)
    older.decide(0)
    older.settling.committer.abort(kafka.open)

    with pytest.raises(CommittableLost, match=r"batch 0 .* Nothing of the batch is visible.* delete .*/commits/0"):
        driver()

    older.forget(0)
    driver().start().run(0, NEW)
    exact(kafka, *NEW_ROWS)


def test_a_decided_batch_that_is_half_gone_is_not_replayed(driver: Made, kafka: TransactionalBroker) -> None:
    older = driver()
    older.prepare(0, OLD)
    older.decide(0)
    half_committed(older)
    older.settling.committer.abort(kafka.open)

    with pytest.raises(CommittableLost, match="Part of the batch may be visible already"):
        driver()


@pytest.mark.parametrize("alone", [False, True])
def test_a_batch_that_is_half_visible_is_finished_though_its_decision_is_gone(
    driver: Made, kafka: TransactionalBroker, alone: bool
) -> None:
    older = driver()
    older.prepare(0, OLD)
    half_committed(older)

    newer = driver(alone=alone).start()

    assert newer.recovered == RecoveredQuery(None)
    exact(kafka, *OLD_ROWS)
    newer.run(0, OLD)  # the replay writes the same
    exact(kafka, *OLD_ROWS)
    newer.run(1, NEW)
    exact(kafka, *OLD_ROWS, *NEW_ROWS)


def test_of_two_prepared_batches_the_one_that_is_half_visible_is_finished(
    driver: Made, older: Driver, kafka: TransactionalBroker
) -> None:
    newer = driver()
    newer.prepare(0, NEW)
    half_committed(newer)

    driver()

    exact(kafka, *NEW_ROWS)


def test_a_replay_that_would_write_something_else_is_refused(driver: Made, kafka: TransactionalBroker) -> None:
    older = driver()
    older.prepare(0, OLD)
    half_committed(older)
    newer = driver().start()

    with pytest.raises(Fatal, match="would belong to different attempts"):
        newer.prepare(0, NEW)

    newer.end()
    exact(kafka, *OLD_ROWS)


@pytest.mark.limits(settled_batches_kept=1)
def test_output_that_is_newer_than_the_checkpoint_is_not_written_again(
    driver: Made, kafka: TransactionalBroker, tmp_path: Path
) -> None:
    """Spark's part of the checkpoint is gone, and it begins anew with a batch that was forgotten."""
    older = driver().start()
    older.run(0, OLD)
    older.run(1, NEW)
    shutil.rmtree(tmp_path / "commits")

    newer = driver().start()

    with pytest.raises(Fatal, match="the output of batch 1 is already visible.* is older than its output"):
        newer.prepare(0, OLD)
    exact(kafka, *OLD_ROWS, *NEW_ROWS)


def test_a_replay_of_a_batch_before_the_last_one_must_be_the_same(driver: Made, kafka: TransactionalBroker) -> None:
    older = driver().start()
    older.run(0, OLD)
    older.run(1, NEW)
    older.forget(1)
    older.forget(0)
    newer = driver().start()

    newer.prepare(0, OLD)
    with pytest.raises(Fatal, match="the output of batch 1 is already visible.* is older than its output"):
        newer.prepare(0, NEW)

    exact(kafka, *OLD_ROWS, *NEW_ROWS)


def test_a_checkpoint_keeps_the_name_of_its_query(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    job = BatchLedger(storage, NAME).job

    assert BatchLedger(storage, NAME).job == job
    with pytest.raises(ConfigError, match="belongs to the query 'totals', not to 'sums'"):
        BatchLedger(storage, "sums")


def half_committed(of: Driver) -> None:
    """The first transaction of batch 0 is committed, as by a driver that died then."""
    prepared = of.settling.list_prepared(0)[-1]
    of.commit(prepared, prepared.committables[0])
