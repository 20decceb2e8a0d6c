"""Decide whether a job that starts without checkpoints may start, given the signs of other incarnations of its name.

Pure. An *incarnation* of a job's name is everything that started from one checkpoint directory; the names of all its
output contain its identity.
Rule: a start in an empty directory is never assumed to be the only one. Output of another incarnation blocks the start,
unless one of these holds:
- that incarnation is over;
- this start is its successor and nothing of it is open;
- the user takes over on purpose.

A start from a savepoint also may not repeat epochs that the savepoint's incarnation has committed after it, unless the
user allows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState
from kafka_eos.core.ids import Epoch, JobIdentity


class StartAdmitted(Struct, frozen=True):
    """The start may proceed after ending the incarnations it replaces. None stands for writers without an identity."""

    replaces: tuple[JobIdentity | None, ...] = ()


class StartRefused(Struct, frozen=True):
    """The start may not proceed: other incarnations of the job name may be running."""

    signs: tuple[IncarnationSign, ...]


class SavepointEpoch(Struct, frozen=True):
    """The incarnation that a savepoint was taken of, and its epoch."""

    identity: JobIdentity
    epoch: Epoch


class RepetitionRefused(Struct, frozen=True):
    """The start may not proceed: its output would repeat these epochs, which ``signs`` show as committed."""

    first: Epoch
    last: Epoch
    signs: tuple[IncarnationSign, ...]


def admit(
    own: JobIdentity,
    signs: Sequence[IncarnationSign],
    successor_of: Collection[JobIdentity],
    take_over: bool,
    not_before: SavepointEpoch | None = None,
) -> StartAdmitted | StartRefused | RepetitionRefused:
    """Decide whether incarnation ``own``, which has decided nothing yet, may start.

    ``successor_of``: incarnations whose savepoint it starts from. ``not_before``: the savepoint's epoch, whose
    incarnation must not have committed a later one; None if output may be repeated.
    """
    if not_before is not None:
        later = {
            sign: sign.committed
            for sign in signs
            if sign.identity == not_before.identity and sign.committed is not None and sign.committed > not_before.epoch
        }
        if later:
            return RepetitionRefused(not_before.epoch.next(), max(later.values()), tuple(later))
    others = [sign for sign in signs if sign.identity != own]
    ended = _over(others)
    alive = [sign for sign in others if sign.identity not in ended]
    open_ = {sign.identity for sign in alive if sign.state is IncarnationState.OPEN}
    strangers = [sign for sign in alive if sign.identity not in successor_of or sign.identity in open_]
    if strangers and not take_over:
        return StartRefused(tuple(strangers))
    return StartAdmitted(tuple(dict.fromkeys(sign.identity for sign in alive)))


def _over(signs: Iterable[IncarnationSign]) -> set[JobIdentity | None]:
    """Return the incarnations that were retired in at least one sink and have nothing open anywhere."""
    signs = list(signs)
    over = {sign.identity for sign in signs if sign.state is IncarnationState.OVER}
    return over - {sign.identity for sign in signs if sign.state is IncarnationState.OPEN}
