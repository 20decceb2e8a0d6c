"""Starts of one directory that nobody locks, beside another incarnation, in every order in which their steps can come.

A model of the directory (claims, bases, manifests) and of the marks, and of what ``Recovery.restore`` does with
both.
Rule: an incarnation that has decided an epoch keeps its registration, whichever start is refused, replaced or killed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice

import pytest

from kafka_eos.abc.incarnation import IncarnationState
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.protocol.incarnations import StartAdmitted, admit
from kafka_eos.protocol.recovery import NoDecidedEpoch, RecordListing, TermSuperseded, decided_epochs, resolve
from tests.unit.protocol.test_registration_races import A, B, Shared, Steps, Stopped, schedules

X, LAST = JobIdentity("e" * 12), JobIdentity("f" * 12)


@dataclass
class Directory(Shared):
    """Who claimed which term, what each term continues, and which incarnation has decided epoch 0 in it."""

    claims: dict[Term, JobIdentity] = field(default_factory=dict)
    bases: dict[Term, EpochId | None] = field(default_factory=dict)
    manifests: dict[EpochId, JobIdentity] = field(default_factory=dict)

    def facts(self) -> RecordListing:
        found = frozenset(self.manifests)
        return RecordListing(frozenset(self.claims), dict(self.bases), found, found)

    def withdraw(self, incarnations: set[JobIdentity]) -> None:
        for incarnation in incarnations:
            if self.marks.get(incarnation) is IncarnationState.ENDED:
                self.marks[incarnation] = IncarnationState.OVER


@dataclass(frozen=True)
class Start:
    """One start of the directory. The flags plant bugs."""

    me: JobIdentity
    base_first: bool = True
    alone: bool = True
    """Its identity is its own."""

    def steps(self, shared: Directory) -> Steps:
        term = max(shared.claims, default=Term(0)).next()
        shared.claims[term] = self.me
        yield
        match resolve(shared.facts(), term):
            case TermSuperseded():
                return
            case NoDecidedEpoch():
                yield from self._begins(shared, term)
            case _:
                newest = decided_epochs(shared.facts())[-1]
                self._goes_on(shared, shared.manifests[newest])
                yield
                shared.bases[term] = newest

    def _begins(self, shared: Directory, term: Term) -> Steps:
        before = {incarnation for claimed, incarnation in shared.claims.items() if claimed < term}
        if self.base_first:
            shared.bases[term] = None
            yield
        for look in range(2):
            match admit(self.me, shared.signs(), before, False):
                case StartAdmitted(replaces=others):
                    pass
                case _:
                    yield
                    shared.withdraw({self.me, *before} if self.alone else {self.me})
                    raise Stopped
            yield
            if not look:
                shared.hold(self.me)
                yield
        for other in others:
            assert other is not None
            shared.marks[other] = IncarnationState.OVER
        yield
        if not self.base_first:
            shared.bases[term] = None
            yield
        epoch = EpochId(Epoch(0), term)
        shared.manifests[epoch] = self.me
        yield
        if max(shared.claims) == term:
            self._goes_on(shared, self.me)

    @staticmethod
    def _goes_on(shared: Directory, incarnation: JobIdentity) -> None:
        if shared.marks[incarnation] is IncarnationState.OVER:
            shared.wrong.append(f"{incarnation} has decided and lost its mark")


def _x_ends(shared: Directory, then: Steps) -> Steps:
    """Somebody ends incarnation X, on purpose, and starts the directory."""
    shared.marks[X] = IncarnationState.OVER
    yield
    yield from then


def _runs(first: Start, second: Start, dies: int | None, which: int) -> set[str]:
    """What goes wrong in any order, with one more start after all of it. ``dies``: after so many steps of ``which``."""

    def make(shared: Shared) -> tuple[Steps, Steps]:
        assert isinstance(shared, Directory)
        steps = [first.steps(shared), _x_ends(shared, second.steps(shared))]
        steps[which] = islice(steps[which], dies)  # type: ignore[call-overload]
        return steps[0], steps[1]

    wrong: set[str] = set()
    for world in schedules(make, lambda: Directory({X: IncarnationState.ENDED})):
        assert isinstance(world, Directory)
        last = replace(first, me=LAST) if first.alone else first
        try:
            for _ in last.steps(world):
                pass
        except Stopped:
            world.wrong.append("the next start is refused")
        wrong |= set(world.wrong)
    return wrong


@pytest.mark.parametrize(("which", "dies"), [(0, None), *((which, dies) for which in (0, 1) for dies in range(1, 8))])
def test_who_has_decided_keeps_its_registration_and_the_next_start_goes_on(which: int, dies: int | None) -> None:
    assert _runs(Start(A), Start(B), dies, which) == set()


def test_with_one_identity_for_all_starts_a_refused_one_ends_its_successor() -> None:
    """A planted bug."""
    shared = Start(A, alone=False)

    assert f"{A} has decided and lost its mark" in _runs(shared, shared, None, 0)


def test_without_a_base_first_an_incarnation_that_is_ended_may_count_again() -> None:
    """A planted bug: whoever ends an earlier start dies before its base is written."""
    found = [_runs(Start(A), Start(B, base_first=False), dies, 1) for dies in (5, 6)]

    assert {f"{A} has decided and lost its mark"} in found
