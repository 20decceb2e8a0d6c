"""Whether a supervisor that stands by should lead, by what it sees of those that lead.

Pure. Rule: this is about liveness alone. A wrong answer costs a restart and never a record: whoever leads claims a
term first, and terms keep two leaders apart (docs/decisions/0002). So a clock may be wrong here, and a lease may be
as short as one likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, TypeAlias

Ending: TypeAlias = Literal["stopped", "left"]
"""How a leader ended: the job was stopped, or only this leader ended and another may go on."""


@dataclass(frozen=True, slots=True)
class Leader:
    """What is known of one that leads, or did."""

    silent: float
    """Seconds since its newest sign of life was first seen here, by the clock of whoever looks."""
    here: bool
    """Its lock is the one that this process would take."""
    holds: bool = False
    """It is the process that holds that lock now."""
    ended: Ending | None = None
    known: bool = False
    """It had ended before this process began to stand by."""


@dataclass(frozen=True, slots=True)
class Seen:
    locked: bool
    """Some process holds the lock that this one would take."""
    leaders: Sequence[Leader]
    quiet: float
    """Seconds since the newest term or manifest was first seen: what a leader without heartbeats shows. Infinite if
    there is none, or if the lock tells of all leaders because it lies in the store."""


class Move(Enum):
    WAIT = auto()
    LEAD = auto()
    UNSEAT = auto()
    """End the process that holds the lock: it shows no life any more, and will not let go by itself."""
    END = auto()
    """The job was stopped: nobody is to go on."""


def decide(seen: Seen, lease: float) -> Move:
    """What to do now. ``lease``: seconds without a heartbeat after which a leader is taken for gone."""
    if any(leader.ended == "stopped" and not leader.known for leader in seen.leaders):
        return Move.END
    if seen.locked:
        hung = any(leader.holds and leader.ended is None and leader.silent >= lease for leader in seen.leaders)
        return Move.UNSEAT if hung else Move.WAIT
    if not all(_gone(leader, lease) for leader in seen.leaders):
        return Move.WAIT
    return Move.LEAD if seen.leaders or seen.quiet >= lease else Move.WAIT


def _gone(leader: Leader, lease: float) -> bool:
    """With the lock free: it has ended, its process is no more, or it is silent for too long."""
    return leader.ended is not None or leader.here or leader.silent >= lease
