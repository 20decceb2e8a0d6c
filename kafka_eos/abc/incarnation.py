"""The traces of a job's incarnations in external systems; see docs/architecture.md, "Incarnations".

Rule: to retire an incarnation, first remove its registration, then look for its open output.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec import Struct

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term


class IncarnationState(enum.Enum):
    """The state of an incarnation according to its trace: OPEN, ENDED or OVER."""

    OPEN = "open"
    """The incarnation has output that is neither committed nor aborted: it may be running."""
    ENDED = "ended"
    """The incarnation has no open output here; it may still be running."""
    OVER = "over"
    """The incarnation was retired: its registration was removed."""


class IncarnationSign(Struct, frozen=True):
    """A sign that an incarnation of the job has used a sink or source.

    ``identity``  None if the name of the trace contains no identity
    ``place``     where it was found, such as ``kafka:host:9092``
    ``detail``    what was found, for display
    ``term``      the newest term found, if any
    ``age``       seconds since the newest sign, if known
    ``committed`` the newest epoch that is committed there, if known
    ``process``   host and id of the process that last led it, if known
    """

    identity: JobIdentity | None
    place: str
    detail: str
    term: Term | None = None
    state: IncarnationState = IncarnationState.ENDED
    age: float | None = None
    committed: Epoch | None = None
    process: tuple[str, int] | None = None


class SupportsRegistration(ABC):
    """An ability that a committer inherits if it registers each incarnation in its system.

    An incarnation whose registration is gone must stop.
    """

    @abstractmethod
    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        """List the signs of all incarnations of the job, this one included.

        Raises Retryable if they cannot be listed now.
        """

    @abstractmethod
    def register(self, ctx: JobContext) -> None:
        """Register this incarnation. Raises Fenced if another incarnation removed its registration.

        Called at each recovery, and between each decision and its first commit. A successor removes the registration
        before it looks for open output. So either the successor finds what this incarnation has prepared, or this
        incarnation finds its registration gone.
        """

    @abstractmethod
    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """Remove an incarnation's registration, then abort and fence all it has open. Return names.

        Called for another incarnation, or for this one if its start is refused before it has decided anything.
        """


class SupportsLossCheck(ABC):
    """An ability that a committer inherits if it can detect that its system was restored to a state before the
    checkpoints."""

    @abstractmethod
    def find_missing_commits(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        """Return what the system no longer has of this incarnation; None if nothing is missing.

        ``committables`` are those of the newest epoch, up to ``newest``, with some in the committer's scope; none if no
        such epoch is known. Recovery calls it before its term leaves anything in the system, and only if nothing of an
        epoch without a receipt is committed there. So missing output shows that the system was restored to an older
        copy. If the system has a later epoch, the checkpoints were restored: say that instead.

        Note: the system may be a new one that replaces the old one on purpose; if that is visible, return None. Raises
        Retryable if this cannot be determined now.
        """


def taken_over(ctx: JobContext, place: str) -> str:
    """Return the message of an incarnation whose registration in ``place`` was removed, with the remedy."""
    return (
        f"another incarnation of job {ctx.job!r} took over from this one ({ctx.identity}) in {place}, as requested "
        "(--take-over, --from a savepoint of this one, or doctor --abort-incarnation). This one may not write any "
        "more. To return to it, create a savepoint of it and start from that in another directory, with --take-over"
    )
