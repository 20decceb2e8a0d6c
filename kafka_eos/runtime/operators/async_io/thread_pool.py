"""Threads in which ordinary functions wait, so that nobody else does.

Rules: a function that never returns keeps its thread, and nothing else: no end of a process waits for it. But a
process has so many of these at most, over all its sessions: behind them rows wait, until their time is over.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any, Final, TypeAlias

from kafka_eos._util.bulk_calls import ESCAPED
from kafka_eos.runtime.operators.async_io.loop_watchdog import RequestsWarning

_TIMES: Final = 4
"""A process has so many times as many threads as one session may have; the others are of sessions that are over."""
_left: dict[str, list[threading.Thread]] = {}
"""Those whose sessions are over, by name; some may have ended since."""

_Job: TypeAlias = "tuple[Future[Any], Context, Callable[[Any], Any], Any] | None"


class Threads:
    """As many as are needed, up to ``most``. They are daemons, which those of ``concurrent.futures`` cannot be."""

    def __init__(self, most: int, name: str, calls: str = "the function") -> None:
        """``calls``: what they are for, for people."""
        self._most, self._name, left = most, name, _still_there(name)
        if len(left) > most:
            warnings.warn(
                f"async_map {name!r}: {len(left)} threads still wait in {calls}, of sessions that are over. A thread "
                f"cannot be ended; give the client there a timeout of its own. There are {_TIMES * most} at most, and "
                "rows wait behind them",
                RequestsWarning,
                stacklevel=2,
            )
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._free = threading.Semaphore(0)
        """How many threads wait for a job."""

    def submit(self, fn: Callable[[Any], Any], value: Any) -> Future[Any]:
        """Call the function in one of the threads, in the context of the caller. From one thread only."""
        future: Future[Any] = Future()
        self._jobs.put((future, copy_context(), fn, value))
        if not self._free.acquire(blocking=False) and self._may_start():
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Threads end when their function has returned."""
        for _ in self._threads:
            self._jobs.put(None)
        _left[self._name] = [*_still_there(self._name), *self._threads]

    def _may_start(self) -> bool:
        mine = len(self._threads)
        return mine < self._most and mine + len(_still_there(self._name)) < _TIMES * self._most

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, context, fn, value = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(context.run(fn, value))
                except StopIteration as error:
                    # A future that holds one would end whoever awaits it as the end of an iterator does.
                    future.set_exception(_caused(RuntimeError(ESCAPED), error))
                except BaseException as error:  # noqa: BLE001 - a function may raise anything; the caller judges it
                    future.set_exception(error)
            self._free.release()


def _still_there(name: str) -> list[threading.Thread]:
    return [thread for thread in _left.get(name, ()) if thread.is_alive()]


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error
