"""Process functions that pass only the first row of a key, for some time or forever.

Rule: the result depends on the event times of rows and on their order within a key, not on the watermark at their
arrival. A time is forgotten when only late rows could need it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from kafka_eos.abc.state import Ttl
from kafka_eos.plan.process_functions import OutputTag, ProcessContext, ProcessFunction

K = TypeVar("K")
T = TypeVar("T")


class DeduplicateFunction(ProcessFunction[K, T, T]):
    """Drops rows of a key that are less than ``within`` ms from one that was emitted.

    Rows may be late by as much, so the time of an emitted row is kept for twice ``within``.
    """

    def __init__(self, within: int, late: OutputTag[T] | None) -> None:
        self._within, self._late = within, late
        self.side_outputs: tuple[OutputTag[Any], ...] = () if late is None else (late,)

    def open(self, ctx: ProcessContext) -> None:
        self._ctx, self._timers = ctx, ctx.timers()
        self._passed = ctx.value_state("passed", list[int], [])

    def process(self, key: K, value: T) -> Iterable[T]:
        at, passed = self._ctx.timestamp, self._passed.get()
        if at + self._within <= self._ctx.watermark:
            self._refuse(value, at)
        elif all(abs(at - other) >= self._within for other in passed):
            self._passed.put([*passed, at])
            self._timers.register(self._over(at))
            yield value

    def on_timer(self, key: K, time: int) -> Iterable[T]:
        if passed := [at for at in self._passed.get() if self._over(at) > time]:
            self._passed.put(passed)
            self._timers.register(self._over(min(passed)))  # this time may have been stored when ``within`` was shorter
        else:
            self._passed.clear()
        return ()

    def _over(self, at: int) -> int:
        """Return the last moment at which the time of an emitted row may be needed."""
        return at + 2 * self._within - 1

    def _refuse(self, value: T, at: int) -> None:
        if self._late is None:
            raise ValueError(
                f"late: the row's time is {at}, the watermark is {self._ctx.watermark}, and duplicates are "
                f"remembered for {self._within} ms only"
            )
        self._ctx.output(self._late, value)


class DistinctFunction(ProcessFunction[K, T, T]):
    """Passes only the first row of a key, until its time to live expires."""

    def __init__(self, ttl: Ttl | None) -> None:
        self._ttl = ttl

    def open(self, ctx: ProcessContext) -> None:
        self._seen = ctx.value_state("seen", bool, ttl=self._ttl)

    def process(self, key: K, value: T) -> Iterable[T]:
        if not self._seen.get():
            self._seen.put(True)
            yield value
