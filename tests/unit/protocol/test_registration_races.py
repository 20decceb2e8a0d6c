"""Two incarnations of one name, step by step, in every order in which their steps can come.

A model of what both share (marks and transactions, as a cluster keeps them) and of what each does with it. Rule: after
an incarnation was succeeded it commits nothing, and what is decided is ended by nobody who did not take the mark first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import pytest

from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState
from kafka_eos.core.ids import JobIdentity
from kafka_eos.protocol.incarnations import StartAdmitted, admit

A, B = JobIdentity("a" * 12), JobIdentity("b" * 12)
Steps = Generator[None, None, None]


class Stopped(Exception):
    """An incarnation ends: its registration is removed, or its start is refused."""


@dataclass
class Shared:
    """Marks by incarnation; transactions as ``[incarnation, state]``; who has begun to write, in this order."""

    marks: dict[JobIdentity, IncarnationState] = field(default_factory=dict)
    transactions: list[list[object]] = field(default_factory=list)
    begun: list[JobIdentity] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def signs(self) -> list[IncarnationSign]:
        open_ = {incarnation for incarnation, state in self.transactions if state in ("open", "prepared")}
        return [
            IncarnationSign(incarnation, "model", "", state=IncarnationState.OPEN if incarnation in open_ else state)
            for incarnation, state in self.marks.items()
        ]

    def hold(self, incarnation: JobIdentity) -> None:
        if self.marks.setdefault(incarnation, IncarnationState.ENDED) is IncarnationState.OVER:
            raise Stopped

    def fence(self, incarnation: JobIdentity) -> bool:
        """Abort what an incarnation has open; whether there was anything."""
        found = [each for each in self.transactions if each[0] == incarnation and each[1] in ("open", "prepared")]
        for each in found:
            each[1] = "aborted"
        if found and self.marks[incarnation] is not IncarnationState.OVER:
            self.wrong.append(f"{incarnation} was fenced though it holds its mark")
        return bool(found)

    def commit(self, incarnation: JobIdentity, transaction: list[object]) -> bool:
        if transaction[1] != "prepared":
            return False
        transaction[1] = "committed"
        if self.begun[-1] != incarnation:
            self.wrong.append(f"{incarnation} committed after {self.begun[-1]} had begun")
        return True


def epochs(shared: Shared, me: JobIdentity, count: int) -> Steps:
    """Write and commit ``count`` epochs; a transaction that was aborted ends the attempt, and the next one recovers."""
    while count:
        shared.hold(me)
        yield
        while count:
            mine: list[object] = [me, "open"]
            shared.transactions.append(mine)
            yield
            if mine[1] != "open":
                break
            mine[1] = "prepared"  # and the manifest is published
            yield
            shared.hold(me)
            yield
            if not shared.commit(me, mine):
                break
            count -= 1
            yield


def running(shared: Shared) -> Steps:
    yield from epochs(shared, A, 1)


def begins(shared: Shared, me: JobIdentity, take_over: bool) -> Steps:
    """What ``coordination.incarnations.Incarnations.begin_new`` does, and one epoch."""
    for look in range(2):
        match admit(me, shared.signs(), frozenset(), take_over):
            case StartAdmitted(replaces=others):
                pass
            case _:
                yield
                if me in shared.marks:
                    shared.marks[me] = IncarnationState.OVER
                raise Stopped
        yield
        if not look:
            shared.hold(me)
            yield
    for other in others:
        assert other is not None
        shared.marks[other] = IncarnationState.OVER
        yield
        while shared.fence(other):
            yield
        yield
    shared.begun.append(me)
    yield from epochs(shared, me, 1)


def schedules(make: Callable[[Shared], tuple[Steps, Steps]], shared: Callable[[], Shared]) -> Iterator[Shared]:
    """Every order of the steps of two programs, each run from the start; yields what is shared at the end."""
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        order = waiting.pop()
        world = shared()
        programs = make(world)
        alive = [True, True]
        for who in order:
            _step(programs, alive, who)
        while alive[0] and alive[1]:
            waiting.append((*order, 1))
            order = (*order, 0)
            _step(programs, alive, 0)
        for who in (0, 1):
            while alive[who]:
                _step(programs, alive, who)
        yield world


def _step(programs: tuple[Steps, Steps], alive: list[bool], who: int) -> None:
    try:
        next(programs[who])
    except (StopIteration, Stopped):
        alive[who] = False


def one_runs() -> Shared:
    return Shared({A: IncarnationState.ENDED}, begun=[A])


def violations(make: Callable[[Shared], tuple[Steps, Steps]], shared: Callable[[], Shared]) -> tuple[set[str], int]:
    found: set[str] = set()
    count = 0
    for world in schedules(make, shared):
        count += 1
        found |= set(world.wrong)
    return found, count


def test_who_is_taken_over_commits_nothing_afterwards_in_any_order() -> None:
    found, count = violations(lambda shared: (running(shared), begins(shared, B, True)), one_runs)

    assert count > 100
    assert found == set()


def test_a_start_that_is_refused_ends_nothing_in_any_order() -> None:
    for world in schedules(lambda shared: (running(shared), begins(shared, B, False)), one_runs):
        assert world.begun == [A]
        assert [state for _, state in world.transactions] == ["committed"]


def test_of_two_that_begin_at_the_same_moment_one_at_most_does() -> None:
    def both(shared: Shared) -> tuple[Steps, Steps]:
        return begins(shared, A, False), begins(shared, B, False)

    begun = [world.begun for world in schedules(both, Shared)]

    assert all(len(each) <= 1 for each in begun)
    assert [A] in begun and [B] in begun


def test_two_that_refuse_each_other_leave_nothing_that_refuses_the_next() -> None:
    def both(shared: Shared) -> tuple[Steps, Steps]:
        return begins(shared, A, False), begins(shared, B, False)

    refused = [world.signs() for world in schedules(both, Shared) if not world.begun]

    assert refused
    assert all(admit(JobIdentity("c" * 12), signs, frozenset(), False) == StartAdmitted() for signs in refused)


def _fences_first(shared: Shared) -> Steps:
    """A planted bug: the open output is ended before the mark is taken."""
    yield
    shared.fence(A)
    shared.wrong.clear()  # it is the later commit that this is about
    yield
    shared.marks[A] = IncarnationState.OVER
    shared.begun.append(B)


def _looks_before_it_prepares(shared: Shared) -> Steps:
    """A planted bug: the mark is looked at when the epoch begins, and not after its manifest."""
    shared.hold(A)
    yield
    mine: list[object] = [A, "open"]
    shared.transactions.append(mine)
    yield
    if mine[1] == "open":
        mine[1] = "prepared"
        yield
        shared.commit(A, mine)


@pytest.mark.parametrize(
    "planted",
    [
        lambda shared: (running(shared), _fences_first(shared)),
        lambda shared: (_looks_before_it_prepares(shared), begins(shared, B, True)),
    ],
    ids=["fences first", "looks too early"],
)
def test_the_model_finds_a_handshake_in_the_wrong_order(planted: Callable[[Shared], tuple[Steps, Steps]]) -> None:
    found, _ = violations(planted, one_runs)

    assert any("committed after" in each for each in found)
