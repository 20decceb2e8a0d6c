"""Repeat a call whose answer is not known yet, until it answers or the job is told to stop.

Rule: only ``Retryable`` is repeated. A commit that was decided is repeated for as long as it takes: giving up
would be a loss; being told to stop is not, because the next start goes on with it. Pauses grow while nothing is gained,
and begin anew with each call that got further.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from kafka_eos.core.errors import GotFurther, Retryable

T = TypeVar("T")

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0


class Interrupted(Retryable):
    """Told to stop while waiting for an answer. What was decided is finished at the next start."""


class Patience:
    """Waits between attempts; ``stop`` ends the waiting, ``notice`` hears what is being waited for."""

    def __init__(self, stop: threading.Event, notice: Callable[[str], None]) -> None:
        self._stop, self.notice = stop, notice

    def until_answered(self, what: str, call: Callable[[], T]) -> T:
        """``call()``'s result. Raises Interrupted when told to stop, and whatever else ``call`` raises."""
        delay = _FIRST_DELAY
        while True:
            try:
                return call()
            except Retryable as error:
                if isinstance(error, GotFurther):
                    delay = _FIRST_DELAY
                self.notice(f"{what}: {error}; trying again")
                if self._stop.wait(delay):
                    raise Interrupted(f"stopped while waiting to {what}: {error}") from error
            delay = min(delay * 2, _LONGEST_DELAY)

    def ensure_not_told_to_stop(self, what: str) -> None:
        """Between the steps of long work. Raises Interrupted when told to stop."""
        if self._stop.is_set():
            raise Interrupted(f"stopped before it could {what}")

    def interrupt(self) -> None:
        self._stop.set()
