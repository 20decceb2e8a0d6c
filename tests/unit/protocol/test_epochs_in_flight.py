"""The epochs in flight: one at a time, decided after the commit before, and in flight until an abort is confirmed."""

import pytest

from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.actions import DecideEpoch
from kafka_eos.protocol.checkpoint_schedule import Cadence, EpochKind, PendingEpochs

BOTH = frozenset({0, 1})
CADENCE = Cadence(interval=1.0, min_pause=0.0, timeout=10.0)


def epoch(n: int, term: int = 1) -> EpochId:
    return EpochId(Epoch(n), Term(term))


def in_flight(n: int) -> PendingEpochs:
    """Epoch ``n`` was triggered at ``n`` seconds, on epoch 0."""
    return PendingEpochs(last_decided=epoch(0)).trigger(epoch(n), BOTH, float(n))


def answered(flights: PendingEpochs, n: int) -> PendingEpochs:
    for subtask in BOTH:
        flights = flights.ack(epoch(n), subtask)
    return flights


def hopeless(flights: PendingEpochs) -> EpochId | None:
    return None if (found := flights.find_declined()) is None else found.id


def late(flights: PendingEpochs, now: float) -> EpochId | None:
    return None if (found := flights.find_expired(CADENCE, now)) is None else found.id


def overdue(flights: PendingEpochs, now: float) -> EpochId | None:
    return None if (found := flights.overdue(CADENCE, now)) is None else found.id


def test_where_nothing_is_on_its_way_nothing_is_to_be_done_and_any_epoch_may_begin() -> None:
    empty = PendingEpochs()
    begun = empty.trigger(epoch(0), BOTH, 0.0)

    assert (empty.is_empty, empty.is_full, empty.find_complete(), empty.find_declined()) == (True, False, None, None)
    assert begun.pending is not None
    assert begun.pending.id == epoch(0)


def test_an_epoch_is_on_its_way_until_its_receipt_is_written() -> None:
    flying = PendingEpochs().trigger(epoch(0), BOTH, 0.0)
    decided = answered(flying, 0).record_decision(epoch(0))

    assert [each.is_empty for each in (flying, decided, decided.record_commit(epoch(0)))] == [False, False, True]


def test_nothing_is_ready_before_every_subtask_has_answered() -> None:
    half = in_flight(1).ack(epoch(1), 0)

    assert half.find_complete() is None
    assert half.ack(epoch(1), 0).find_complete() is None
    assert half.ack(epoch(1), 1).find_complete() == epoch(1)


def test_the_next_is_triggered_when_the_last_is_committed_unless_they_overlap() -> None:
    deciding = answered(in_flight(1), 1).record_decision(epoch(1))

    assert deciding.is_full
    with pytest.raises(Bug, match="cannot be triggered"):
        deciding.trigger(epoch(2), BOTH, 2.0)
    assert not deciding.record_commit(epoch(1)).is_full
    assert deciding.record_commit(epoch(0)).is_full, "that is another epoch"


def test_no_epoch_is_triggered_beside_another() -> None:
    with pytest.raises(Bug, match="cannot be triggered"):
        in_flight(1).trigger(epoch(2), BOTH, 2.0)


def test_numbers_only_grow() -> None:
    with pytest.raises(Bug, match="cannot be triggered"):
        in_flight(0)


def test_only_what_is_ready_can_be_decided() -> None:
    with pytest.raises(Bug, match="was due"):
        in_flight(1).record_decision(epoch(1))


def test_late_and_foreign_answers_change_nothing() -> None:
    flying = in_flight(2)

    assert answered(flying, 1) == flying
    assert flying.ack(epoch(2, term=9), 0) == flying
    assert flying.ack(epoch(2), 7) == flying
    assert flying.confirm_abort(epoch(2), 0) == flying


def test_an_epoch_that_was_declined_is_to_be_aborted() -> None:
    declined = in_flight(1).decline(epoch(1), 0, "full")

    assert hopeless(declined) == epoch(1)
    assert hopeless(declined.abort(epoch(1), 2.0)) is None
    assert in_flight(1).decline(epoch(1), 7, "full") == in_flight(1)
    assert in_flight(1).decline(epoch(2), 0, "full") == in_flight(1)


def test_an_aborted_epoch_is_on_its_way_until_every_subtask_has_confirmed_the_abort() -> None:
    aborted = in_flight(1).abort(epoch(1), 2.0)
    half = aborted.confirm_abort(epoch(1), 0)
    done = half.confirm_abort(epoch(1), 1)

    assert [(each.is_empty, each.is_full) for each in (aborted, half, done)] == [
        (False, True),
        (False, True),
        (True, False),
    ]
    assert half.confirm_abort(epoch(1), 0) == half
    assert half.confirm_abort(epoch(1, term=9), 1) == half
    assert answered(aborted, 1) == aborted
    assert aborted.decline(epoch(1), 0, "full") == aborted


def test_only_the_pending_epoch_can_be_aborted() -> None:
    with pytest.raises(Bug, match="cannot be aborted"):
        in_flight(1).abort(epoch(2), 2.0)
    with pytest.raises(Bug, match="cannot be aborted"):
        in_flight(1).abort(epoch(1), 2.0).abort(epoch(1), 3.0)


def test_leftovers_of_an_aborted_epoch_stay_until_the_next_is_decided() -> None:
    aborted = in_flight(1).abort(epoch(1), 2.0)
    for subtask in BOTH:
        aborted = aborted.confirm_abort(epoch(1), subtask)
    again = aborted.trigger(epoch(2), BOTH, 2.0)

    assert not in_flight(1).leftovers
    assert aborted.leftovers
    assert again.leftovers
    assert not answered(again, 2).record_decision(epoch(2)).leftovers


def test_an_epoch_is_late_after_its_timeout_and_not_while_its_input_is_verified() -> None:
    assert [late(in_flight(1), now) for now in (11.0, 11.5)] == [None, epoch(1)]
    assert late(answered(in_flight(1), 1), 99.0) is None
    assert late(PendingEpochs(), 99.0) is None


def test_an_abort_that_is_not_confirmed_is_overdue_once_a_timeout() -> None:
    aborted = in_flight(1).abort(epoch(1), 20.0)

    assert late(aborted, 99.0) is None
    assert [overdue(aborted, now) for now in (30.0, 30.5)] == [None, epoch(1)]
    assert [overdue(aborted.wait_again(30.5), now) for now in (40.0, 41.0)] == [None, epoch(1)]
    assert overdue(in_flight(1), 99.0) is None
    assert in_flight(1).wait_again(9.0) == in_flight(1)


@pytest.mark.parametrize("kind", EpochKind)
def test_the_kind_of_an_epoch_is_known_while_its_abort_is_waited_for(kind: EpochKind) -> None:
    aborting = PendingEpochs().trigger(epoch(1), BOTH, 1.0, kind).abort(epoch(1), 2.0).aborting

    assert aborting is not None
    assert aborting.kind is kind


def test_the_next_decided_epoch_takes_what_aborted_ones_have_sealed_and_nothing_twice() -> None:
    decision = DecideEpoch(epoch(3), previous=epoch(1), seconds=0.0)

    assert [decision.includes(epoch(n)) for n in (1, 2, 3)] == [False, True, True]
    assert DecideEpoch(epoch(1), previous=None, seconds=0.0).includes(epoch(0))
