"""Retries of a call until its result is known or the job is stopped.

Rule: only ``Retryable`` is retried. A decided commit is retried indefinitely: giving up would lose data. Stopping loses
nothing, because the next start continues the commit. Pauses grow as long as no call makes progress, and start over
after each call that does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from kafka_eos.core.errors import PartialProgress, Retryable

T = TypeVar("T")

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0


class RetryInterrupted(Retryable):
    """The job was stopped while a call was retried. The next start finishes what was decided."""


class Retrier:
    """Retries a call until it returns or the job is stopped."""

    def __init__(self, stop: threading.Event, notice: Callable[[str], None]) -> None:
        self._stop, self.notice = stop, notice

    def retry(self, what: str, call: Callable[[], T]) -> T:
        """Call until it returns. Raises RetryInterrupted if the job is stopped, and every other error of ``call``."""
        delay = _FIRST_DELAY
        while True:
            try:
                return call()
            except Retryable as error:
                if isinstance(error, PartialProgress):
                    delay = _FIRST_DELAY
                self.notice(f"{what}: {error}; trying again")
                if self._stop.wait(delay):
                    raise RetryInterrupted(f"stopped while waiting to {what}: {error}") from error
            delay = min(delay * 2, _LONGEST_DELAY)

    def ensure_running(self, what: str) -> None:
        """Raise RetryInterrupted if the job was stopped."""
        if self._stop.is_set():
            raise RetryInterrupted(f"stopped before it could {what}")

    @property
    def is_interrupted(self) -> bool:
        return self._stop.is_set()

    def interrupt(self) -> None:
        self._stop.set()
