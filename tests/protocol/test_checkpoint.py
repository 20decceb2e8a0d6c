"""Completion of an epoch, cadence of triggers, count of failures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.protocol.checkpoint import Cadence, Failures, Pending

MINE = EpochId(Epoch(5), Term(2))
OTHERS = (EpochId(Epoch(4), Term(2)), EpochId(Epoch(5), Term(1)), EpochId(Epoch(6), Term(2)))


def test_an_epoch_is_complete_when_every_subtask_has_answered() -> None:
    pending = Pending(MINE, frozenset({0, 1}), 0.0)

    assert not pending.ack(MINE, 0).complete
    assert pending.ack(MINE, 0).ack(MINE, 1).complete


@given(st.lists(st.tuples(st.sampled_from([MINE, *OTHERS]), st.integers(0, 4))))
def test_only_answers_of_expected_subtasks_for_this_very_epoch_count(answers: list[tuple[EpochId, int]]) -> None:
    pending = Pending(MINE, frozenset({0, 1, 2}), 0.0)
    for epoch, subtask in answers:
        pending = pending.ack(epoch, subtask)

    assert pending.complete == ({0, 1, 2} <= {subtask for epoch, subtask in answers if epoch == MINE})


def test_the_next_trigger_waits_for_the_interval_and_for_the_pause() -> None:
    cadence = Cadence(interval=1.0, min_pause=0.5, timeout=10.0)

    assert cadence.next_trigger(last_triggered=100.0, last_completed=100.1) == 101.0
    assert cadence.next_trigger(last_triggered=100.0, last_completed=103.0) == 103.5


def test_an_epoch_expires_after_its_timeout() -> None:
    cadence = Cadence(1.0, 0.0, timeout=10.0)
    pending = Pending(MINE, frozenset({0}), triggered_at=100.0)

    assert not cadence.expired(pending, 110.0)
    assert cadence.expired(pending, 110.1)


def test_failures_are_counted_in_a_row() -> None:
    failures = Failures(tolerated=2).failed().failed()

    assert not failures.too_many
    assert failures.failed().too_many
    assert not failures.failed().succeeded().failed().too_many
