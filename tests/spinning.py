"""Threads that a test left behind and that compute for ever: they slow down all later tests of their process.

Rule: whoever serves in a thread ends it. What is looked for here is the end of a run, when nothing has work to do.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def spinning(seconds: float = 0.5) -> list[str]:
    """Name and stack of each other thread of this process that has a fifth of a processor for so many ``seconds``."""
    before = _used()
    time.sleep(seconds)
    after, frames = _used(), sys._current_frames()
    return [
        f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threading.enumerate()
        if thread.ident in frames
        and thread is not threading.current_thread()
        and after.get(thread.native_id, 0.0) - before.get(thread.native_id, 0.0) > seconds / 5
    ]


def _used() -> dict[int | None, float]:
    """CPU seconds of each thread, by the number that the kernel knows it by."""
    found: dict[int | None, float] = {}
    for thread in threading.enumerate():
        try:
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        except FileNotFoundError:
            continue  # it has just ended
        user, system = stat.rpartition(")")[2].split()[11:13]
        found[thread.native_id] = (int(user) + int(system)) / _TICKS
    return found
