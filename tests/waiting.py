"""How long tests wait. One deadline for all waits, and one way to wait for a condition.

Rule: a deadline only ends what hangs; no claim rests on it. So it is several times what the slowest wait takes on an
idle machine: a machine at a quarter of its speed, or beside another load, must not meet it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
PATIENCE: Final = 300.0
"""Seconds until a wait is given up. ``timeout`` of pytest in pyproject.toml is longer, so that the wait tells why."""
_GLANCE_SECONDS: Final = 0.02


def eventually(holds: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """The first true answer of ``holds``. AssertionError, which names ``what``, after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(_GLANCE_SECONDS)
    return found
