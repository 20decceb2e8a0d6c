"""May a job begin anew, given the signs of other lives of its name?"""

from __future__ import annotations

import itertools

import pytest

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import Life, LifeState, taken_over
from kafka_eos.core.ids import JobIdentity, Term
from kafka_eos.protocol.incarnations import Proceed, Refuse, admit

OWN, OTHER, THIRD = JobIdentity("0" * 12), JobIdentity("1" * 12), JobIdentity("2" * 12)
NOBODY: frozenset[JobIdentity | None] = frozenset()


def sign(identity: JobIdentity | None, state: LifeState = LifeState.ENDED, place: str = "here") -> Life:
    return Life(identity, place, "something", state=state)


def test_nobody_else_and_its_own_signs_stop_no_start() -> None:
    assert admit(OWN, [], NOBODY, False) == Proceed()
    assert admit(OWN, [sign(OWN, LifeState.OPEN)], NOBODY, False) == Proceed()


@pytest.mark.parametrize("identity", [OTHER, None])
@pytest.mark.parametrize("state", [LifeState.OPEN, LifeState.ENDED])
def test_another_life_that_may_go_on_is_refused_whatever_it_has_open(
    identity: JobIdentity | None, state: LifeState
) -> None:
    found = sign(identity, state)

    assert admit(OWN, [sign(OWN), found], NOBODY, False) == Refuse((found,))


def test_taking_over_succeeds_every_other_life_once() -> None:
    found = [sign(OTHER, LifeState.OPEN), sign(OTHER, place="there"), sign(None), sign(OWN)]

    assert admit(OWN, found, NOBODY, True) == Proceed((OTHER, None))


def test_an_heir_succeeds_what_has_ended_and_refuses_what_is_open() -> None:
    assert admit(OWN, [sign(OTHER)], frozenset({OTHER}), False) == Proceed((OTHER,))
    open_ = [sign(OTHER, LifeState.OPEN), sign(OTHER, place="there")]
    assert admit(OWN, open_, frozenset({OTHER}), False) == Refuse(tuple(open_))
    assert admit(OWN, [sign(OTHER), sign(THIRD)], frozenset({OTHER}), False) == Refuse((sign(THIRD),))


def test_a_life_that_is_over_stops_nobody_unless_something_of_it_is_open() -> None:
    """The mark is in one place; what it wrote elsewhere, such as group offsets, says nothing of its end."""
    assert admit(OWN, [sign(OTHER, LifeState.OVER), sign(OTHER, place="group")], NOBODY, False) == Proceed()
    found = [sign(OTHER, LifeState.OVER), sign(OTHER, LifeState.OPEN, "there")]
    assert admit(OWN, found, NOBODY, False) == Refuse(tuple(found))


def test_no_start_proceeds_past_an_open_life_that_it_does_not_end() -> None:
    """All combinations of two signs: what may run on is refused, or is among those that are ended."""
    lives = [OWN, OTHER, None]
    for one, two in itertools.product(itertools.product(lives, LifeState), repeat=2):
        signs = [sign(*one), sign(*two)]
        for heir_of, take_over in itertools.product([NOBODY, frozenset({OTHER})], [True, False]):
            match admit(OWN, signs, heir_of, take_over):
                case Refuse(signs=refused):
                    assert not take_over
                    assert OWN not in {each.identity for each in refused}
                case Proceed(succeeds=ended):
                    running = {each.identity for each in signs if each.state is LifeState.OPEN} - {OWN}
                    assert running <= set(ended)
                    assert take_over or not running


def test_a_life_that_was_taken_over_is_told_where_and_how_to_go_back() -> None:
    reason = taken_over(JobContext("job", Term(1), {}, OWN), "cluster c")

    assert reason.startswith(f"another life of job 'job' took over from this one ({OWN}) in cluster c, on purpose")
    assert reason.endswith("make a savepoint of it and begin with that in a directory of its own, with --take-over")
