"""When a window has a result before its end. The one at its end, of event time, it has in any case.

Pure. Rule: a trigger asks for results of what a window holds at that moment; it never keeps a row out of the last one,
unless it is told to purge: then each row is in one result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from kafka_eos._util.call_site import quoting
from kafka_eos.core.errors import PlanError
from kafka_eos.plan.window_assigners import milliseconds


@dataclass(frozen=True, slots=True)
class OnCount:
    """Each time that a window of a key has got so many rows more."""

    rows: int
    purges: bool = False

    def purging(self) -> OnCount:
        """With a result a window lets go of its rows: the next one is of what comes then."""
        return replace(self, purges=True)

    def __str__(self) -> str:
        return f"with a result each {self.rows} rows{_purged(self.purges)}"


@dataclass(frozen=True, slots=True)
class OnClock:
    """Each so many milliseconds of the clock, of windows that have got rows since."""

    every: int
    purges: bool = False

    def purging(self) -> OnClock:
        """With a result a window lets go of its rows: the next one is of what comes then."""
        return replace(self, purges=True)

    def __str__(self) -> str:
        return f"with a result each {self.every / 1000:g} s of the clock{_purged(self.purges)}"


Trigger: TypeAlias = OnCount | OnClock


@quoting
def on_count(rows: int) -> OnCount:
    """A result each time that a window of a key has got so many rows more. PlanError unless it is one at least."""
    if type(rows) is not int or rows < 1:
        raise PlanError(f"a window has a result each so many rows, one at least: not each {rows!r}")
    return OnCount(rows)


@quoting
def on_clock(*, every: float) -> OnClock:
    """A result of each window that has got rows since, each so many seconds of the clock. PlanError unless it is some.

    Looked at is when the clock comes to a whole multiple of that.
    """
    return OnClock(milliseconds(every, "the time between two results"))


def _purged(purges: bool) -> str:
    return ", of which no row is in another" if purges else ""
