"""Several epochs in flight: decided in order, one at a time, and what an aborted one leaves to the next."""

import pytest

from kafka_eos.errors import Bug
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.protocol.actions import Decide
from kafka_eos.protocol.checkpoint import Cadence, Flights, Kind

BOTH = frozenset({0, 1})


def epoch(n: int, term: int = 1) -> EpochId:
    return EpochId(Epoch(n), Term(term))


def in_flight(*numbers: int, limit: int = 3) -> Flights:
    flights = Flights(limit, last=epoch(0))
    for n in numbers:
        flights = flights.trigger(epoch(n), BOTH, now=float(n))
    return flights


def answered(flights: Flights, *numbers: int) -> Flights:
    for n in numbers:
        for subtask in BOTH:
            flights = flights.ack(epoch(n), subtask)
    return flights


def hopeless(flights: Flights) -> EpochId | None:
    return None if (found := flights.hopeless()) is None else found.id


def late(flights: Flights, cadence: Cadence, now: float) -> EpochId | None:
    return None if (found := flights.expired(cadence, now)) is None else found.id


def test_where_nothing_is_on_its_way_nothing_is_to_be_done_and_any_epoch_may_begin() -> None:
    empty = Flights(limit=1)

    assert (empty.none, empty.full, empty.ready(), empty.hopeless()) == (True, False, None, None)
    assert [p.id for p in empty.trigger(epoch(0), BOTH, 0.0).pending] == [epoch(0)]


def test_an_epoch_is_on_its_way_until_its_receipt_is_written() -> None:
    flying = Flights(limit=1).trigger(epoch(0), BOTH, 0.0)
    decided = answered(flying, 0).decided(epoch(0))

    assert [each.none for each in (flying, decided, decided.committed(epoch(0)))] == [False, False, True]


def test_nothing_is_ready_before_every_subtask_has_answered() -> None:
    half = in_flight(1).ack(epoch(1), 0)

    assert half.ready() is None
    assert half.ack(epoch(1), 0).ready() is None
    assert half.ack(epoch(1), 1).ready() == epoch(1)


def test_a_complete_epoch_waits_for_the_older_ones() -> None:
    assert answered(in_flight(1, 2), 2).ready() is None
    assert answered(in_flight(1, 2), 2, 1).ready() == epoch(1)


def test_it_waits_no_longer_for_one_that_is_aborted() -> None:
    assert answered(in_flight(1, 2), 2).abort(epoch(1)).ready() == epoch(2)


def test_the_next_is_decided_only_when_the_last_is_committed() -> None:
    deciding = answered(in_flight(1, 2), 1, 2).decided(epoch(1))

    assert deciding.ready() is None
    assert deciding.committed(epoch(0)).ready() is None
    assert deciding.committed(epoch(1)).ready() == epoch(2)


def test_one_that_is_being_committed_counts_as_in_flight() -> None:
    deciding = answered(in_flight(1, 2, limit=2), 1).decided(epoch(1))

    assert deciding.full
    assert not deciding.committed(epoch(1)).full


def test_with_a_limit_of_one_nothing_overlaps() -> None:
    with pytest.raises(Bug, match="cannot be triggered"):
        in_flight(1, 2, limit=1)


def test_numbers_only_grow() -> None:
    with pytest.raises(Bug, match="cannot be triggered"):
        in_flight(2, 1)
    with pytest.raises(Bug, match="cannot be triggered"):
        in_flight(0)


def test_only_what_is_ready_can_be_decided() -> None:
    with pytest.raises(Bug, match="was due"):
        in_flight(1).decided(epoch(1))


def test_late_and_foreign_answers_change_nothing() -> None:
    aborted = in_flight(1, 2).abort(epoch(1))

    assert answered(aborted, 1) == aborted
    assert aborted.ack(epoch(2, term=9), 0) == aborted
    assert aborted.ack(epoch(2), 7) == aborted


def test_an_epoch_that_was_declined_is_aborted_when_it_is_the_oldest() -> None:
    """Writers seal an aborted epoch at once, and those that still owe an older one must not seal that."""
    assert hopeless(in_flight(1, 2).decline(epoch(1), 0, "full")) == epoch(1)
    newer = in_flight(1, 2).decline(epoch(2), 0, "full")
    assert hopeless(newer) is None
    assert hopeless(newer.abort(epoch(1))) == epoch(2)
    assert hopeless(answered(newer, 1).decided(epoch(1))) == epoch(2)
    assert in_flight(1).decline(epoch(1), 7, "full") == in_flight(1)


def test_each_has_its_own_timeout() -> None:
    cadence = Cadence(interval=1.0, min_pause=0.0, timeout=10.0)

    flights = in_flight(1, 2)

    assert late(flights, cadence, 11.0) is None
    assert late(flights, cadence, 11.5) == epoch(1)
    assert late(flights.abort(epoch(1)), cadence, 11.5) is None
    assert late(flights.abort(epoch(1)), cadence, 13.0) == epoch(2)


def test_one_that_only_waits_for_the_commit_before_it_is_not_late() -> None:
    cadence = Cadence(interval=1.0, min_pause=0.0, timeout=10.0)
    waiting = answered(in_flight(1, 2), 1, 2).decided(epoch(1))

    assert late(waiting, cadence, 99.0) is None


def test_an_epoch_that_drains_is_alone_until_it_is_decided() -> None:
    draining = in_flight(1).trigger(epoch(2), BOTH, 2.0, Kind.SAVEPOINT)

    assert draining.full
    with pytest.raises(Bug, match="cannot be triggered"):
        draining.trigger(epoch(3), BOTH, 3.0)
    decided = answered(draining, 1).decided(epoch(1)).committed(epoch(1))
    assert not answered(decided, 2).decided(epoch(2)).full


def test_the_next_decided_epoch_takes_what_aborted_ones_have_sealed_and_nothing_twice() -> None:
    decision = Decide(epoch(3), last=epoch(1), seconds=0.0)

    assert [decision.takes(epoch(n)) for n in (1, 2, 3)] == [False, True, True]
    assert Decide(epoch(1), last=None, seconds=0.0).takes(epoch(0))
