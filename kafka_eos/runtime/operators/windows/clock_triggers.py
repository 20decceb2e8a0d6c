"""Early results of windows by processing time.

The state ``changed`` has one entry per key and part of a window that has received rows, until the next result or the
end of the window. A processing-time timer waits at the next multiple of the interval. (Results by count are outputs of
the row that completes the count.)

Rule: a window that has not changed emits no further result, so without rows there are no timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import MsgpackCodec
from kafka_eos.core.provenance import PROCESSING_TIMERS
from kafka_eos.core.records import Batch
from kafka_eos.plan.triggers import ClockTrigger
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.timer_firing import CLOCK_STATE, Firings
from kafka_eos.runtime.state.timers import TimeCodec, create_timer_descriptor

CHANGED: Final = "changed"
Result = tuple[int, Sequence[Any]]
"""Event time of a window's outputs, and the outputs."""


def drop_clock_state(ctx: OperatorContext) -> None:
    """Drop the state of a clock trigger that the operator no longer has."""
    ctx.drop_state(CLOCK_STATE)
    ctx.drop_state(CHANGED)


class ClockTriggerState:
    """Changed windows of one operator and the timers of their next early results."""

    def __init__(self, trigger: ClockTrigger, key_codec: Codec[Any]) -> None:
        self._every, self._key_codec = trigger.every, key_codec

    def states(self) -> tuple[StateDescriptor[bool], ...]:
        """Return the states: the timers, and the changed windows."""
        changed: StateDescriptor[bool] = StateDescriptor(
            CHANGED, self._key_codec, MsgpackCodec(bool), "map", entry=TimeCodec()
        )
        return (create_timer_descriptor(CLOCK_STATE, self._key_codec), changed)

    def open(self, ctx: OperatorContext) -> None:
        waiting, changed = self.states()
        self._timers = ctx.timers(waiting)
        self._changed = ctx.value_state(changed)
        self._clock = ctx.clock
        self._firings = Firings(ctx, PROCESSING_TIMERS, self._key_codec.encode, "the function")

    def mark_changed(self, key: Any, start: int) -> None:
        """Mark a window as changed and set the timer of its next result."""
        self._changed.put((key, start), True)
        now = max(self._clock(), self._timers.get_time(key))
        self._timers.add(key, (now // self._every + 1) * self._every)

    def forget(self, key: Any, start: int) -> None:
        self._changed.delete((key, start))

    def soonest(self) -> int | None:
        return self._timers.get_next_time()

    def fire(
        self, now: int, early: Callable[[Any, Sequence[int], Callable[..., Sequence[Any]]], Sequence[Result]]
    ) -> Iterator[Batch[Any]]:
        """Yield ``early`` of each key whose timer is due, with its changed windows; see ``WindowOperator``."""

        def call(key: Any, time: int) -> Sequence[Result]:
            starts = [place[-1] for place in self._changed.scan_keys(key)]
            for start in starts:
                self.forget(key, start)
            return early(key, starts, partial(self._firings.call, key, time))

        return self._firings.fire_with_times(self._timers.pop_due(now), call)
