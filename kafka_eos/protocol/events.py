"""Events that an attempt's state machine handles.

A subtask is a number. An event about an epoch of another term, or about an epoch that is over, changes nothing.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from kafka_eos.core.errors import LossCause
from kafka_eos.core.ids import EpochId
from kafka_eos.protocol.checkpoint_schedule import EpochKind
from kafka_eos.protocol.quiescence import FrameCounts


class Tick(Struct, frozen=True):
    """Time has passed."""


class MessageReceived(Struct, frozen=True):
    """A message from a subtask's processing thread arrived: it is making progress."""

    subtask: int


class HeartbeatReceived(Struct, frozen=True):
    """A worker's heartbeat: its processing thread made its last progress ``idle_for`` seconds ago.

    ``location``: the operator and the record that the thread is processing, as text; empty between two records.
    """

    subtask: int
    idle_for: float
    location: str


class ReceiverStalled(Struct, frozen=True):
    """The receiver stalled for some seconds, so silence of subtasks proves nothing."""

    seconds: float


class SubtaskReady(Struct, frozen=True):
    """A subtask has restored its state."""

    subtask: int


class EpochAcked(Struct, frozen=True):
    """A subtask has made its part of an epoch durable: state and prepared output."""

    epoch: EpochId
    subtask: int


class EpochDeclined(Struct, frozen=True):
    """A subtask cannot make its part of an epoch durable."""

    epoch: EpochId
    subtask: int
    reason: str


class AbortConfirmed(Struct, frozen=True):
    """A subtask no longer works on an aborted epoch: it uploads nothing of it, and its output is prepared."""

    epoch: EpochId
    subtask: int


class SubtaskLost(Struct, frozen=True):
    """A subtask's process is lost."""

    subtask: int
    why: str


class EpochCommitted(Struct, frozen=True):
    """A decided epoch has its receipt."""

    epoch: EpochId


class CleanupFinished(Struct, frozen=True):
    """The cleanup has finished."""


class DiscoveryFinished(Struct, frozen=True):
    """A search for splits has finished."""


class InputLossFound(Struct, frozen=True):
    """A search for splits, or the check before a decision, has found lost input."""

    cause: LossCause
    why: str


class InputVerified(Struct, frozen=True):
    """No input of an epoch was replaced."""

    epoch: EpochId


class CountsReceived(Struct, frozen=True):
    """A subtask has responded to a counting round."""

    round: int
    subtask: int
    counts: FrameCounts


class EndOfInputReached(Struct, frozen=True):
    """A subtask has read all of its bounded input."""

    subtask: int


class PendingRequests(Struct, frozen=True):
    """The requests of users that are pending now; each value replaces the one before.

    ``checkpoint``: the kind of checkpoint that a caller waits for. ``stop``: that checkpoint is the last one.
    ``cancel``: the job ends without another checkpoint.
    """

    checkpoint: EpochKind | None = None
    stop: bool = False
    cancel: bool = False


class BootstrapFinished(Struct, frozen=True):
    """No stream waits for a table any more."""


class StopSignalled(Struct, frozen=True):
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
