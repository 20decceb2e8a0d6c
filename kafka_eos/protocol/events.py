"""What an attempt can learn. A subtask is a number; an epoch of another term, or one that is over, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kafka_eos.core.ids import EpochId
from kafka_eos.protocol.checkpoint_schedule import Kind
from kafka_eos.protocol.quiescence import Counts


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A subtask has said something, whatever it was, but no pulse."""

    subtask: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """The process of a subtask lives. The thread that processes its rows took its last step ``standing`` seconds ago.

    ``at``: the operator and the record that it is at, in words; empty between two of them
    """

    subtask: int
    standing: float
    at: str


@dataclass(frozen=True, slots=True)
class Deaf:
    """For so many seconds nobody has listened to subtasks: that none was heard proves nothing."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Ready:
    """A subtask has restored its state."""

    subtask: int


@dataclass(frozen=True, slots=True)
class Acked:
    """A subtask has made its part of an epoch durable: state, and prepared output."""

    epoch: EpochId
    subtask: int


@dataclass(frozen=True, slots=True)
class Declined:
    """A subtask cannot make its part of an epoch durable."""

    epoch: EpochId
    subtask: int
    why: str


@dataclass(frozen=True, slots=True)
class AbortConfirmed:
    """A subtask works on an aborted epoch no more: it uploads nothing of it, and its output is prepared."""

    epoch: EpochId
    subtask: int


@dataclass(frozen=True, slots=True)
class Died:
    """A subtask is gone."""

    subtask: int
    why: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A decided epoch has its receipt."""

    epoch: EpochId


@dataclass(frozen=True, slots=True)
class Swept:
    """What ``Sweep`` asked for is done."""


@dataclass(frozen=True, slots=True)
class Littered:
    """An epoch has lost attempts of tasks, which may have left output open."""


@dataclass(frozen=True, slots=True)
class Found:
    """A search is over. Of an engine of batches: is there something to read, or was all read that is to be?"""

    something: bool = False
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """A subtask's answer in a round of counting."""

    round: int
    subtask: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class Reached:
    """A subtask has read all that a bounded run is to read."""

    subtask: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What others ask for now; each replaces the one before, so a request that is withdrawn is forgotten.

    ``wants``  a checkpoint that somebody waits for; ``stop``: it is to be the last; ``end``: the job is to end as it is
    """

    wants: Kind | None = None
    stop: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True)
class Filled:
    """No stream waits for a table any more."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A clean end was asked for, and cannot be withdrawn: a signal."""


Fact: TypeAlias = (
    Tick
    | Heard
    | Pulse
    | Deaf
    | Ready
    | Acked
    | Declined
    | AbortConfirmed
    | Died
    | Committed
    | Swept
    | Littered
    | Found
    | Counted
    | Reached
    | Asked
    | Filled
    | Stop
)
