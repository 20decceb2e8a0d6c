"""Nothing is under way when two rounds of questions say so, and not before."""

from __future__ import annotations

from kafka_eos.protocol.quiescence import Counts, Round, Standstill

BOTH = frozenset({0, 1})


def asked(*rounds: tuple[Counts, Counts]) -> Standstill:
    """After so many rounds of the answers of two workers."""
    state = Standstill(Round(0, BOTH))
    for number, answers in enumerate(rounds):
        for subtask, counts in enumerate(answers):
            state = state.counted(number, subtask, counts)
    return state


def idle(sent: int, processed: int) -> Counts:
    return Counts(True, sent, processed)


EVEN = (idle(3, 5), idle(4, 2))
"""What one has sent, another one has processed."""


def test_two_rounds_in_a_row_with_the_same_even_totals_are_quiet() -> None:
    assert asked(EVEN) == Standstill(Round(1, BOTH, before=(7, 7)))
    assert asked(EVEN, EVEN) == Standstill(round=None, quiet=True, served=False)


def test_a_frame_between_two_workers_is_under_way() -> None:
    uneven = (idle(4, 5), idle(4, 2))

    assert asked(uneven, uneven) == Standstill(Round(2, BOTH, before=(8, 7)))


def test_what_moved_between_two_rounds_is_asked_once_more() -> None:
    later = (idle(4, 5), idle(4, 3))

    assert asked(EVEN, later) == Standstill(Round(2, BOTH, before=(8, 8)))
    assert asked(EVEN, later, later).quiet


def test_one_worker_that_is_not_idle_spoils_the_round() -> None:
    """Its totals may be even, and what waits in it has not been processed."""
    for busy in ((Counts(False, 3, 5), idle(4, 2)), (idle(3, 5), Counts(False, 4, 2))):
        assert asked(EVEN, busy) == Standstill(Round(2, BOTH, before=None))
        assert not asked(busy, EVEN).quiet


def test_a_round_is_over_when_all_have_answered() -> None:
    """Even if those who have not would add nothing, as far as was known."""
    state = asked((idle(7, 7), idle(0, 0))).counted(1, 0, idle(7, 7))

    assert not state.quiet
    assert state.counted(1, 1, idle(0, 0)).quiet


def test_answers_to_another_round_and_of_strangers_do_not_count() -> None:
    fresh = asked(EVEN)

    assert fresh.counted(0, 0, idle(3, 5)) == fresh
    assert fresh.counted(2, 0, idle(3, 5)) == fresh
    assert fresh.counted(1, 2, idle(3, 5)) == fresh
    assert fresh.counted(1, 0, idle(3, 5)) != fresh


def test_nobody_is_asked_before_the_halt_and_when_it_is_quiet() -> None:
    assert [state.begun for state in (Standstill(), asked(), asked(EVEN, EVEN))] == [False, True, True]
    for state in (Standstill(), Standstill(quiet=True)):
        assert state.counted(0, 0, idle(0, 0)) == state
