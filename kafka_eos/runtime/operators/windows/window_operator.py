"""What all windows of event time have in common: rows that come too late, results, and the state.

The state ``windows`` has a place for each key and part of a window, which is named by the time at which it begins; it
is gone when event time has passed the last window that needs it. Timers say when there is something to do; where all
keys have it to do at once, none are needed, see ``alone``.

    a trigger                    see ``triggers``
    a window that is over        is a firing: its operator, its key, and the last moment of the window
    a row for a window that was over, within ``lateness``    makes its result again, and is where that comes from
    a row of which no window is left    goes to the side output for late rows, or is refused: it is never away

Rule: a row that is refused has changed nothing, and what a firing makes depends on no row that is of a later time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import Any, Final

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.errors import Bug
from kafka_eos.core.provenance import TIMERS as EVENT_TIMERS
from kafka_eos.core.records import Batch
from kafka_eos.core.windows import Window
from kafka_eos.plan import Windows
from kafka_eos.plan.triggers import OnClock, OnCount
from kafka_eos.runtime.operators.operator import OperatorContext, event_time_of
from kafka_eos.runtime.operators.side_outputs import Tagged
from kafka_eos.runtime.operators.storability import ACCUMULATOR, FirstValue
from kafka_eos.runtime.operators.timer_firing import EVENT_STATE, Firings
from kafka_eos.runtime.operators.windows.clock_triggers import ByClock, Result, no_clock
from kafka_eos.runtime.state.timers import TimeCodec, timers

WINDOWS: Final = "windows"
ABSENT: Final[Any] = object()


IN_TIME: Final = "late= takes such rows to a side output, and bounded(...) with more seconds waits for them"
"""What to do about rows that come late."""


class LateRow(ValueError):
    """All windows of a row were over when it came."""


class WindowOperator:
    """Takes rows in, and gives results when event time goes on. See ``paned`` and ``sessions``."""

    def __init__(self, node: Windows) -> None:
        self._definition, trigger = node.definition, node.trigger
        self._contents, self._key_codec = node.contents, node.key_codec
        self._lateness, self._late = node.lateness, node.late
        self._by_count = trigger if isinstance(trigger, OnCount) else None
        self._by_clock = ByClock(trigger, node.key_codec) if isinstance(trigger, OnClock) else None
        self._first = FirstValue(self._contents.codec, ACCUMULATOR)

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        """All but the timers."""
        held, of = self._contents.codec, self._definition
        return (StateDescriptor(WINDOWS, self._key_codec, held, "map", entry=TimeCodec(), definition=of),)

    def pending(self) -> tuple[StateDescriptor[bool], ...]:
        """The timers, and what waits for those of the clock."""
        of_clock = () if self._by_clock is None else self._by_clock.states()
        return (timers(EVENT_STATE, self._key_codec), *of_clock)

    def open(self, ctx: OperatorContext) -> None:
        self._cells, *self._others = map(ctx.value_state, self.states())
        self._open_rest(ctx)

    def _open_rest(self, ctx: OperatorContext) -> None:
        """Open all but the states."""
        self._ctx = ctx
        self._timers = ctx.timers(self.pending()[0])
        if self._by_clock is None:
            no_clock(ctx)
        else:
            self._by_clock.open(ctx)
        self._firings = Firings(ctx, EVENT_TIMERS, self._key_codec.encode, "the function")

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        raise NotImplementedError

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        """Do what is to be done for a key at a time; the outputs of the window whose last moment it is."""
        raise NotImplementedError

    def advance(self, time: int) -> Iterator[Batch[Any]]:
        return self._firings.fire(self._timers.due(time), self._fired)

    @property
    def clocked(self) -> bool:
        return self._by_clock is not None

    def tick(self, now: int) -> Iterable[Batch[Any]]:
        return () if self._by_clock is None else self._by_clock.fire(now, self._early)

    def soonest(self) -> int | None:
        return None if self._by_clock is None else self._by_clock.soonest()

    def _early(self, key: Any, changed: Sequence[int]) -> Sequence[Result]:
        """Results of windows of a key that are not over and have got rows: in the parts that begin there."""
        raise NotImplementedError

    def _fired(self, key: Any, time: int) -> Sequence[Any]:
        try:
            return self._fire(key, time)
        except Exception as error:
            raise self._firings.stopped_by(key, time, error) from error

    def close(self) -> None:
        return None

    # ------------------------------------------------------------ for those that know their windows

    def _is_full(self, *accs: Any, more: int = 0) -> bool:
        """Have these, and ``more`` rows, got so many since the last result that there is one more?"""
        return self._by_count is not None and sum(acc[0] for acc in accs) + more >= self._by_count.rows

    def _delete(self, key: Any, start: int) -> None:
        """Nothing is held any more of what begins there."""
        self._cells.delete((key, start))
        if self._by_clock is not None:
            self._by_clock.forget(key, start)

    def _items(self, batch: Batch[Any]) -> Sequence[Any]:
        """What is added to windows: a value for each row."""
        return batch.in_time() if self._contents.by_time else batch.values

    def _emitted(self, key: Any, start: int, end: int, parts: Sequence[Any]) -> Sequence[Any]:
        merge = self._contents.merge
        if len(parts) > 1 and merge is None:
            raise Bug(f"operator {self._ctx.operator!r} has parts of a window that cannot be put together")
        whole = parts[0] if merge is None else reduce(merge, parts)
        return self._contents.emit(key, Window(start, end), whole)

    def _joined(self, acc: Any, item: Any) -> Any:
        """As ``add``, but a new object: what it makes may still be refused."""
        contents = self._contents
        return contents.add(acc, item) if contents.merge is None else contents.merge(acc, contents.first(item))

    def _grown(self, acc: Any, item: Any, *, anew: bool) -> Any:
        """What a pane holds, ABSENT for nothing, with one row more; ``anew``: it may still be refused, see ``_joined``.

        Raises what the user's function raises, and ValueError if it makes None.
        """
        if acc is ABSENT:
            changed = self._contents.first(item)
        else:
            changed = self._joined(acc, item) if anew else self._contents.add(acc, item)
        if changed is None:
            raise nothing()
        return changed

    def _too_late(self, time: int, value: Any, end: int) -> list[Result]:
        """What becomes of a row when its last window, which ends at ``end``, takes no rows any more."""
        self._ctx.late(1)
        if self._late is not None:
            return [(time, [Tagged(self._late, value)])]
        allowed = f" and {self._lateness / 1000:g} s more" if self._lateness else ""
        raise LateRow(
            f"late: its event time is {time}, and event time has passed the end of its window, {end}{allowed}. "
            f"{IN_TIME}"
        )

    def _made_of(self, batch: Batch[Any], refused: Sequence[int], made: Sequence[Sequence[Result]]) -> Batch[Any]:
        """The results that rows have made again. ``made``: those of each row that was not refused."""
        kept = batch.without(refused)
        outputs = [[output for _, outputs in results for output in outputs] for results in made]
        times = [[time for time, outputs in results for _ in outputs] for results in made]
        out = kept.repeated(list(map(len, outputs)))
        flat: list[Any] = list(chain.from_iterable(outputs))
        return replace(out, values=flat, times=list(chain.from_iterable(times)), updates=None)


def nothing() -> ValueError:
    """The error for a function that makes None of a row."""
    return ValueError("None cannot be what a window holds of its rows: it stands for no value")


def times_of(batch: Batch[Any], operator: str) -> Sequence[int]:
    """The event times of rows, which the plan has seen to."""
    return event_time_of(batch.times, operator)
