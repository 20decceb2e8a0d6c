"""The requests of one operator: tries, timeouts, pauses and the breaker, on an event loop beside the worker's thread.

There is one loop in a process, and it lasts as long as that: a client that a function has made at its first call works
in the next session, too. What is still asked when a session ends is cancelled.
A loop that a function has kept for too long is left to it, and the next session has a new one.
Rule: each ticket is answered once, unless the asking is closed before; whatever a function raises is an answer.
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
from dataclasses import dataclass
from typing import Any

from kafka_eos.core.errors import Bug, EnvironmentFailed
from kafka_eos.plan.function_checks import asynchronous, named
from kafka_eos.plan.retries import Breaker, Circuit, Retries
from kafka_eos.runtime.operators.async_io.loop_watchdog import Beat
from kafka_eos.runtime.operators.async_io.pending_rows import Answer
from kafka_eos.runtime.operators.async_io.thread_pool import Threads

_LOST = 10.0
"""Seconds, at least, for which a function may keep the loop."""
_LOOK = 1.0
"""Seconds after which whoever waits for an answer looks whether one can still come."""


@dataclass(frozen=True, slots=True)
class Policy:
    """See ``plan.AsyncMap``."""

    timeout: float
    retries: Retries | None
    breaker: Breaker | None
    retry_on: tuple[type[Exception], ...]

    def again(self, error: Exception, failures: int) -> bool:
        """Is there another try, after so many failures?"""
        return self.retries is not None and failures <= self.retries.times and isinstance(error, self.retry_on)


class Answering:
    """How one value gets its answer. It lives on an event loop, whose clock it goes by."""

    def __init__(
        self,
        call: Callable[[Any], Any],
        policy: Policy,
        name: str = "the function",
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``call`` returns an awaitable. ``name``: of the user's function, for people."""
        self._call, self._policy, self._name, self._chance = call, policy, name, chance
        self._circuit = Circuit(policy.breaker)
        self._closed = asyncio.Event()
        """Set whenever the circuit closes."""

    async def answer(self, value: Any) -> Answer:
        failures = 0
        while True:
            await self._may_ask()
            try:
                found = await self._tried(value)
            except Exception as error:  # noqa: BLE001 - a function may raise anything; the operator judges it
                failures += 1
                self._note_failure(error)
                if not self._policy.again(error, failures):
                    return Answer(error=error)
            else:
                self._note_success()
                return Answer(found)
            assert self._policy.retries is not None
            await asyncio.sleep(self._policy.retries.pause(failures, self._chance()))

    async def _tried(self, value: Any) -> Any:
        seconds = self._policy.timeout
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._call(value)
        except TimeoutError:
            if limit.expired():
                # Not caused by anything: that the try was cancelled is how its time ends.
                raise TimeoutError(f"{self._name} gave no answer within timeout={seconds:g} seconds") from None
            raise

    async def _may_ask(self) -> None:
        while True:
            self._circuit, seconds = self._circuit.ask(_now())
            if not seconds:
                return
            try:
                async with asyncio.timeout(seconds):
                    await self._closed.wait()
            except TimeoutError:
                continue

    def _note_failure(self, error: Exception) -> None:
        """An error that another try would have, too, says nothing of the service."""
        if isinstance(error, self._policy.retry_on):
            self._circuit = self._circuit.failed(_now())
            if self._circuit.until is not None:
                self._closed.clear()

    def _note_success(self) -> None:
        self._circuit = self._circuit.succeeded()
        self._closed.set()


class Asking:
    """For the worker's thread: gives values with tickets, takes answers."""

    def __init__(self, fn: Callable[[Any], Any], policy: Policy, capacity: int, name: str) -> None:
        self._loop, self._thread, self._beat = _loop()
        self._name, self._most = name, max(policy.timeout, _LOST)
        self._threads = None if asynchronous(fn) else Threads(capacity, name, named(fn))
        call = fn if self._threads is None else functools.partial(_in_thread, self._threads, fn)
        self._answering = Answering(call, policy, named(fn))
        self._answers: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        """On the loop's thread only."""
        self._closing = False

    def ask(self, ticket: int, value: Any) -> None:
        self._loop.call_soon_threadsafe(self._begin, ticket, value)

    def answered(self) -> Iterator[tuple[int, Answer]]:
        """All that have come by now. EnvironmentFailed if none can come any more."""
        self._look()
        while True:
            try:
                yield self._answers.get_nowait()
            except queue.Empty:
                return

    def wait(self) -> tuple[int, Answer]:
        """The next one; some must be asked for. EnvironmentFailed if none can come any more."""
        while True:
            try:
                return self._answers.get(timeout=_LOOK)
            except queue.Empty:
                if not self._thread.is_alive():
                    raise Bug("the event loop of the requests has ended") from None
                self._look()

    def _look(self) -> None:
        """A loop that goes round no more ends no try: no timeout passes there."""
        kept = self._beat.look(time.monotonic())
        if kept > self._most:
            _leave(self._loop)
            raise EnvironmentFailed(f"operator {self._name!r}: {self._beat.blocked(kept)}")

    def close(self) -> None:
        """Nothing more is answered; what is asked is cancelled."""
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
            # A function that was cancelled by its own client, or wants to end the process: a row must not wait for it.
            answer = Answer(error=_as_exception(error))
        self._answers.put((ticket, answer))

    def _cancel(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()


async def _in_thread(threads: Threads, fn: Callable[[Any], Any], value: Any) -> Any:
    """A function that is not seen to be asynchronous may be (a lambda that calls one): its result is awaited here."""
    found = await asyncio.wrap_future(threads.submit(fn, value))
    return await found if inspect.isawaitable(found) else found


def _as_exception(error: BaseException) -> Exception:
    told = RuntimeError(f"the function raised {type(error).__name__}: {error}")
    told.__cause__ = error
    return told


def _now() -> float:
    return asyncio.get_running_loop().time()


# ---------------------------------------------------------------- the loop of this process

_lock = threading.Lock()
_loops: dict[int, tuple[asyncio.AbstractEventLoop, threading.Thread, Beat]] = {}
"""By process: a child that was forked has none of its own yet."""


def _loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread, Beat]:
    with _lock:
        if os.getpid() not in _loops:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="requests", daemon=True)
            thread.start()
            _loops[os.getpid()] = loop, thread, Beat(loop, thread)
        return _loops[os.getpid()]


def _leave(loop: asyncio.AbstractEventLoop) -> None:
    """Whoever asks from now on has another loop."""
    with _lock:
        if _loops.get(os.getpid(), (None,))[0] is loop:
            del _loops[os.getpid()]
