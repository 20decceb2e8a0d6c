"""The clock by which state expires: it follows a clock, but not its jumps.

    processing    the machine's clock. A jump ahead is ignored: time continues from where it was. If the clock is set
                  back a little, time waits for it. If it is set back more, time follows: it was ahead by mistake.
    event         the highest timestamp of a record. Records of the future are ignored.

Rule: no single reading of a clock, and no single record, can expire everything that is stored, or keep it forever. All
times are in milliseconds since the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

ClockKind: TypeAlias = Literal["processing", "event"]

UNKNOWN = -1
"""The time is not known yet."""
LEAP_MS = 3_600_000
"""One hour.

A clock jumps if it advances by this much more than the time that has passed. A record this far ahead of the machine's
clock is from the future.
"""
DOWN_MS = 366 * 24 * LEAP_MS
"""One year: the maximum downtime of a job. At startup the clock may be ahead of the stored time by this much."""

_SUSPEND_INCLUDED: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock of its own for that; on macOS the monotonic clock advances during suspend."""


def wall_clock() -> int:
    """Return the time of the machine's clock. The default; tests pass their own."""
    return time.time_ns() // 1_000_000


def monotonic_clock() -> int:
    """Return monotonic milliseconds, suspend included."""
    return time.clock_gettime_ns(_SUSPEND_INCLUDED) // 1_000_000


class TtlClock(Protocol):
    """The clock by which one state of one subtask expires."""

    def now(self) -> int:
        """Return the time. It decreases only if a processing clock is set back by more than ``LEAP_MS``."""

    def advance(self, timestamp: int) -> None:
        """Handle the time of the next record."""


class ProcessingTimeClock:
    """TTL clock that follows the machine's clock but not its jumps.

    ``stored`` is the time of the checkpoint that the state comes from.
    """

    def __init__(self, clock: Callable[[], int], stored: int, passing: Callable[[], int] = monotonic_clock) -> None:
        self._clock, self._passing = clock, passing
        self._looked, at = passing(), clock()
        stored = at if stored == UNKNOWN else discard_future_time("processing", stored, at)
        self._ahead = at - stored if at - stored > DOWN_MS else 0
        """The time by which the machine's clock is ahead of this one, because it has jumped."""
        self._now = max(stored, at - self._ahead)

    def now(self) -> int:
        before, self._looked = self._looked, self._passing()
        at, due = self._clock() - self._ahead, self._now + self._looked - before
        if at - due > LEAP_MS:
            self._ahead, self._now = self._ahead + at - due, due
        elif self._now - at > LEAP_MS:
            # The clock was set right after a jump, or the stored time was wrong.
            clock, self._ahead = at + self._ahead, 0
            self._now = discard_future_time("processing", self._now, clock)
        else:
            self._now = max(self._now, at)
        return self._now

    def advance(self, timestamp: int) -> None:
        return None


class EventTimeClock:
    """TTL clock at the highest record timestamp so far.

    ``stored`` is the time of the checkpoint that the state comes from.
    """

    def __init__(self, clock: Callable[[], int], stored: int) -> None:
        self._clock = clock
        self._now = discard_future_time("event", stored, clock())
        self._bound = UNKNOWN

    def now(self) -> int:
        return self._now

    def advance(self, timestamp: int) -> None:
        if timestamp > self._bound:
            self._bound = self._clock() + LEAP_MS
        if self._now < timestamp <= self._bound:
            self._now = timestamp


def create_ttl_clock(
    kind: ClockKind, clock: Callable[[], int], stored: int, passing: Callable[[], int] = monotonic_clock
) -> TtlClock:
    """Create the TTL clock of a state. ``stored`` may be UNKNOWN."""
    return ProcessingTimeClock(clock, stored, passing) if kind == "processing" else EventTimeClock(clock, stored)


def discard_future_time(kind: ClockKind, stored: int, clock: int) -> int:
    """Return a stored time unless it is too far ahead of the clock."""
    if stored - clock <= LEAP_MS:
        return stored
    return clock if kind == "processing" else UNKNOWN
