"""Work that a watermark or the clock has made due, done in slices.

A watermark may fire a million timers, or close a window of a million keys. So due work is an iterator of small steps,
which pauses when its slice of time is over: barriers, control messages and back-pressure are handled in between. Work
is done in order: what becomes due later waits.

Rule: between two steps state and outputs are consistent, so a snapshot may be taken there. It contains the timers that
have not fired; the watermark is not emitted yet.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator


class DueWork:
    """Queue of due work of one chain; runs it in slices of ``slice`` seconds.

    ``clock``: see ``WatermarkSchedule``.
    """

    def __init__(self, slice_: float, clock: Callable[[], float]) -> None:
        self._slice, self._clock = slice_, clock
        self._work: deque[Iterator[None]] = deque()
        """The steps of each piece of work, in turn."""
        self._taken, self._since = 0.0, 0.0
        """Seconds of turns that are over, and when the one began that is not."""

    def begin(self, steps: Iterator[None]) -> None:
        """Queue the steps behind pending work, and run one slice if there is none."""
        if not self._work:
            self._since = self._clock()
        self._work.append(steps)
        if len(self._work) == 1:
            self.run_slice()

    def run_now(self, steps: Iterator[None]) -> None:
        """Run the steps to their end, ahead of pending work."""
        if not self._work:
            self._since = self._clock()
        self._work.appendleft(steps)
        for _ in steps:
            pass
        self._remove(steps)

    @property
    def seconds_pending(self) -> float:
        """Seconds during which work was pending, so that nothing was read."""
        return self._taken + (self._clock() - self._since if self._work else 0.0)

    @property
    def is_pending(self) -> bool:
        """Return whether work is pending."""
        return bool(self._work)

    def run_slice(self) -> None:
        """Run pending work for one slice, at least one step."""
        self._run(self._slice)

    def run_all(self) -> None:
        """Run all pending work."""
        self._run(math.inf)

    def _run(self, seconds: float) -> None:
        began = time.monotonic()
        while self._work:
            steps = self._work[0]
            for _ in steps:
                if time.monotonic() - began >= seconds:
                    return
            self._remove(steps)

    def _remove(self, steps: Iterator[None]) -> None:
        self._work.remove(steps)
        if not self._work:
            self._taken += self._clock() - self._since
