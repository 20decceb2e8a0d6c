"""Triggers of results before the end of a window. Its final result is emitted in any case.

Pure. Rule: a trigger emits a result of the window's current contents. It never removes a row from the final result,
except if it purges: then each row is in one result.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos._util.call_site import quotes_user_line
from kafka_eos.core.durations import Seconds
from kafka_eos.core.errors import PlanError
from kafka_eos.plan.window_assigners import milliseconds


class CountTrigger(Struct, frozen=True):
    """Emits a result each time a window of a key has received n more rows."""

    rows: int
    purges: bool = False

    def purging(self) -> CountTrigger:
        """Clear the window after each result: the next one covers only later rows."""
        return replace(self, purges=True)

    def __str__(self) -> str:
        return f"with a result every {self.rows} rows{_purged(self.purges)}"


class ClockTrigger(Struct, frozen=True):
    """Emits a result of each changed window every so many ms of processing time."""

    every: int
    purges: bool = False

    def purging(self) -> ClockTrigger:
        """Clear the window after each result: the next one covers only later rows."""
        return replace(self, purges=True)

    def __str__(self) -> str:
        return f"with a result every {self.every / 1000:g} s of the clock{_purged(self.purges)}"


WindowTrigger: TypeAlias = CountTrigger | ClockTrigger


@quotes_user_line
def on_count(rows: int) -> CountTrigger:
    """Emit a result whenever a window of a key has received ``rows`` more rows.

    Raises PlanError unless it is at least 1.
    """
    if type(rows) is not int or rows < 1:
        raise PlanError(f"on_count: the number of rows must be at least 1 (got {rows!r})")
    return CountTrigger(rows)


@quotes_user_line
def on_clock(*, every: Seconds) -> ClockTrigger:
    """Emit a result of each changed window every so many seconds of processing time.

    Results are emitted when the clock passes a multiple of ``every``. Raises PlanError unless ``every`` is above 0.
    """
    return ClockTrigger(milliseconds(every, "the time between two results"))


def _purged(purges: bool) -> str:
    return ", each row in one result only" if purges else ""
