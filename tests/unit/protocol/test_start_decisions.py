"""May a job begin anew, given the signs of other incarnations of its name?"""

from __future__ import annotations

import itertools

import pytest

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState, taken_over
from kafka_eos.core.ids import Epoch, JobIdentity, Term
from kafka_eos.protocol.incarnations import RepetitionRefused, SavepointEpoch, StartAdmitted, StartRefused, admit

OWN, OTHER, THIRD = JobIdentity("0" * 12), JobIdentity("1" * 12), JobIdentity("2" * 12)
NOBODY: frozenset[JobIdentity | None] = frozenset()


def sign(
    identity: JobIdentity | None, state: IncarnationState = IncarnationState.ENDED, place: str = "here"
) -> IncarnationSign:
    return IncarnationSign(identity, place, "something", state=state)


def test_nobody_else_and_its_own_signs_stop_no_start() -> None:
    assert admit(OWN, [], NOBODY, False) == StartAdmitted()
    assert admit(OWN, [sign(OWN, IncarnationState.OPEN)], NOBODY, False) == StartAdmitted()


@pytest.mark.parametrize("identity", [OTHER, None])
@pytest.mark.parametrize("state", [IncarnationState.OPEN, IncarnationState.ENDED])
def test_another_incarnation_that_may_go_on_is_refused_whatever_it_has_open(
    identity: JobIdentity | None, state: IncarnationState
) -> None:
    found = sign(identity, state)

    assert admit(OWN, [sign(OWN), found], NOBODY, False) == StartRefused((found,))


def test_taking_over_succeeds_every_other_incarnation_once() -> None:
    found = [sign(OTHER, IncarnationState.OPEN), sign(OTHER, place="there"), sign(None), sign(OWN)]

    assert admit(OWN, found, NOBODY, True) == StartAdmitted((OTHER, None))


def test_an_heir_succeeds_what_has_ended_and_refuses_what_is_open() -> None:
    assert admit(OWN, [sign(OTHER)], frozenset({OTHER}), False) == StartAdmitted((OTHER,))
    open_ = [sign(OTHER, IncarnationState.OPEN), sign(OTHER, place="there")]
    assert admit(OWN, open_, frozenset({OTHER}), False) == StartRefused(tuple(open_))
    assert admit(OWN, [sign(OTHER), sign(THIRD)], frozenset({OTHER}), False) == StartRefused((sign(THIRD),))


def committed(identity: JobIdentity, epoch: int, state: IncarnationState = IncarnationState.ENDED) -> IncarnationSign:
    return IncarnationSign(identity, "here", "something", state=state, committed=Epoch(epoch))


@pytest.mark.parametrize("take_over", [False, True])
@pytest.mark.parametrize("state", IncarnationState)
def test_epochs_that_the_savepoint_lacks_are_not_repeated_unless_that_is_allowed(
    state: IncarnationState, take_over: bool
) -> None:
    signs = [committed(OTHER, 7, state), committed(OTHER, 5), sign(OTHER), committed(THIRD, 9, IncarnationState.OVER)]
    heir = frozenset({OTHER})

    refused = admit(OWN, signs, heir, take_over, SavepointEpoch(OTHER, Epoch(5)))

    assert refused == RepetitionRefused(Epoch(6), Epoch(7), (signs[0],))
    newest = admit(OWN, signs, heir, take_over, SavepointEpoch(OTHER, Epoch(7)))
    assert newest == admit(OWN, signs, heir, take_over, None)
    assert not isinstance(newest, RepetitionRefused)


def test_an_incarnation_that_is_over_stops_nobody_unless_something_of_it_is_open() -> None:
    """The mark is in one place; what it wrote elsewhere, such as group offsets, says nothing of its end."""
    assert (
        admit(OWN, [sign(OTHER, IncarnationState.OVER), sign(OTHER, place="group")], NOBODY, False) == StartAdmitted()
    )
    found = [sign(OTHER, IncarnationState.OVER), sign(OTHER, IncarnationState.OPEN, "there")]
    assert admit(OWN, found, NOBODY, False) == StartRefused(tuple(found))


def test_no_start_proceeds_past_an_open_incarnation_that_it_does_not_end() -> None:
    """All combinations of two signs: what may run on is refused, or is among those that are ended."""
    incarnations = [OWN, OTHER, None]
    for one, two in itertools.product(itertools.product(incarnations, IncarnationState), repeat=2):
        signs = [sign(*one), sign(*two)]
        for successor_of, take_over in itertools.product([NOBODY, frozenset({OTHER})], [True, False]):
            match admit(OWN, signs, successor_of, take_over):
                case StartRefused(signs=refused):
                    assert not take_over
                    assert OWN not in {each.identity for each in refused}
                case StartAdmitted(replaces=ended):
                    running = {each.identity for each in signs if each.state is IncarnationState.OPEN} - {OWN}
                    assert running <= set(ended)
                    assert take_over or not running


def test_an_incarnation_that_was_taken_over_is_told_where_and_how_to_go_back() -> None:
    reason = taken_over(JobContext("job", Term(1), {}, OWN), "cluster c")

    expected = f"another incarnation of job 'job' took over from this one ({OWN}) in cluster c, as requested"
    assert reason.startswith(expected)
    assert reason.endswith("create a savepoint of it and start from that in another directory, with --take-over")
