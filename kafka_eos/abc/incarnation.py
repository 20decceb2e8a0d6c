"""What outside systems know of the lives of a job's name; see docs/architecture.md, "Lives".

Rule: whoever ends a life takes its mark away first, and looks for its open output then.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.core.ids import EpochId, JobIdentity, Term


class LifeState(enum.Enum):
    """What a sign of a life says about it."""

    OPEN = "open"
    """Output of it is not ended: it may be running."""
    ENDED = "ended"
    """Nothing of it is open here; it may go on all the same."""
    OVER = "over"
    """Somebody ended it for good: its mark was taken away."""


@dataclass(frozen=True, slots=True)
class Life:
    """A sign that a life of a job's name has worked with a sink or a source.

    ``identity``  None if what was found has none in its name
    ``place``     where it was found, such as ``kafka:host:9092``
    ``detail``    what was found, for people
    ``term``      the newest term that shows, if one does
    ``age``       seconds since the newest sign, if that shows
    """

    identity: JobIdentity | None
    place: str
    detail: str
    term: Term | None = None
    state: LifeState = LifeState.ENDED
    age: float | None = None


@runtime_checkable
class TellsLives(Protocol):
    """A committer or a source that knows which lives of a job's name worked with the same outside system."""

    def lives(self, ctx: JobContext) -> Sequence[Life]:
        """Every sign of any life of ``ctx.job``, this one's included. Raises Retryable if nobody can tell now."""


@runtime_checkable
class HoldsLife(TellsLives, Protocol):
    """A committer that keeps one mark for each life of a job's name; a life whose mark was taken away stops."""

    def hold(self, ctx: JobContext) -> None:
        """Leave the mark of this life, if there is none yet. Raises Fenced if another life took it away.

        Called at each recovery, and between each decision and its first commit: whoever takes a mark away looks for
        open output afterwards, so either that look finds what this life has prepared, or this life finds its mark gone.
        """

    def succeed(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """Take the mark of a life away, *then* undo and fence all that it has open. Returns names.

        Of another life, or of this one if its start is refused before it has decided anything.
        """


@runtime_checkable
class Remembers(Protocol):
    """A committer whose system still tells, after the receipt, how far a life has come there."""

    def lacks(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        """What is not there any more of this life, which has finished ``newest``; None if nothing is missing.

        ``committables`` are those of the newest epoch that had some in the committer's scope, up to ``newest``; none if
        no such epoch is known. Asked at each recovery, before its term leaves anything in the system, and only if
        nothing of an epoch without a receipt is committed there. So what is missing shows that the system was put back
        to an older copy; and if it has a later epoch, say that: the checkpoints were. The trap: what is there may be
        another one, which somebody has made on purpose; if that shows, the answer is None.
        Raises Retryable if nobody can tell now.
        """


def taken_over(ctx: JobContext, place: str) -> str:
    """Why the life of ``ctx`` stops when its mark in ``place`` was taken away, and what there is to do."""
    return (
        f"another life of job {ctx.job!r} took over from this one ({ctx.identity}) in {place}, on purpose (--take-"
        "over, --from a savepoint of this one, doctor --end-life). This one may not write any more; to go back to it, "
        "make a savepoint of it and begin with that in a directory of its own, with --take-over"
    )
