"""Whether the event loop of the requests goes round, and who keeps it if it does not.

A coroutine function that blocks (``time.sleep``, a blocking client) keeps the loop of all others: nothing is answered
then, no timeout passes, and no error is raised. Only another thread can tell.
Rule: it is said once for each time that the loop is kept; what becomes of the requests is not decided here.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import warnings
from typing import Final

from kafka_eos.core.fault_attribution import standing

_EVERY: Final = 1.0
"""Seconds from one beat to the next."""
_KEPT: Final = 5.0
"""Seconds without an answer of the loop, after which somebody keeps it."""


class RequestsWarning(UserWarning):
    """A function of ``async_map`` holds up more than its own row."""


class Beat:
    """One for each loop. ``look`` is called by whoever waits for answers, from one thread at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop, self._thread = loop, thread
        self._asked = self._looked = -math.inf
        self._kept = 0.0
        self._waits = self._said = False

    def look(self, now: float) -> float:
        """Ask the loop whether it goes round, and say so if it has not for long. Returns for how many seconds.

        ``now``: of a monotonic clock. A second counts only if somebody has looked in it: a process that was stopped for
        a while has kept no loop.
        """
        step, self._looked = min(now - self._looked, _EVERY), now
        if self._waits:
            self._kept += step
            if self._kept >= _KEPT and not self._said:
                self._said = True
                warnings.warn(self.blocked(self._kept), RequestsWarning, stacklevel=2)
            return self._kept
        if now - self._asked >= _EVERY:
            self._asked, self._waits, self._said, self._kept = now, True, False, 0.0
            self._loop.call_soon_threadsafe(self._goes_round)
        return 0.0

    def _goes_round(self) -> None:
        self._waits = False

    def blocked(self, seconds: float) -> str:
        """Who keeps the loop, for people."""
        place = standing(sys._current_frames().get(self._thread.ident or 0))
        return (
            f"a coroutine function of async_map has kept its event loop for {seconds:.0f} seconds, at {place}. All "
            "requests of this process wait for it, and no timeout ends it. Await there what takes long, or give "
            "async_map an ordinary function: that waits in a thread"
        )
