"""Decide whether a job that begins anew may begin, given the signs of other lives of its name.

Pure. A *life* of a job's name is what one checkpoint directory began; its identity is in the name of all its output.
Rule: a start in an empty directory is never taken for the only one. What another life has left stops it, unless that
life is over, or this start is its heir and nothing of it is open, or somebody takes over on purpose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kafka_eos.abc.incarnation import Life, LifeState
from kafka_eos.core.ids import JobIdentity


@dataclass(frozen=True, slots=True)
class Proceed:
    """Begin, after ending for good the lives that this one succeeds. None is whoever wrote without an identity."""

    succeeds: tuple[JobIdentity | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not begin: ``signs`` are of lives that may go on."""

    signs: tuple[Life, ...]


def admit(
    own: JobIdentity, signs: Sequence[Life], heir_of: Collection[JobIdentity | None], take_over: bool
) -> Proceed | Refuse:
    """What a start of life ``own``, which has decided nothing yet, may do.

    ``heir_of``: lives whose savepoint it begins with.
    """
    others = [sign for sign in signs if sign.identity != own]
    ended = _over(others)
    alive = [sign for sign in others if sign.identity not in ended]
    open_ = {sign.identity for sign in alive if sign.state is LifeState.OPEN}
    strangers = [sign for sign in alive if sign.identity not in heir_of or sign.identity in open_]
    if strangers and not take_over:
        return Refuse(tuple(strangers))
    return Proceed(tuple(dict.fromkeys(sign.identity for sign in alive)))


def _over(signs: Iterable[Life]) -> set[JobIdentity | None]:
    """Lives that somebody ended for good, in one place at least, and that have nothing open anywhere."""
    signs = list(signs)
    over = {sign.identity for sign in signs if sign.state is LifeState.OVER}
    return over - {sign.identity for sign in signs if sign.state is LifeState.OPEN}
