"""The requests of one operator: attempts, timeouts, pauses and the breaker, on an event loop beside the worker's
thread.

A process has one loop for its lifetime: a client that a function has created at its first call works in the next
session, too. At the end of a session, pending requests are cancelled. A loop that a function blocks for too long is
abandoned, and the next session starts a new one. Rule: each ticket gets one result, unless the requester is closed
before; any exception of a function is a result.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from kafka_eos.core.errors import Bug, EnvironmentFailed
from kafka_eos.core.fault_attribution import wrap_in_exception
from kafka_eos.plan.function_checks import asynchronous, describe_function
from kafka_eos.plan.retries import Breaker, Circuit, Retries
from kafka_eos.runtime.operators.async_io.loop_watchdog import LoopWatchdog
from kafka_eos.runtime.operators.async_io.pending_rows import RequestResult
from kafka_eos.runtime.operators.async_io.thread_pool import DaemonThreadPool

_LOST = 10.0
"""Minimum of seconds for which a function may block the loop."""
_LOOK = 1.0
"""Seconds between two checks, while waiting, whether a result can still arrive."""


class RequestPolicy(Struct, frozen=True):
    """Timeout, retries and circuit breaker of one async_map."""

    timeout: float
    retries: Retries | None
    breaker: Breaker | None
    retry_on: tuple[type[Exception], ...]

    def should_retry(self, error: Exception, failures: int) -> bool:
        """Return whether a request should be retried after so many failures."""
        return self.retries is not None and failures <= self.retries.times and isinstance(error, self.retry_on)


class RetryingCall:
    """Makes the request for one value on the event loop: retries, timeout, circuit breaker.

    It uses the clock of its event loop.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        policy: RequestPolicy,
        name: str = "the function",
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``call`` returns an awaitable. ``name``: of the user's function, for messages."""
        self._call = call
        self._policy = policy
        self._name = name
        self._chance = chance
        self._circuit = Circuit(policy.breaker)
        self._closed = asyncio.Event()
        """Set whenever the circuit closes."""

    async def answer(self, value: Any) -> RequestResult:
        failures = 0
        while True:
            await self._may_ask()
            try:
                found = await self._tried(value)
            except Exception as error:  # noqa: BLE001 - a function may raise anything; the operator judges it
                failures += 1
                self._note_failure(error)
                if not self._policy.should_retry(error, failures):
                    return RequestResult(error=error)
            else:
                self._note_success()
                return RequestResult(found)
            assert self._policy.retries is not None
            await asyncio.sleep(self._policy.retries.pause(failures, self._chance()))

    async def _tried(self, value: Any) -> Any:
        seconds = self._policy.timeout
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._call(value)
        except TimeoutError:
            if limit.expired():
                # Without a cause: a timeout cancels the attempt, and that cancellation explains nothing.
                raise TimeoutError(f"{self._name} did not respond within timeout={seconds:g} seconds") from None
            raise

    async def _may_ask(self) -> None:
        while True:
            self._circuit, seconds = self._circuit.admit(_now())
            if not seconds:
                return
            try:
                async with asyncio.timeout(seconds):
                    await self._closed.wait()
            except TimeoutError:
                continue

    def _note_failure(self, error: Exception) -> None:
        """Count a failure for the breaker. An error that is not retried says nothing about the service."""
        if isinstance(error, self._policy.retry_on):
            self._circuit = self._circuit.failed(_now())
            if self._circuit.until is not None:
                self._closed.clear()

    def _note_success(self) -> None:
        self._circuit = self._circuit.succeeded()
        self._closed.set()


class Requester:
    """Sends values with tickets to the event loop and takes their results, for the worker thread."""

    def __init__(self, fn: Callable[[Any], Any], policy: RequestPolicy, capacity: int, name: str) -> None:
        loop, thread, beat = _loop()
        self._loop = loop
        self._thread = thread
        self._beat = beat
        self._name, self._most = name, max(policy.timeout, _LOST)
        self._threads = None if asynchronous(fn) else DaemonThreadPool(capacity, name, describe_function(fn))
        call = fn if self._threads is None else functools.partial(_in_thread, self._threads, fn)
        self._answering = RetryingCall(call, policy, describe_function(fn))
        self._answers: queue.SimpleQueue[tuple[int, RequestResult]] = queue.SimpleQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        """On the loop's thread only."""
        self._closing = False

    def submit(self, ticket: int, value: Any) -> None:
        self._loop.call_soon_threadsafe(self._begin, ticket, value)

    def take_results(self) -> Iterator[tuple[int, RequestResult]]:
        """Yield the results that have arrived. Raises EnvironmentFailed if none can arrive any more."""
        self._look()
        while True:
            try:
                yield self._answers.get_nowait()
            except queue.Empty:
                return

    def wait(self) -> tuple[int, RequestResult]:
        """Wait for the next result; a request must be pending. Raises EnvironmentFailed if none can arrive any more."""
        while True:
            try:
                return self._answers.get(timeout=_LOOK)
            except queue.Empty:
                if not self._thread.is_alive():
                    raise Bug("the event loop of the requests has ended") from None
                self._look()

    def _look(self) -> None:
        """Raise EnvironmentFailed if the loop is blocked: no timeout is processed there, so no attempt ends."""
        kept = self._beat.check(time.monotonic())
        if kept > self._most:
            _abandon_loop(self._loop)
            raise EnvironmentFailed(f"operator {self._name!r}: {self._beat.describe_block(kept)}")

    def close(self) -> None:
        """Cancel all pending requests; no more results arrive."""
        self._loop.call_soon_threadsafe(self._cancel)
        if self._threads is not None:
            self._threads.close()

    def _begin(self, ticket: int, value: Any) -> None:
        task = self._loop.create_task(self._work(ticket, value))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, ticket: int, value: Any) -> None:
        try:
            answer = await self._answering.answer(value)
        except BaseException as error:
            if self._closing:
                raise
            # The function's own client cancelled it, or it tried to exit the process: its row must get a result all the
            # same.
            answer = RequestResult(error=wrap_in_exception(error))
        self._answers.put((ticket, answer))

    def _cancel(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()


async def _in_thread(threads: DaemonThreadPool, fn: Callable[[Any], Any], value: Any) -> Any:
    """Call a function in a thread.

    If it returns an awaitable (a lambda that calls a coroutine function), await it here.
    """
    found = await asyncio.wrap_future(threads.submit(fn, value))
    return await found if inspect.isawaitable(found) else found


def _now() -> float:
    return asyncio.get_running_loop().time()


# ---------------------------------------------------------------- the loop of this process

_lock = threading.Lock()
_loops: dict[int, tuple[asyncio.AbstractEventLoop, threading.Thread, LoopWatchdog]] = {}
"""Event loops by process id: a forked child must create its own."""


def _loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread, LoopWatchdog]:
    with _lock:
        if os.getpid() not in _loops:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="requests", daemon=True)
            thread.start()
            _loops[os.getpid()] = loop, thread, LoopWatchdog(loop, thread)
        return _loops[os.getpid()]


def _abandon_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Abandon a blocked event loop; the next session starts another."""
    with _lock:
        if _loops.get(os.getpid(), (None,))[0] is loop:
            del _loops[os.getpid()]
