"""Registrations of incarnations as rows of a table, and what they mean for an incarnation that checks them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState, taken_over
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import Epoch, JobIdentity, Term


@dataclass(frozen=True, slots=True)
class Registration:
    """An incarnation's registration in a database: its newest term, and whether it was taken over."""

    identity: JobIdentity | None
    term: Term
    taken_over: bool


@dataclass(frozen=True, slots=True)
class OpenStage:
    """Staged output of an incarnation that has not ended. ``age`` in seconds."""

    identity: JobIdentity | None
    name: str
    term: Term
    age: float


def list_signs(
    scope: str,
    marks: Sequence[Registration],
    open_: Sequence[OpenStage],
    committed: Mapping[JobIdentity | None, Epoch | None],
) -> list[IncarnationSign]:
    """Return the signs of every incarnation that is registered or has staged output; ``committed``: newest epochs."""
    marked: Mapping[JobIdentity | None, Registration] = {mark.identity: mark for mark in marks}
    newest = {each.identity: each for each in open_}
    found = []
    for identity in dict.fromkeys([*newest, *marked]):
        mark, staged, last = marked.get(identity), newest.get(identity), committed.get(identity)
        if staged is not None:
            found.append(
                IncarnationSign(identity, scope, staged.name, staged.term, IncarnationState.OPEN, staged.age, last)
            )
        else:
            state = IncarnationState.OVER if mark is not None and mark.taken_over else IncarnationState.ENDED
            found.append(
                IncarnationSign(identity, scope, "its mark", None if mark is None else mark.term, state, committed=last)
            )
    return found


def ensure_registered(ctx: JobContext, scope: str, mark: Registration) -> None:
    """Raise Fenced if the registration was taken over or belongs to a newer term."""
    if mark.taken_over:
        raise Fenced(taken_over(ctx, scope))
    if ctx.term < mark.term:
        raise Fenced(f"term {mark.term} of job {ctx.job!r} writes to {scope}; this is term {ctx.term}")
