"""Completion of an epoch, cadence of triggers, count of failures."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.checkpoint_schedule import (
    Cadence,
    EpochKind,
    FailureCounter,
    PendingEpoch,
    choose_next_kind,
    has_environment_recovered,
)

MINE = EpochId(Epoch(5), Term(2))
OTHERS = (EpochId(Epoch(4), Term(2)), EpochId(Epoch(5), Term(1)), EpochId(Epoch(6), Term(2)))


def test_an_epoch_is_complete_when_every_subtask_has_answered() -> None:
    pending = PendingEpoch(MINE, frozenset({0, 1}), 0.0)

    assert not pending.ack(MINE, 0).complete
    assert pending.ack(MINE, 0).ack(MINE, 1).complete


def test_who_has_not_answered_is_known() -> None:
    assert PendingEpoch(MINE, frozenset({0, 1, 2}), 0.0).ack(MINE, 1).missing == {0, 2}


@pytest.mark.parametrize(
    ("kind", "drains", "serves", "late", "declined"),
    [
        (EpochKind.PERIODIC, False, False, True, True),
        (EpochKind.BOOTSTRAP, True, False, True, True),
        (EpochKind.REQUESTED, False, True, False, False),
        (EpochKind.SAVEPOINT, True, True, False, False),
        (EpochKind.FINAL, True, True, False, True),
    ],
)
def test_what_an_epoch_is_for_says_what_it_leaves_whom_it_serves_and_when_its_end_is_a_failure(
    kind: EpochKind, drains: bool, serves: bool, late: bool, declined: bool
) -> None:
    assert (kind.must_drain, kind.serves_requests) == (drains, serves)
    assert (kind.counts_as_failure(late=True), kind.counts_as_failure(late=False)) == (late, declined)


@given(st.lists(st.tuples(st.sampled_from([MINE, *OTHERS]), st.integers(0, 4))))
def test_only_answers_of_expected_subtasks_for_this_very_epoch_count(answers: list[tuple[EpochId, int]]) -> None:
    pending = PendingEpoch(MINE, frozenset({0, 1, 2}), 0.0)
    for epoch, subtask in answers:
        pending = pending.ack(epoch, subtask)

    assert pending.complete == ({0, 1, 2} <= {subtask for epoch, subtask in answers if epoch == MINE})


def test_the_next_trigger_waits_for_the_interval_and_for_the_pause() -> None:
    cadence = Cadence(interval=1.0, min_pause=0.5, timeout=10.0)

    assert cadence.next_trigger(last_triggered=100.0, last_completed=100.1) == 101.0
    assert cadence.next_trigger(last_triggered=100.0, last_completed=103.0) == 103.5


def test_an_epoch_expires_after_its_timeout() -> None:
    cadence = Cadence(1.0, 0.0, timeout=10.0)

    assert not cadence.is_expired(100.0, 110.0)
    assert cadence.is_expired(100.0, 110.1)


def test_failures_are_counted_in_a_row() -> None:
    failures = FailureCounter(tolerated=2).record_failure().record_failure()

    assert not failures.is_exceeded
    assert failures.record_failure().is_exceeded
    assert failures.record_failure().record_success() == FailureCounter(tolerated=2, in_a_row=0)


@pytest.mark.parametrize(
    ("unanswered", "moved", "seconds", "tells"),
    [
        (False, True, 0.1, True),
        (False, False, 0.1, False),  # an empty epoch, before the attempt comes to what fails
        (False, False, 61, True),  # there is no input
        (True, True, 61, False),
    ],
)
def test_which_epoch_tells_that_the_environment_works_again(
    unanswered: bool, moved: bool, seconds: float, tells: bool
) -> None:
    assert has_environment_recovered(unanswered=unanswered, moved=moved, seconds=seconds, patience=60) is tells


ASKED = (None, EpochKind.REQUESTED, EpochKind.SAVEPOINT)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("due", [False, True])
@pytest.mark.parametrize("in_vain", [False, True])
def test_what_is_triggered_next(asked: EpochKind | None, due: bool, in_vain: bool) -> None:
    assert choose_next_kind(ends=True, asked=asked, due=due, in_vain=in_vain, filling=False) is EpochKind.FINAL

    chosen = choose_next_kind(ends=False, asked=asked, due=due, in_vain=in_vain, filling=False)

    if asked is None:
        assert chosen is (EpochKind.PERIODIC if due else None)
    else:
        assert chosen is (EpochKind.PERIODIC if due and in_vain else asked)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("due", [False, True])
@pytest.mark.parametrize("in_vain", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_while_streams_wait_for_tables_every_epoch_leaves_nothing_under_way(
    asked: EpochKind | None, due: bool, in_vain: bool, ends: bool
) -> None:
    wanted = choose_next_kind(ends=ends, asked=asked, due=due, in_vain=in_vain, filling=False)

    chosen = choose_next_kind(ends=ends, asked=asked, due=due, in_vain=in_vain, filling=True)

    assert (chosen is None) == (wanted is None)
    assert chosen is None or wanted is None or (chosen.must_drain and chosen.serves_requests == wanted.serves_requests)


@given(st.lists(st.sampled_from(ASKED), min_size=1))
def test_whoever_asks_the_job_takes_its_own_checkpoints(asked: list[EpochKind | None]) -> None:
    """Each epoch takes longer than the interval, and each that is asked for is given up."""
    in_vain, chosen = False, []
    for wish in asked:
        chosen.append(choose_next_kind(ends=False, asked=wish, due=True, in_vain=in_vain, filling=False))
        in_vain = chosen[-1] is not EpochKind.PERIODIC

    assert all(EpochKind.PERIODIC in pair for pair in pairwise(chosen))


@pytest.mark.parametrize(
    ("kind", "late", "declined"),
    [
        (EpochKind.PERIODIC, True, True),
        (EpochKind.REQUESTED, False, False),
        (EpochKind.SAVEPOINT, False, False),
        (EpochKind.FINAL, False, True),
    ],
)
def test_which_epochs_that_are_given_up_count_against_the_job(kind: EpochKind, late: bool, declined: bool) -> None:
    assert (kind.counts_as_failure(late=True), kind.counts_as_failure(late=False)) == (late, declined)
