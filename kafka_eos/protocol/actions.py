"""Actions that an attempt's state machine requests. The engine that executes them decides nothing."""

from __future__ import annotations

import enum
from typing import TypeAlias

from msgspec import Struct

from kafka_eos.core.errors import LossCause
from kafka_eos.core.ids import EpochId
from kafka_eos.protocol.checkpoint_schedule import EpochKind


class JobOutcome(enum.Enum):
    """The way a job ended: drained, not started, or cancelled."""

    DRAINED = "drained"
    """Everything that was read is committed."""
    NOT_STARTED = "left"
    """Stopped before all subtasks were ready: nothing was processed."""
    CANCELLED = "as it is"
    """Ended on request, without a final epoch."""


class StartProcessing(Struct, frozen=True):
    """Start reading: all subtasks are ready."""


class TriggerEpoch(Struct, frozen=True):
    """Send the epoch's barriers. It serves waiting requests if its ``kind`` does."""

    epoch: EpochId
    kind: EpochKind


class AbortEpoch(Struct, frozen=True):
    """Tell all subtasks that the epoch will not be decided.

    The output of an aborted epoch is committed with the next epoch that is decided. A final epoch is tried again; other
    requests that the epoch was to serve fail with ``reason``. ``timed_out``: the epoch took too long; otherwise it was
    declined.
    """

    epoch: EpochId
    kind: EpochKind
    reason: str
    timed_out: bool


class VerifyInput(Struct, frozen=True):
    """Check that no input was replaced under its name; ``InputVerified`` or ``InputLossFound`` follows."""

    epoch: EpochId


class DecideEpoch(Struct, frozen=True):
    """Publish the epoch's manifest. ``previous`` is the epoch decided before it."""

    epoch: EpochId
    previous: EpochId | None
    seconds: float

    def includes(self, sealed: EpochId) -> bool:
        """Return whether output sealed in an earlier, aborted epoch belongs to this one.

        It does, unless it belongs to an epoch that was decided earlier.
        """
        return self.previous is None or sealed > self.previous


class CommitEpoch(Struct, frozen=True):
    """Commit the output of a decided epoch in the background, and write its receipt."""

    epoch: EpochId


class NotifyCommit(Struct, frozen=True):
    """Tell the subtasks, and callers that wait for the epoch, that it is committed."""

    epoch: EpochId
    seconds: float


class RunCleanup(Struct, frozen=True):
    """Delete epochs that are not retained; ``CleanupFinished`` follows.

    ``find_leftovers``: also look for output that workers of earlier terms have opened, and abort it.
    """

    find_leftovers: bool


class PauseSources(Struct, frozen=True):
    """Pause all sources."""


class RequestCounts(Struct, frozen=True):
    """Ask every subtask how many frames it has sent and processed."""

    round: int


class ResumeSources(Struct, frozen=True):
    """Resume all sources."""


class DiscoverSplits(Struct, frozen=True):
    """Look for new splits; ``DiscoveryFinished`` or ``InputLossFound`` follows."""


class ReplaceAttempt(Struct, frozen=True):
    """End this attempt; the next one restores the last decided epoch.

    ``suspects``: subtasks that are lost or may never respond.
    """

    why: str
    suspects: frozenset[int]


class EndWithInputLost(Struct, frozen=True):
    """End this attempt and the job with ``InputLost``."""

    cause: LossCause
    why: str


class EndJob(Struct, frozen=True):
    """End this attempt and the job."""

    outcome: JobOutcome


AttemptAction: TypeAlias = (
    StartProcessing
    | TriggerEpoch
    | VerifyInput
    | AbortEpoch
    | DecideEpoch
    | CommitEpoch
    | NotifyCommit
    | RunCleanup
    | PauseSources
    | RequestCounts
    | ResumeSources
    | DiscoverSplits
    | ReplaceAttempt
    | EndWithInputLost
    | EndJob
)
