"""Detection of a blocked event loop, and of the function that blocks it.

A coroutine function that blocks (``time.sleep``, a blocking client) stops all coroutines of the loop: no response,
timeout or error is processed then. Only another thread can detect this. Rule: one warning per block; the requests
themselves are not affected here.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import warnings
from typing import Final

from kafka_eos.core.error_messages import describe_frame

_EVERY: Final = 1.0
"""Seconds between two probes."""
_KEPT: Final = 5.0
"""Seconds without a reaction of the loop, after which it counts as blocked."""


class RequestsWarning(UserWarning):
    """A function of ``async_map`` blocks the requests of other rows."""


class LoopWatchdog:
    """Watches one event loop; the thread that waits for responses calls ``check``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop, self._thread = loop, thread
        self._asked = self._looked = -math.inf
        self._kept = 0.0
        self._waits = self._said = False

    def check(self, now: float) -> float:
        """Probe the loop, and warn if it is blocked for long; return for how many seconds it has been blocked.

        ``now``: of a monotonic clock. A second counts only if ``check`` was called in it, so a process that was stopped
        for a while does not count as blocked.
        """
        step, self._looked = min(now - self._looked, _EVERY), now
        if self._waits:
            self._kept += step
            if self._kept >= _KEPT and not self._said:
                self._said = True
                warnings.warn(self.describe_block(self._kept), RequestsWarning, stacklevel=2)
            return self._kept
        if now - self._asked >= _EVERY:
            self._asked = now
            self._waits = True
            self._said = False
            self._kept = 0.0
            self._loop.call_soon_threadsafe(self._goes_round)
        return 0.0

    def _goes_round(self) -> None:
        self._waits = False

    def describe_block(self, seconds: float) -> str:
        """Describe the function that blocks the loop."""
        place = describe_frame(sys._current_frames().get(self._thread.ident or 0))
        return (
            f"a coroutine function of async_map has blocked the event loop for {seconds:.0f} "
            f"seconds, at {place}. All requests of this process wait for it, and no timeout "
            "interrupts it. Await slow calls there, or pass async_map an ordinary function, "
            "which runs in a thread"
        )
