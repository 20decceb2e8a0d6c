"""Threads in which ordinary functions wait, so that nobody else does.

Rule: a function that never returns keeps its thread, and nothing else: no end of a process waits for it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

from kafka_eos.calls import ESCAPED

_Job: TypeAlias = "tuple[Future[Any], Callable[[Any], Any], Any] | None"


class Threads:
    """As many as are needed, up to ``most``. They are daemons, which those of ``concurrent.futures`` cannot be."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._free = threading.Semaphore(0)
        """How many threads wait for a job."""

    def submit(self, fn: Callable[[Any], Any], value: Any) -> Future[Any]:
        """Call the function in one of the threads. From one thread only."""
        future: Future[Any] = Future()
        self._jobs.put((future, fn, value))
        if not self._free.acquire(blocking=False) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Threads end when their function has returned."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, fn, value = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(value))
                except StopIteration as error:
                    # A future that holds one would end whoever awaits it as the end of an iterator does.
                    future.set_exception(_caused(RuntimeError(ESCAPED), error))
                except BaseException as error:  # noqa: BLE001 - a function may raise anything; the caller judges it
                    future.set_exception(error)
            self._free.release()


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error
