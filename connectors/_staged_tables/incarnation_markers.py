"""Marks of lives as rows of a table: what they say of the lives of a job's name, and to the life that looks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import Life, LifeState, taken_over
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import JobIdentity, Term


@dataclass(frozen=True, slots=True)
class Mark:
    """What is kept of one life: its newest term, and whether its mark was taken away."""

    identity: JobIdentity | None
    term: Term
    over: bool


@dataclass(frozen=True, slots=True)
class Open:
    """Something that a life has staged and not ended. ``age`` in seconds."""

    identity: JobIdentity | None
    name: str
    term: Term
    age: float


def signs(scope: str, marks: Sequence[Mark], open_: Sequence[Open]) -> list[Life]:
    """Every life that shows, by what it has open, or by its mark."""
    marked: Mapping[JobIdentity | None, Mark] = {mark.identity: mark for mark in marks}
    newest = {each.identity: each for each in open_}
    found = []
    for identity in dict.fromkeys([*newest, *marked]):
        mark, staged = marked.get(identity), newest.get(identity)
        if staged is not None:
            found.append(Life(identity, scope, staged.name, staged.term, LifeState.OPEN, staged.age))
        else:
            state = LifeState.OVER if mark is not None and mark.over else LifeState.ENDED
            found.append(Life(identity, scope, "its mark", None if mark is None else mark.term, state))
    return found


def expect_held(ctx: JobContext, scope: str, mark: Mark) -> None:
    """Raise Fenced if the mark, as it stands now, says that the time of ``ctx`` is over."""
    if mark.over:
        raise Fenced(taken_over(ctx, scope))
    if ctx.term < mark.term:
        raise Fenced(f"term {mark.term} of job {ctx.job!r} writes to {scope}; this is term {ctx.term}")
