"""Actions that an attempt's state machine requests. The engine that executes them decides nothing."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

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


@dataclass(frozen=True, slots=True)
class StartProcessing:
    """Start reading: all subtasks are ready."""


@dataclass(frozen=True, slots=True)
class TriggerEpoch:
    """Send the epoch's barriers. It serves waiting requests if its ``kind`` does."""

    epoch: EpochId
    kind: EpochKind


@dataclass(frozen=True, slots=True)
class AbortEpoch:
    """Tell all subtasks that the epoch will not be decided.

    The output of an aborted epoch is committed with the next epoch that is decided. A final epoch is tried again; other
    requests that the epoch was to serve fail with ``reason``. ``timed_out``: the epoch took too long; otherwise it was
    declined.
    """

    epoch: EpochId
    kind: EpochKind
    reason: str
    timed_out: bool


@dataclass(frozen=True, slots=True)
class VerifyInput:
    """Check that no input was replaced under its name; ``InputVerified`` or ``InputLossFound`` follows."""

    epoch: EpochId


@dataclass(frozen=True, slots=True)
class DecideEpoch:
    """Publish the epoch's manifest. ``previous`` is the epoch decided before it."""

    epoch: EpochId
    previous: EpochId | None
    seconds: float

    def includes(self, sealed: EpochId) -> bool:
        """Return whether output sealed in an earlier, aborted epoch belongs to this one.

        It does, unless it belongs to an epoch that was decided earlier.
        """
        return self.previous is None or sealed > self.previous


@dataclass(frozen=True, slots=True)
class CommitEpoch:
    """Commit the output of a decided epoch in the background, and write its receipt."""

    epoch: EpochId


@dataclass(frozen=True, slots=True)
class NotifyCommit:
    """Tell the subtasks, and callers that wait for the epoch, that it is committed."""

    epoch: EpochId
    seconds: float


@dataclass(frozen=True, slots=True)
class RunCleanup:
    """Delete epochs that are not retained; ``CleanupFinished`` follows.

    ``find_leftovers``: also look for output that workers of earlier terms have opened, and abort it.
    """

    find_leftovers: bool


@dataclass(frozen=True, slots=True)
class PauseSources:
    """Pause all sources."""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Ask every subtask how many frames it has sent and processed."""

    round: int


@dataclass(frozen=True, slots=True)
class ResumeSources:
    """Resume all sources."""


@dataclass(frozen=True, slots=True)
class DiscoverSplits:
    """Look for new splits; ``DiscoveryFinished`` or ``InputLossFound`` follows."""


@dataclass(frozen=True, slots=True)
class ReplaceAttempt:
    """End this attempt; the next one restores the last decided epoch.

    ``suspects``: subtasks that are lost or may never respond.
    """

    why: str
    suspects: frozenset[int]


@dataclass(frozen=True, slots=True)
class EndWithInputLost:
    """End this attempt and the job with ``InputLost``."""

    cause: LossCause
    why: str


@dataclass(frozen=True, slots=True)
class EndJob:
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
