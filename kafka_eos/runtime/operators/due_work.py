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
from collections.abc import Callable, Collection, Iterator


class DueWork:
    """Queue of due work of one chain; runs it in slices of ``slice`` seconds.

    ``clock``: see ``WatermarkSchedule``.
    """

    def __init__(self, slice_: float, clock: Callable[[], float]) -> None:
        self._slice, self._clock = slice_, clock
        self._work: deque[tuple[str, Iterator[None]]] = deque()
        """In turn: an operator near which it begins, and its steps."""
        self._taken, self._since = 0.0, 0.0
        """Seconds of turns that are over, and when the one began that is not."""

    def begin(self, operator: str, steps: Iterator[None]) -> None:
        """Queue the steps behind pending work, and run one slice."""
        if not self._work:
            self._since = self._clock()
        self._work.append((operator, steps))
        if len(self._work) == 1:
            self.run_slice()

    @property
    def seconds_pending(self) -> float:
        """Seconds during which work was pending, so that nothing was read."""
        return self._taken + (self._clock() - self._since if self._work else 0.0)

    def is_pending(self, operators: Collection[str] | None = None) -> bool:
        """Return whether work of these operators is pending."""
        return any(operators is None or name in operators for name, _ in self._work)

    def run_slice(self, operators: Collection[str] | None = None) -> None:
        """Run pending work for one slice, at least one step."""
        self._do(operators, self._slice)

    def run_all(self, operators: Collection[str] | None = None) -> None:
        """Run all pending work."""
        self._do(operators, math.inf)

    def _do(self, operators: Collection[str] | None, seconds: float) -> None:
        began = time.monotonic()
        for entry in [(name, steps) for name, steps in self._work if operators is None or name in operators]:
            for _ in entry[1]:
                if time.monotonic() - began >= seconds:
                    return
            self._work.remove(entry)
            if not self._work:
                self._taken += self._clock() - self._since
