"""Registrations of incarnations as rows of a table, and what they mean for an incarnation that checks them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState, taken_over
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import Epoch, JobIdentity, Term


class Registration(Struct, frozen=True):
    """An incarnation's registration in a database: its newest term, and whether it was taken over."""

    identity: JobIdentity | None
    term: Term
    taken_over: bool


class OpenStage(Struct, frozen=True):
    """Staged output of an incarnation that has not ended. ``age`` in seconds."""

    identity: JobIdentity | None
    name: str
    term: Term
    age: float


def list_signs(
    scope: str,
    registrations: Sequence[Registration],
    open_: Sequence[OpenStage],
    committed: Mapping[JobIdentity | None, Epoch | None],
) -> list[IncarnationSign]:
    """Return the signs of every incarnation that is registered or has staged output; ``committed``: newest epochs."""
    registered: Mapping[JobIdentity | None, Registration] = {each.identity: each for each in registrations}
    newest = {each.identity: each for each in open_}
    found = []
    for identity in dict.fromkeys([*newest, *registered]):
        registration, staged, last = registered.get(identity), newest.get(identity), committed.get(identity)
        if staged is not None:
            found.append(
                IncarnationSign(identity, scope, staged.name, staged.term, IncarnationState.OPEN, staged.age, last)
            )
        else:
            over = registration is not None and registration.taken_over
            state = IncarnationState.OVER if over else IncarnationState.ENDED
            term = None if registration is None else registration.term
            found.append(IncarnationSign(identity, scope, "its registration", term, state, committed=last))
    return found


def ensure_registered(ctx: JobContext, scope: str, registration: Registration) -> None:
    """Raise Fenced if the registration was taken over or belongs to a newer term."""
    if registration.taken_over:
        raise Fenced(taken_over(ctx, scope))
    if ctx.term < registration.term:
        raise Fenced(f"term {registration.term} of job {ctx.job!r} writes to {scope}; this is term {ctx.term}")
