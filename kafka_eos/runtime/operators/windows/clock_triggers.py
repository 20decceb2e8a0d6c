"""Results of windows before their end, by the clock: which have got rows, and when it is time to look at them.

Those that have are in the state ``changed``, a place for each key and part of a window, until there is a result or the
window is over. A timer of the clock waits at the next whole multiple of the interval. (Results by count come with the
row that is one too many, and are its outputs.)

Rule: nothing that has not changed has a result again, so when nothing comes nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import MsgpackCodec
from kafka_eos.core.provenance import PROCESSING_TIMERS
from kafka_eos.core.records import Batch
from kafka_eos.plan.triggers import OnClock
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.timer_firing import CLOCK_STATE, Firings
from kafka_eos.runtime.state.timers import TimeCodec, timers

CHANGED: Final = "changed"
Result = tuple[int, Sequence[Any]]
"""Event time of the outputs of a window, and these."""


def no_clock(ctx: OperatorContext) -> None:
    """An operator without a trigger of the clock, which may have had one."""
    ctx.forget(CLOCK_STATE)
    ctx.forget(CHANGED)


class ByClock:
    """Of one operator in one subtask."""

    def __init__(self, trigger: OnClock, key_codec: Codec[Any]) -> None:
        self._every, self._key_codec = trigger.every, key_codec

    def states(self) -> tuple[StateDescriptor[bool], ...]:
        """The timers, and what they wait with."""
        changed: StateDescriptor[bool] = StateDescriptor(
            CHANGED, self._key_codec, MsgpackCodec(bool), "map", entry=TimeCodec()
        )
        return (timers(CLOCK_STATE, self._key_codec), changed)

    def open(self, ctx: OperatorContext) -> None:
        waiting, changed = self.states()
        self._timers, self._changed, self._clock = ctx.timers(waiting), ctx.value_state(changed), ctx.clock
        self._firings = Firings(ctx, PROCESSING_TIMERS, self._key_codec.encode, "the function")

    def note(self, key: Any, start: int) -> None:
        """The part of a window that begins there has got a row."""
        self._changed.put((key, start), True)
        now = max(self._clock(), self._timers.now(key))
        self._timers.add(key, (now // self._every + 1) * self._every)

    def forget(self, key: Any, start: int) -> None:
        self._changed.delete((key, start))

    def soonest(self) -> int | None:
        return self._timers.soonest()

    def fire(self, now: int, early: Callable[[Any, Sequence[int]], Sequence[Result]]) -> Iterator[Batch[Any]]:
        """What ``early`` makes of each key whose time has come, and of what has changed of it."""

        def call(key: Any, time: int) -> Sequence[Result]:
            starts = [place[-1] for place in self._changed.places(key)]
            for start in starts:
                self.forget(key, start)
            try:
                return early(key, starts)
            except Exception as error:
                raise self._firings.stopped_by(key, time, error) from error

        return self._firings.fire_with_times(self._timers.due(now), call)
