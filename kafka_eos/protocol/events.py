"""Events that an attempt's state machine handles.

A subtask is a number. An event about an epoch of another term, or about an epoch that is over, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kafka_eos.core.errors import LossCause
from kafka_eos.core.ids import EpochId
from kafka_eos.protocol.checkpoint_schedule import EpochKind
from kafka_eos.protocol.quiescence import FrameCounts


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message from a subtask's processing thread arrived: it is making progress."""

    subtask: int


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A worker's heartbeat: its processing thread made its last progress ``idle_for`` seconds ago.

    ``location``: the operator and the record that the thread is processing, as text; empty between two records.
    """

    subtask: int
    idle_for: float
    location: str


@dataclass(frozen=True, slots=True)
class ReceiverStalled:
    """The receiver stalled for some seconds, so silence of subtasks proves nothing."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SubtaskReady:
    """A subtask has restored its state."""

    subtask: int


@dataclass(frozen=True, slots=True)
class EpochAcked:
    """A subtask has made its part of an epoch durable: state and prepared output."""

    epoch: EpochId
    subtask: int


@dataclass(frozen=True, slots=True)
class EpochDeclined:
    """A subtask cannot make its part of an epoch durable."""

    epoch: EpochId
    subtask: int
    reason: str


@dataclass(frozen=True, slots=True)
class AbortConfirmed:
    """A subtask no longer works on an aborted epoch: it uploads nothing of it, and its output is prepared."""

    epoch: EpochId
    subtask: int


@dataclass(frozen=True, slots=True)
class SubtaskLost:
    """A subtask's process is lost."""

    subtask: int
    why: str


@dataclass(frozen=True, slots=True)
class EpochCommitted:
    """A decided epoch has its receipt."""

    epoch: EpochId


@dataclass(frozen=True, slots=True)
class CleanupFinished:
    """The cleanup has finished."""


@dataclass(frozen=True, slots=True)
class DiscoveryFinished:
    """A search for splits has finished."""


@dataclass(frozen=True, slots=True)
class InputLossFound:
    """A search for splits, or the check before a decision, has found lost input."""

    cause: LossCause
    why: str


@dataclass(frozen=True, slots=True)
class InputVerified:
    """No input of an epoch was replaced."""

    epoch: EpochId


@dataclass(frozen=True, slots=True)
class CountsReceived:
    """A subtask has responded to a counting round."""

    round: int
    subtask: int
    counts: FrameCounts


@dataclass(frozen=True, slots=True)
class EndOfInputReached:
    """A subtask has read all of its bounded input."""

    subtask: int


@dataclass(frozen=True, slots=True)
class PendingRequests:
    """The requests of users that are pending now; each value replaces the one before.

    ``checkpoint``: the kind of checkpoint that a caller waits for. ``stop``: that checkpoint is the last one.
    ``cancel``: the job ends without another checkpoint.
    """

    checkpoint: EpochKind | None = None
    stop: bool = False
    cancel: bool = False


@dataclass(frozen=True, slots=True)
class BootstrapFinished:
    """No stream waits for a table any more."""


@dataclass(frozen=True, slots=True)
class StopSignalled:
    """A signal requested a clean stop, which cannot be withdrawn."""


AttemptEvent: TypeAlias = (
    Tick
    | MessageReceived
    | HeartbeatReceived
    | ReceiverStalled
    | SubtaskReady
    | EpochAcked
    | EpochDeclined
    | AbortConfirmed
    | SubtaskLost
    | EpochCommitted
    | CleanupFinished
    | DiscoveryFinished
    | InputLossFound
    | InputVerified
    | CountsReceived
    | EndOfInputReached
    | PendingRequests
    | BootstrapFinished
    | StopSignalled
)
