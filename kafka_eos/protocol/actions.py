"""What an attempt can be told to do. Whoever carries it out decides nothing."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from kafka_eos.core.ids import EpochId
from kafka_eos.protocol.checkpoint_schedule import Kind


class Ending(enum.Enum):
    """How an attempt ends that is not replaced."""

    DRAINED = "drained"
    """All that was read is committed."""
    LEFT = "left"
    """Before all subtasks were ready: none has begun."""
    AS_IT_IS = "as it is"
    """On request, without another epoch."""


@dataclass(frozen=True, slots=True)
class Begin:
    """All subtasks are ready: they may read."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Send the epoch's barriers, or run its batch. Requests that wait are served by it if its ``kind`` serves."""

    epoch: EpochId
    kind: Kind


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell all subtasks that the epoch will not be decided: each then has ``AbortConfirmed``.

    Its output goes into the next one that is decided.

    Of those whom it was to serve: a last one is tried again, and the others are told ``why``. ``late``: it took too
    long; otherwise it was declined.
    """

    epoch: EpochId
    kind: Kind
    why: str
    late: bool


@dataclass(frozen=True, slots=True)
class Decide:
    """Publish the epoch's manifest, ``seconds`` after it was triggered. ``last`` is the epoch decided before."""

    epoch: EpochId
    last: EpochId | None
    seconds: float

    def takes(self, sealed: EpochId) -> bool:
        """Does a committable of epoch ``sealed``, named in an answer for this one, belong into its manifest?

        It does unless it is part of an epoch that was decided: of its own, or of an older one that was aborted.
        """
        return self.last is None or sealed > self.last


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit what the epoch's manifest names, beside the work, and write its receipt: then it is ``Committed``."""

    epoch: EpochId


@dataclass(frozen=True, slots=True)
class Notify:
    """The epoch is committed, ``seconds`` after it was triggered: tell the subtasks, and whoever has asked for it."""

    epoch: EpochId
    seconds: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """Drop epochs that are not retained; if ``thorough``, look for output that nobody will commit. Then ``Swept``.

    ``fence``: whoever could still write some is kept from it, whether or not there is any to be seen.
    """

    thorough: bool
    fence: bool = False


@dataclass(frozen=True, slots=True)
class Halt:
    """Let the sources stand still."""


@dataclass(frozen=True, slots=True)
class Count:
    """Ask every subtask for its counts: then each has ``Counted``."""

    round: int


@dataclass(frozen=True, slots=True)
class GoOn:
    """Let the sources read again."""


@dataclass(frozen=True, slots=True)
class Discover:
    """Search for new splits, or for something to read; ``at_once``: whatever the interval. Then ``Found``."""

    at_once: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Nothing has come after the newest epoch, which is committed: it serves whoever waits."""


@dataclass(frozen=True, slots=True)
class Replace:
    """The attempt is over: another takes its place and goes back to the last decided epoch.

    ``suspects``: subtasks that may never answer, or are gone.
    """

    why: str
    suspects: frozenset[int]


@dataclass(frozen=True, slots=True)
class End:
    """The attempt is over, and with it the job."""

    how: Ending


Action: TypeAlias = (
    Begin | Trigger | Abort | Decide | Commit | Notify | Sweep | Halt | Count | GoOn | Discover | Answer | Replace | End
)
