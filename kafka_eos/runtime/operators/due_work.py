"""What time has made due, event time or the clock, and is not done yet: it is done in slices.

A watermark may make a million timers fire, or close a window of a million keys. So what is due is an iterator that
does a little at each step, and it is left for a while when a slice of time is over: barriers, control messages and
back-pressure come in between. Its place in the turn is kept: what is due later waits.

Rule: between two steps state and outputs agree, so a snapshot may be taken there. It holds what has not fired; the
watermark has not been handed on yet.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator


class Due:
    """Of one chain. ``slice``: seconds that it may go on at a time. ``clock``: see ``Pace``."""

    def __init__(self, slice_: float, clock: Callable[[], float]) -> None:
        self._slice, self._clock = slice_, clock
        self._work: deque[tuple[str, Iterator[None]]] = deque()
        """In turn: an operator near which it begins, and its steps."""
        self._taken, self._since = 0.0, 0.0
        """Seconds of turns that are over, and when the one began that is not."""

    def begin(self, operator: str, steps: Iterator[None]) -> None:
        """Do it, as far as one slice goes, behind what is not done yet."""
        if not self._work:
            self._since = self._clock()
        self._work.append((operator, steps))
        if len(self._work) == 1:
            self.go_on()

    @property
    def taken(self) -> float:
        """For how long something has been due and not done: nobody has read then."""
        return self._taken + (self._clock() - self._since if self._work else 0.0)

    def busy(self, operators: Collection[str] | None = None) -> bool:
        """Is something not done yet? ``operators``: of these only."""
        return any(operators is None or name in operators for name, _ in self._work)

    def go_on(self, operators: Collection[str] | None = None) -> None:
        """One slice more, of one step at least."""
        self._do(operators, self._slice)

    def finish(self, operators: Collection[str] | None = None) -> None:
        """All of it, however long it takes."""
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
