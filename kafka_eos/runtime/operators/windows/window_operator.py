"""The base of event-time windows: late rows, results, and the state.

The state ``windows`` has one entry per key and part of a window, named by its start. It is dropped when the watermark
passes the last window that needs it. Timers trigger the work; windows that close for all keys at once need none, see
``single_pane_windows``.

    a trigger                    see ``triggers``
    a closed window              is a firing: its operator, its key, and the last moment of the window
    a row of a closed window, within ``lateness``    emits the result again, and is its origin
    a row without an open window    goes to the side output for late rows, or is rejected: it is never dropped silently

Rule: a rejected row has changed nothing, and the outputs of a firing depend on no row of a later time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.error_messages import UnfitValue
from kafka_eos.core.errors import Bug
from kafka_eos.core.provenance import TIMERS as EVENT_TIMERS
from kafka_eos.core.records import Batch
from kafka_eos.core.windows import Window
from kafka_eos.plan import WindowNode
from kafka_eos.plan.triggers import ClockTrigger, CountTrigger
from kafka_eos.runtime.operators.operator import Operator, OperatorContext, event_time_of
from kafka_eos.runtime.operators.side_outputs import TaggedValue
from kafka_eos.runtime.operators.storability import expect_storable, merge_storable
from kafka_eos.runtime.operators.timer_firing import EVENT_STATE, Firings
from kafka_eos.runtime.operators.windows.clock_triggers import ClockTriggerState, Result, drop_clock_state
from kafka_eos.runtime.state.timers import TimeCodec, create_timer_descriptor

WINDOWS: Final = "windows"
ABSENT: Final[Any] = object()


LATE_HINT: Final = "To keep such rows, set late= to a side output, or wait longer with bounded(...)"
"""The remedy for late rows, for error messages."""


class LateRow(ValueError):
    """All windows of a row were closed when it arrived."""


class WindowOperator(Operator):
    """Adds rows to windows, and emits results when the watermark advances.

    See ``paned_windows`` and ``session_windows``.
    """

    def __init__(self, node: WindowNode) -> None:
        self._definition, trigger = node.definition, node.trigger
        self._contents, self._key_codec = expect_storable(node.contents), node.key_codec
        self._merge_stored = merge_storable(node.contents)
        self._lateness, self._late = node.lateness, node.late
        self._by_count = trigger if isinstance(trigger, CountTrigger) else None
        self._by_clock = ClockTriggerState(trigger, node.key_codec) if isinstance(trigger, ClockTrigger) else None

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        """Return all states except timers."""
        held, of = self._contents.codec, self._definition
        return (StateDescriptor(WINDOWS, self._key_codec, held, "map", entry=TimeCodec(), definition=of),)

    def list_timer_states(self) -> tuple[StateDescriptor[bool], ...]:
        """Return the descriptors of the timers, and the state of the clock trigger."""
        of_clock = () if self._by_clock is None else self._by_clock.states()
        return (create_timer_descriptor(EVENT_STATE, self._key_codec), *of_clock)

    def open(self, ctx: OperatorContext) -> None:
        self._cells, *self._others = map(ctx.value_state, self.states())
        self._open_rest(ctx)

    def _open_rest(self, ctx: OperatorContext) -> None:
        """Open everything except the states."""
        self._ctx = ctx
        self._timers = ctx.timers(self.list_timer_states()[0])
        if self._by_clock is None:
            drop_clock_state(ctx)
        else:
            self._by_clock.open(ctx)
        self._firings = Firings(ctx, EVENT_TIMERS, self._key_codec.encode, "the function")

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        raise NotImplementedError

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        """Process a time of a key; return the outputs of the window whose last moment it is."""
        raise NotImplementedError

    def advance(self, time: int) -> Iterator[Batch[Any]]:
        return self._firings.fire(self._timers.pop_due(time), self._fire)

    @property
    def uses_clock(self) -> bool:
        return self._by_clock is not None

    def tick(self, now: int) -> Iterable[Batch[Any]]:
        return () if self._by_clock is None else self._by_clock.fire(now, self._early)

    def get_next_time(self) -> int | None:
        return None if self._by_clock is None else self._by_clock.soonest()

    def _early(self, key: Any, changed: Sequence[int], call: Callable[..., Sequence[Any]]) -> Sequence[Result]:
        """Return results of open windows of a key with new rows, in the parts that begin at ``changed``.

        ``call``: calls a function with arguments; it returns nothing if the function raises and may be rejected.
        """
        raise NotImplementedError

    # ------------------------------------------------------------ for those that know their windows

    def _is_full(self, *accs: Any, more: int = 0) -> bool:
        """Return whether these rows, and ``more``, complete the count of the trigger since its last result."""
        return self._by_count is not None and sum(acc[0] for acc in accs) + more >= self._by_count.rows

    def _delete(self, key: Any, start: int) -> None:
        """Delete the contents that begin at ``start``."""
        self._cells.delete((key, start))
        if self._by_clock is not None:
            self._by_clock.forget(key, start)

    def _items(self, batch: Batch[Any]) -> Sequence[Any]:
        """Return the item that is added to windows, for each row."""
        return batch.with_sort_keys() if self._contents.by_time else batch.values

    def _emitted(self, key: Any, start: int, end: int, parts: Sequence[Any]) -> Sequence[Any]:
        merge = self._contents.merge
        if len(parts) > 1 and merge is None:
            raise Bug(f"operator {self._ctx.operator!r} has parts of a window that cannot be put together")
        whole = parts[0] if merge is None else reduce(merge, parts)
        return self._contents.emit(key, Window(start, end), whole)

    def _emitted_by_timer(self, key: Any, start: int, end: int, parts: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs of a window at its end; nothing if they are rejected."""
        return self._firings.call(key, end - 1, self._emitted, key, start, end, parts)

    def _add_copied(self, acc: Any, item: Any) -> Any:
        """As add, but returns a new object, since the row may still be rejected."""
        contents, merge = self._contents, self._merge_stored
        return contents.add(acc, item) if merge is None else merge(acc, contents.first(item))

    def _add_row(self, acc: Any, item: Any, *, copied: bool) -> Any:
        """Return a pane's contents with one row more.

        Raises the user function's errors, and ValueError if it returns None.
        """
        if acc is ABSENT:
            changed = self._contents.first(item)
        else:
            changed = self._add_copied(acc, item) if copied else self._contents.add(acc, item)
        if changed is None:
            raise make_none_error()
        return changed

    def _too_late(self, time: int, value: Any, end: int) -> list[Result]:
        """Return the outputs of a row whose last window, which ends at ``end``, accepts no more rows."""
        self._ctx.count_late(1)
        if self._late is not None:
            return [(time, [TaggedValue(self._late, value)])]
        allowed = f" and {self._lateness / 1000:g} s more" if self._lateness else ""
        raise LateRow(
            f"late: the row's event time is {time}, and the watermark has passed the end of its window, "
            f"{end}{allowed}. {LATE_HINT}"
        )

    def _build_results(self, batch: Batch[Any], refused: Sequence[int], made: Sequence[Sequence[Result]]) -> Batch[Any]:
        """Build the batch of results that rows have emitted. ``made``: those of each row that was not rejected."""
        kept = batch.drop(refused)
        outputs = [[output for _, outputs in results for output in outputs] for results in made]
        times = [[time for time, outputs in results for _ in outputs] for results in made]
        out = kept.repeat(list(map(len, outputs)))
        flat: list[Any] = list(chain.from_iterable(outputs))
        return replace(out, values=flat, event_times=list(chain.from_iterable(times)), updates=None)


def make_none_error() -> ValueError:
    """Build the error for a function that returns None for a window's contents."""
    return UnfitValue("the contents of a window cannot be None")


def times_of(batch: Batch[Any], operator: str) -> Sequence[int]:
    """Return the event times of rows; the plan guarantees that they have some."""
    return event_time_of(batch.event_times, operator)
