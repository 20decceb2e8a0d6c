"""A worker's heartbeats: twice a second, a thread reports how long ago the processing thread made progress.

An unresponsive worker may process slow rows, hang, or be stopped. Heartbeats let the supervisor distinguish these
(``protocol.liveness``): code that hangs in Python, or waits, lets this thread run. A stopped process does not, nor does
a C call that holds the interpreter's lock.

Rule: a heartbeat reports the last progress of the working thread, and never that it is healthy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import Context
from types import TracebackType

from kafka_eos._util import log_context
from kafka_eos.runtime.worker.control_messages import ControlMessage, WorkerHeartbeat

_EVERY = 0.5
"""Seconds between two heartbeats."""


class HeartbeatThread:
    """Sends a heartbeat every half second while the context manager is entered.

    ``work``: the context in which the working thread runs, for its current position. ``say`` is called on the heartbeat
    thread. An OSError from it ends the thread: the receiver is gone.
    """

    def __init__(
        self, say: Callable[[ControlMessage], None], session: int, work: Context, every: float = _EVERY
    ) -> None:
        self._say = say
        self._session = session
        self._work = work
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="pulse")
        self._stepped = time.monotonic()

    def step(self) -> None:
        """Record that the working thread has made progress."""
        self._stepped = time.monotonic()

    def __enter__(self) -> HeartbeatThread:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            stalled_for = time.monotonic() - self._stepped
            at = log_context.position_in(self._work)
            try:
                self._say(WorkerHeartbeat(session=self._session, seconds_since_step=stalled_for, at=str(at or "")))
            except OSError:
                return
