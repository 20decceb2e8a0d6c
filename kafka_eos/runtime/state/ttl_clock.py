"""The time by which state expires: it goes on with a clock, and does not follow a clock that leaps.

    processing    the machine's clock. A leap ahead is left out: time goes on from where it was. When the clock is set
                  back a little, time waits for it; when it is set back more, time follows: it was ahead by mistake.
    event         the highest timestamp of a record. Records of the future are left out.

Rule: no single look at a clock, and no single record, can make everything that is stored expire, or live for ever.
All times are in milliseconds since the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

ClockKind: TypeAlias = Literal["processing", "event"]

UNKNOWN = -1
"""No time is known yet."""
LEAP_MS = 3_600_000
"""An hour. A clock leaps if it goes on by this much more than time has passed; a record this far ahead of the machine's
clock is of the future."""
DOWN_MS = 366 * 24 * LEAP_MS
"""A year: so long a job may have been down. At its start the clock may be so much ahead of the time that is stored."""


def wall_clock() -> int:
    """The machine's clock. The default; tests hand in their own."""
    return time.time_ns() // 1_000_000


def passing() -> int:
    """A clock that nobody sets, from an arbitrary beginning; it goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class StateTime(Protocol):
    """The time of one state in one subtask."""

    def now(self) -> int:
        """Never less than before, but for a processing clock that is set back by more than ``LEAP_MS``."""

    def advance(self, timestamp: int) -> None:
        """A record of that time is next."""


class ProcessingTime:
    """Goes on with the machine's clock. ``stored`` is the time of the checkpoint that the state comes from."""

    def __init__(self, clock: Callable[[], int], stored: int, passing: Callable[[], int] = passing) -> None:
        self._clock, self._passing = clock, passing
        self._looked, at = passing(), clock()
        stored = at if stored == UNKNOWN else believed("processing", stored, at)
        self._ahead = at - stored if at - stored > DOWN_MS else 0
        """By how much the clock is ahead of this time, since it leapt."""
        self._now = max(stored, at - self._ahead)

    def now(self) -> int:
        before, self._looked = self._looked, self._passing()
        at, due = self._clock() - self._ahead, self._now + self._looked - before
        if at - due > LEAP_MS:
            self._ahead, self._now = self._ahead + at - due, due
        elif self._now - at > LEAP_MS:
            # The clock was set right after a leap, or the time was wrong when it was stored.
            clock, self._ahead = at + self._ahead, 0
            self._now = believed("processing", self._now, clock)
        else:
            self._now = max(self._now, at)
        return self._now

    def advance(self, timestamp: int) -> None:
        return None


class EventTime:
    """The highest timestamp so far. ``stored`` is the time of the checkpoint that the state comes from."""

    def __init__(self, clock: Callable[[], int], stored: int) -> None:
        self._clock = clock
        self._now = believed("event", stored, clock())
        self._bound = UNKNOWN

    def now(self) -> int:
        return self._now

    def advance(self, timestamp: int) -> None:
        if timestamp > self._bound:
            self._bound = self._clock() + LEAP_MS
        if self._now < timestamp <= self._bound:
            self._now = timestamp


def time_of(kind: ClockKind, clock: Callable[[], int], stored: int, passing: Callable[[], int] = passing) -> StateTime:
    """The time of a state whose ``Ttl`` names that clock. ``stored`` may be UNKNOWN."""
    return ProcessingTime(clock, stored, passing) if kind == "processing" else EventTime(clock, stored)


def believed(kind: ClockKind, stored: int, clock: int) -> int:
    """The time that was stored; if it is more than ``LEAP_MS`` ahead of the clock, it says nothing."""
    if stored - clock <= LEAP_MS:
        return stored
    return clock if kind == "processing" else UNKNOWN
