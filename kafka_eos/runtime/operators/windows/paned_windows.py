"""Windows that consist of panes: each row is added to one pane, and a window merges the contents of its panes.

A pane has a timer at the end of its first window. While panes remain when a window closes, the newest of them has a
timer at the end of the next one. With ``lateness`` panes are kept that much longer. A result never removes rows: other
windows share them.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from kafka_eos._util.log_context import TrackedRows
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.records import Batch
from kafka_eos.plan import WindowNode
from kafka_eos.plan.window_assigners import PanedAssigner
from kafka_eos.runtime.operators.operator import call_each
from kafka_eos.runtime.operators.windows.clock_triggers import Result
from kafka_eos.runtime.operators.windows.window_operator import ABSENT, WindowOperator, make_none_error, times_of

_Place = tuple[Any, int]
"""A key and a pane."""


class PanedWindowOperator(WindowOperator):
    """Sliding windows, windows with early results, and windows that accept late rows.

    The other windows are in ``single_pane_windows``.
    """

    def __init__(self, node: WindowNode, assigner: PanedAssigner) -> None:
        super().__init__(node)
        self._assigner = assigner

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        panes, refused = call_each(self._assigner.pane, batch, times_of(batch, self._ctx.operator), self._ctx)
        batch = batch.drop(refused)
        if not panes:
            return batch
        places = list(zip(batch.keys or (), panes, strict=True))
        cells = self._cells.view(places)
        over = self._assigner.ends(min(panes))[0] <= self._timers.get_max_time() + 1
        simple = not over and self._by_count is None and self._by_clock is None
        return self._add(batch, places, cells) if simple else self._add_and_emit(batch, places, cells)

    def _add(self, batch: Batch[Any], places: Sequence[_Place], cells: MutableMapping[_Place, Any]) -> Batch[Any]:
        """Add rows, none of whose windows is closed; there is no trigger."""
        first, add, get = self._contents.first, self._contents.add, cells.get
        for index, (place, item) in enumerate(zip(places, TrackedRows(batch, self._items(batch)), strict=True)):
            acc = get(place, ABSENT)
            try:
                changed = first(item) if acc is ABSENT else add(acc, item)
                if changed is None:
                    raise make_none_error()
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                continue
            if acc is ABSENT:
                self._keep(place, changed, cells)
            else:
                cells[place] = changed
        return batch.take([])

    def _add_and_emit(
        self, batch: Batch[Any], places: Sequence[_Place], cells: MutableMapping[_Place, Any]
    ) -> Batch[Any]:
        """Add rows that may emit results. The outputs of a row are computed before anything is changed."""
        times = times_of(batch, self._ctx.operator)
        made: list[list[Result]] = []
        refused: list[int] = []
        for index, (place, item) in enumerate(zip(places, TrackedRows(batch, self._items(batch)), strict=True)):
            key, pane = place
            last = self._assigner.ends(pane)[-1]
            too_late = last + self._lateness <= self._timers.get_time(key) + 1
            try:
                if too_late:
                    results = self._too_late(times[index], batch.values[index], last)
                else:
                    changed, results = self._changed(place, cells.get(place, ABSENT), item)
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            made.append(results)
            if not too_late:
                self._keep(place, changed, cells)
        return self._build_results(batch, refused, made)

    def _changed(self, place: _Place, acc: Any, item: Any) -> tuple[Any, list[Result]]:
        """Return a pane's contents with one row more, and the results that the row emits."""
        key, pane = place
        ends = self._assigner.ends(pane)
        over = [] if ends[0] - 1 > self._timers.get_time(key) else self._over(place)
        changed = self._add_row(acc, item, copied=bool(over) or (acc is not ABSENT and self._is_full(acc, more=1)))
        if not self._is_full(changed):
            return changed, [(end - 1, self._result(key, end, pane, changed)) for end in over]
        results = [(end - 1, self._result(key, end, pane, changed)) for end in ends]
        return (0, changed[1]), results

    def _keep(self, place: _Place, changed: Any, cells: MutableMapping[_Place, Any]) -> None:
        if place not in cells:
            self._begin(place)
        cells[place] = changed
        if self._by_clock is not None:
            self._by_clock.mark_changed(*place)

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        end = time + 1
        found = self._list_panes(key, end)
        outputs = self._emitted_by_timer(key, self._assigner.start(end), end, list(found.values())) if found else ()
        if found:
            ends = self._assigner.ends(max(found))
            if ends[-1] > end:
                self._timers.add(key, ends[ends.index(end) + 1] - 1)
        for pane in found if not self._lateness else self._list_panes(key, end - self._lateness):
            if self._assigner.ends(pane)[-1] + self._lateness == end:
                self._delete(key, pane)
        return outputs

    def _early(self, key: Any, changed: Sequence[int], call: Callable[..., Sequence[Any]]) -> Sequence[Result]:
        passed = self._timers.get_time(key) + 1
        ends = sorted({end for pane in changed for end in self._assigner.ends(pane) if end > passed})
        results: list[Result] = []
        for end in ends:
            if found := self._list_panes(key, end):
                parts = list(found.values())
                results.append((end - 1, call(self._emitted, key, self._assigner.start(end), end, parts)))
        return results

    def _list_panes(self, key: Any, end: int) -> dict[int, Any]:
        """Return the non-empty panes of a window, in order."""
        get = self._cells.get
        return {pane: acc for pane in self._assigner.panes(end) if (acc := get((key, pane))) is not None}

    def _result(self, key: Any, end: int, pane: int, changed: Any) -> Sequence[Any]:
        """Return the outputs of a window, with the new contents of one of its panes."""
        there = {**self._list_panes(key, end), pane: changed}
        return self._emitted(key, self._assigner.start(end), end, [there[each] for each in sorted(there)])

    def _over(self, place: _Place) -> Sequence[int]:
        """Return the closed windows of a pane that may still change."""
        key, pane = place
        passed = self._timers.get_time(key) + 1
        return [end for end in self._assigner.ends(pane) if end <= passed < end + self._lateness]

    def _begin(self, place: _Place) -> None:
        """Register the timers of a pane that gets its first row."""
        key, pane = place
        ends, now = self._assigner.ends(pane), self._timers.get_time(key)
        if (following := next((end for end in ends if end - 1 > now), None)) is not None:
            self._timers.add(key, following - 1)
        if self._lateness:
            self._timers.add(key, ends[-1] - 1 + self._lateness)
