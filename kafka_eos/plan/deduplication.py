"""Process functions that let the first row of a key pass, and no other: for some time, or for ever.

Rule: what is decided depends on the event times of rows, and on their order within a key; not on how far the watermark
was when they came. A time is forgotten when no row that is not late can ask for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from kafka_eos.abc.state import Ttl
from kafka_eos.plan.process_functions import OutputTag, ProcessContext, ProcessFunction

K = TypeVar("K")
T = TypeVar("T")


class Deduplicate(ProcessFunction[K, T, T]):
    """Drops rows of a key that are less than ``within`` ms from one that has passed.

    Rows may be late by as much: so a time that has passed is kept for twice that.
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
            self._timers.register(self._over(min(passed)))  # this one may be of a time when ``within`` was shorter
        else:
            self._passed.clear()
        return ()

    def _over(self, at: int) -> int:
        """The last moment at which a time that has passed may be asked for."""
        return at + 2 * self._within - 1

    def _refuse(self, value: T, at: int) -> None:
        if self._late is None:
            raise ValueError(
                f"late: its time is {at} and event time has come to {self._ctx.watermark}; whether such a row has "
                f"passed before is known for {self._within} ms"
            )
        self._ctx.output(self._late, value)


class Distinct(ProcessFunction[K, T, T]):
    """Drops all rows of a key but the first one; with a time to live, until that is over."""

    def __init__(self, ttl: Ttl | None) -> None:
        self._ttl = ttl

    def open(self, ctx: ProcessContext) -> None:
        self._seen = ctx.value_state("seen", bool, ttl=self._ttl)

    def process(self, key: K, value: T) -> Iterable[T]:
        if not self._seen.get():
            self._seen.put(True)
            yield value
