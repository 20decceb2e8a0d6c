"""Decide whether a standby supervisor becomes leader, from its observations of current leaders.

Pure. Rule: this concerns liveness alone. A wrong decision costs a restart and never a record: a leader first claims a
term, and terms separate two leaders (docs/decisions/0002). So a clock may be wrong here, and a lease may be arbitrarily
short.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Literal, TypeAlias

from msgspec import Struct

LeaderExit: TypeAlias = Literal["stopped", "left"]
"""The way a leader ended: the job was stopped, or only this leader left."""


class LeaderSighting(Struct, frozen=True):
    """A standby's knowledge of a current or former leader."""

    silent_for: float
    """Seconds since this standby first saw the leader's newest heartbeat."""
    on_this_lock: bool
    """True if it uses the lock that this process would take."""
    holds_lock: bool = False
    """True if it holds that lock now."""
    ended: LeaderExit | None = None
    ended_before: bool = False
    """True if it had ended before this standby started."""


class LeadershipView(Struct, frozen=True):
    locked: bool
    """Some process holds the lock that this one would take."""
    leaders: Sequence[LeaderSighting]
    records_unchanged_for: float
    """Seconds since the newest term or manifest was first seen.

    Infinite if there is none, or if the lock covers all leaders because it is stored in the checkpoint store.
    """


class StandbyMove(Enum):
    WAIT = auto()
    LEAD = auto()
    KILL_HOLDER = auto()
    """Kill the process that holds the lock, because it is frozen."""
    STAND_DOWN = auto()
    """Exit, because the job was stopped."""


def decide_move(seen: LeadershipView, lease: float) -> StandbyMove:
    """Decide what a standby does now. ``lease``: seconds without a heartbeat after which a leader counts as gone."""
    if any(leader.ended == "stopped" and not leader.ended_before for leader in seen.leaders):
        return StandbyMove.STAND_DOWN
    if seen.locked:
        hung = any(leader.holds_lock and leader.ended is None and leader.silent_for >= lease for leader in seen.leaders)
        return StandbyMove.KILL_HOLDER if hung else StandbyMove.WAIT
    if not all(_gone(leader, lease) for leader in seen.leaders):
        return StandbyMove.WAIT
    return StandbyMove.LEAD if seen.leaders or seen.records_unchanged_for >= lease else StandbyMove.WAIT


def _gone(leader: LeaderSighting, lease: float) -> bool:
    """Return whether, with the lock free, the leader has ended, its process has exited, or its lease has expired."""
    return leader.ended is not None or leader.on_this_lock or leader.silent_for >= lease
