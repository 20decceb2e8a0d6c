"""Windows of one pane that are dropped when they close: tumbling windows and calendar days.

They close for all keys at once, so keys have no timers: closed panes are taken out of the state in bulk, in the order
of panes, then of key groups and keys. A result is a firing all the same.

Rule: while windows are closed, event time stays at their last moment. So a restore knows what a snapshot has left of
them, and closes it first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from itertools import repeat
from typing import Any

from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.state import PaneContents, StateDescriptor
from kafka_eos.core.errors import Bug
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.records import Batch
from kafka_eos.core.windows import Window
from kafka_eos.plan import WindowNode
from kafka_eos.plan.window_assigners import PanedAssigner
from kafka_eos.runtime.operators.operator import OperatorContext, call_each
from kafka_eos.runtime.operators.windows.clock_triggers import Result
from kafka_eos.runtime.operators.windows.window_operator import (
    ABSENT,
    WINDOWS,
    WindowOperator,
    make_none_error,
    times_of,
)
from kafka_eos.runtime.state.timers import TimeCodec

_Cells = Mapping[int, MutableMapping[Any, Any]]
"""Window contents, by pane and key."""


class SinglePaneWindowOperator(WindowOperator):
    """Tumbling and calendar-day windows; their state is of kind pane."""

    def __init__(self, node: WindowNode, assigner: PanedAssigner) -> None:
        super().__init__(node)
        self._assigner = assigner
        self._purges = node.trigger is not None and node.trigger.purges

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        held, of = self._contents.codec, self._definition
        return (StateDescriptor(WINDOWS, self._key_codec, held, "pane", entry=TimeCodec(), definition=of),)

    def open(self, ctx: OperatorContext) -> None:
        self._panes = ctx.panes(self.states()[0])
        self._open_rest(ctx)
        self._left = self._resume_closing()

    # ------------------------------------------------------------ rows

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        panes, refused = call_each(self._assigner.pane, batch, times_of(batch, self._ctx.operator), self._ctx)
        batch = batch.drop(refused)
        if not panes:
            return batch
        cells = self._panes.views(_by_pane(panes, batch.keys or []))
        over = self._end(min(panes)) <= self._timers.get_max_time() + 1
        simple = not over and self._by_count is None and self._by_clock is None
        return self._add(batch, panes, cells) if simple else self._add_and_emit(batch, panes, cells)

    def _add(self, batch: Batch[Any], panes: Sequence[int], cells: _Cells) -> Batch[Any]:
        """Add rows, none of whose windows is closed; there is no trigger."""
        first, add = self._contents.first, self._contents.add
        held_by = repeat(*cells.values()) if len(cells) == 1 else map(cells.__getitem__, panes)
        # There are as many items as keys; the first column may be infinite.
        rows = zip(held_by, batch.keys or (), TrackedRows(batch, self._items(batch)), strict=False)
        for index, (held, key, item) in enumerate(rows):
            acc = held.get(key, ABSENT)
            try:
                changed = first(item) if acc is ABSENT else add(acc, item)
                if changed is None:
                    raise make_none_error()
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                continue
            held[key] = changed
        return batch.take([])

    def _add_and_emit(self, batch: Batch[Any], panes: Sequence[int], cells: _Cells) -> Batch[Any]:
        """Add rows that may emit results. The outputs of a row are computed before anything is changed."""
        times = times_of(batch, self._ctx.operator)
        made: list[list[Result]] = []
        refused: list[int] = []
        rows = zip(panes, batch.keys or (), TrackedRows(batch, self._items(batch)), strict=True)
        for index, (pane, key, item) in enumerate(rows):
            end = self._end(pane)
            too_late = end <= self._timers.get_time(key) + 1
            try:
                if too_late:
                    results = self._too_late(times[index], batch.values[index], end)
                else:
                    changed, results = self._changed(key, pane, cells[pane].get(key, ABSENT), item)
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            made.append(results)
            if not too_late:
                self._keep(key, pane, changed, cells[pane])
        return self._build_results(batch, refused, made)

    def _changed(self, key: Any, pane: int, acc: Any, item: Any) -> tuple[Any, list[Result]]:
        """Return a pane's contents with one row more, ABSENT if it was purged; and the results that the row emits."""
        changed = self._add_row(acc, item, copied=acc is not ABSENT and self._is_full(acc, more=1))
        if not self._is_full(changed):
            return changed, []
        end = self._end(pane)
        results = [(end - 1, self._emitted(key, self._assigner.start(end), end, [changed]))]
        return ABSENT if self._purges else (0, changed[1]), results

    def _keep(self, key: Any, pane: int, changed: Any, held: MutableMapping[Any, Any]) -> None:
        if changed is ABSENT:
            held.pop(key, None)
            return
        held[key] = changed
        if self._by_clock is not None:
            self._by_clock.mark_changed(key, pane)

    def _early(self, key: Any, changed: Sequence[int], call: Callable[..., Sequence[Any]]) -> Sequence[Result]:
        results: list[Result] = []
        for pane in sorted(changed):
            if (acc := self._panes.get((key, pane))) is not None:  # a closed window was taken completely
                end = self._end(pane)
                results.append((end - 1, call(self._emitted, key, self._assigner.start(end), end, [acc])))
                if self._purges:
                    self._panes.delete((key, pane))
        return results

    def _end(self, pane: int) -> int:
        return self._assigner.ends(pane)[-1]

    # ------------------------------------------------------------ closed windows

    def advance(self, time: int) -> Iterator[Batch[Any]]:
        yield from self._left
        while (pane := self._panes.get_first_pane()) is not None and self._end(pane) - 1 <= time:
            last = self._end(pane) - 1
            self._timers.begin_time(last)
            for taken in self._panes.take_pane(pane):
                yield self._closed(pane, taken)
        for timer in self._timers.pop_due(time):
            raise Bug(f"operator {self._ctx.operator!r} sets no timers, and one is due: {timer}")

    def _resume_closing(self) -> Iterator[Batch[Any]]:
        """Emit windows that were over when the snapshot was taken and not all closed."""
        left: dict[int, list[int]] = {}
        for pane, group in self._panes.get_restored_panes():
            if self._end(pane) - 1 <= self._timers.get_group_time(group):
                left.setdefault(pane, []).append(group)
        for pane in sorted(left):
            for taken in self._panes.take_pane(pane, left[pane]):
                yield self._closed(pane, taken)

    def _closed(self, pane: int, taken: PaneContents[Any]) -> Batch[Any]:
        end = self._end(pane)
        window, emit, time = Window(self._assigner.start(end), end), self._contents.emit, end - 1
        made: list[Sequence[Any]] = []
        for key, acc in zip(taken.keys, taken.values, strict=True):
            try:
                made.append(emit(key, window, acc))
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                made.append(self._firings.reject(key, time, error))
        if self._by_clock is not None:
            for key in taken.keys:
                self._by_clock.forget(key, pane)
        return self._firings.together(time, taken.groups, taken.encoded, made)


def _by_pane(panes: Sequence[int], keys: Sequence[Any]) -> Mapping[int, Sequence[Any]]:
    """Return the keys of rows, by their panes."""
    if len(set(panes)) == 1:
        return {panes[0]: keys}
    found: dict[int, list[Any]] = {}
    for pane, key in zip(panes, keys, strict=True):
        found.setdefault(pane, []).append(key)
    return found
