"""Waits for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_SECONDS = 0.05


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait for ``condition``. Return whether it became true within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
