"""A worker's pulse: twice a second a thread of its own tells how long ago the thread that processes rows took a step.

A silent worker may be one whose rows take long, one whose code never comes back, or one that is stopped. With a pulse
the supervisor can tell them apart (``protocol.liveness``): what hangs in Python, or waits for something, lets this
thread run; a stopped process, and a call in C that holds the interpreter's lock, do not.

Rule: the pulse says what the working thread did last, and never that it is well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import Context
from types import TracebackType

from kafka_eos._util import log_context
from kafka_eos.runtime.worker.control_messages import Message, Pulse

_EVERY = 0.5
"""Seconds between two beats."""


class Beating:
    """Beats while it is entered. ``work``: the context in which the working thread runs, which tells where it is.

    ``say`` is called on the thread of the pulse. An OSError of it ends the beating: nobody listens any more.
    """

    def __init__(self, say: Callable[[Message], None], session: int, work: Context, every: float = _EVERY) -> None:
        self._say, self._session, self._work, self._every = say, session, work, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="pulse")
        self._stepped = time.monotonic()

    def step(self) -> None:
        """The working thread has come further."""
        self._stepped = time.monotonic()

    def __enter__(self) -> Beating:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            standing = time.monotonic() - self._stepped
            at = log_context.position_in(self._work)
            try:
                self._say(Pulse(session=self._session, standing=standing, at=str(at or "")))
            except OSError:
                return
