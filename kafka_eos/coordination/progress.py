"""How far long work is, now and then. Rule: work that is done in a moment says nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY = 5.0
"""Seconds between two reports, and before the first."""


class Reporter:
    """Called with bytes that are done and bytes in all. ``check`` is called each time and may end the work."""

    def __init__(self, done: str, notice: Callable[[str], None], check: Callable[[], None]) -> None:
        self._done, self._notice, self._check = done, notice, check
        self._told = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        self._check()
        now = time.monotonic()
        if now - self._told >= _EVERY:
            self._told = now
            self._notice(f"{self._done} {done / 1e6:,.0f} of {total / 1e6:,.0f} MB of state")
