"""Nothing is under way when two rounds of questions say so, and not before."""

from __future__ import annotations

from kafka_eos.protocol.quiescence import CountingRound, FrameCounts, Quiescence

BOTH = frozenset({0, 1})


def asked(*rounds: tuple[FrameCounts, FrameCounts]) -> Quiescence:
    """After so many rounds of the answers of two workers."""
    state = Quiescence(CountingRound(0, BOTH))
    for number, answers in enumerate(rounds):
        for subtask, counts in enumerate(answers):
            state = state.add_counts(number, subtask, counts)
    return state


def idle(sent: int, processed: int) -> FrameCounts:
    return FrameCounts(True, sent, processed)


EVEN = (idle(3, 5), idle(4, 2))
"""What one has sent, another one has processed."""


def test_two_rounds_in_a_row_with_the_same_even_totals_are_quiet() -> None:
    assert asked(EVEN) == Quiescence(CountingRound(1, BOTH, previous_total=(7, 7)))
    assert asked(EVEN, EVEN) == Quiescence(round=None, is_reached=True, is_used=False)


def test_a_frame_between_two_workers_is_under_way() -> None:
    uneven = (idle(4, 5), idle(4, 2))

    assert asked(uneven, uneven) == Quiescence(CountingRound(2, BOTH, previous_total=(8, 7)))


def test_what_moved_between_two_rounds_is_asked_once_more() -> None:
    later = (idle(4, 5), idle(4, 3))

    assert asked(EVEN, later) == Quiescence(CountingRound(2, BOTH, previous_total=(8, 8)))
    assert asked(EVEN, later, later).is_reached


def test_one_worker_that_is_not_idle_spoils_the_round() -> None:
    """Its totals may be even, and what waits in it has not been processed."""
    for busy in ((FrameCounts(False, 3, 5), idle(4, 2)), (idle(3, 5), FrameCounts(False, 4, 2))):
        assert asked(EVEN, busy) == Quiescence(CountingRound(2, BOTH, previous_total=None))
        assert not asked(busy, EVEN).is_reached


def test_a_round_is_over_when_all_have_answered() -> None:
    """Even if those who have not would add nothing, as far as was known."""
    state = asked((idle(7, 7), idle(0, 0))).add_counts(1, 0, idle(7, 7))

    assert not state.is_reached
    assert state.add_counts(1, 1, idle(0, 0)).is_reached


def test_answers_to_another_round_and_of_strangers_do_not_count() -> None:
    fresh = asked(EVEN)

    assert fresh.add_counts(0, 0, idle(3, 5)) == fresh
    assert fresh.add_counts(2, 0, idle(3, 5)) == fresh
    assert fresh.add_counts(1, 2, idle(3, 5)) == fresh
    assert fresh.add_counts(1, 0, idle(3, 5)) != fresh


def test_nobody_is_asked_before_the_halt_and_when_it_is_quiet() -> None:
    assert [state.is_started for state in (Quiescence(), asked(), asked(EVEN, EVEN))] == [False, True, True]
    for state in (Quiescence(), Quiescence(is_reached=True)):
        assert state.add_counts(0, 0, idle(0, 0)) == state
