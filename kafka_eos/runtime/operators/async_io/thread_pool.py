"""Threads that run blocking functions.

Rules: a function that never returns occupies its thread, but does not prevent the process from exiting. The number of
such threads is limited per process, over all its sessions: beyond it, rows wait until they time out.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any, Final, TypeAlias

from kafka_eos._util.bulk_calls import STOP_ITERATION_ESCAPED
from kafka_eos.runtime.operators.async_io.loop_watchdog import RequestsWarning

_TIMES: Final = 4
"""The thread limit of a process, as a multiple of that of one session; the other threads belong to earlier sessions."""
_abandoned: dict[str, list[threading.Thread]] = {}
"""Threads of earlier sessions, by name; some may have ended since."""

_Job: TypeAlias = "tuple[Future[Any], Context, Callable[[Any], Any], Any] | None"


class DaemonThreadPool:
    """Up to ``most`` daemon threads that run a blocking function.

    ``concurrent.futures`` cannot create daemon threads.
    """

    def __init__(self, most: int, name: str, calls: str = "the function") -> None:
        """``calls``: what the threads are for, for messages."""
        self._most, self._name, left = most, name, _still_there(name)
        if len(left) > most:
            warnings.warn(
                f"async_map {name!r}: {len(left)} threads of earlier attempts are still blocked in {calls}. Threads "
                f"cannot be killed: set a timeout on that client. There are at most {_TIMES * most}, and rows wait "
                "for a free one",
                RequestsWarning,
                stacklevel=2,
            )
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._free = threading.Semaphore(0)
        """Counts the threads that wait for a job."""

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
        """Let threads end when their function has returned."""
        for _ in self._threads:
            self._jobs.put(None)
        _abandoned[self._name] = [*_still_there(self._name), *self._threads]

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
                    # A future with a StopIteration would end its awaiting coroutine like the end of an iterator.
                    future.set_exception(_caused(RuntimeError(STOP_ITERATION_ESCAPED), error))
                except BaseException as error:  # noqa: BLE001 - a function may raise anything; the caller judges it
                    future.set_exception(error)
            self._free.release()


def _still_there(name: str) -> list[threading.Thread]:
    return [thread for thread in _abandoned.get(name, ()) if thread.is_alive()]


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error
