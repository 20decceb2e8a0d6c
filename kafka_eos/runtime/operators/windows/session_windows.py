"""Session windows: rows of a key that are less than a gap apart are in one window; a row may merge two sessions.

The state ``sessions`` has the sessions of a key; the contents of one are stored under its start. A session has a timer
at or before its end: when it fires too early, it is set again for the current end. So a session that grows with each
row does not set a timer per row.

Rules: a row does not belong to a session that ends at the row's time, so a row behind a closed session starts a new
one. Rows and timers read the sessions that they touch, not all open sessions of the key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import MsgpackCodec
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.records import Batch
from kafka_eos.plan import WindowNode
from kafka_eos.plan.window_assigners import SessionWindows
from kafka_eos.runtime.operators.windows.clock_triggers import Result
from kafka_eos.runtime.operators.windows.window_operator import WindowOperator, make_none_error, times_of

SESSIONS = "sessions"
_Span = tuple[int, int]
"""Start and end of a session."""
_START, _END = itemgetter(0), itemgetter(1)
_SPANS: MsgpackCodec[tuple[_Span, ...]] = MsgpackCodec(tuple[tuple[int, int], ...])


class SessionWindowOperator(WindowOperator):
    """Session windows of each key, in order; no two touch."""

    def __init__(self, node: WindowNode, assigner: SessionWindows) -> None:
        super().__init__(node)
        self._gap = assigner.gap

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        return (*super().states(), StateDescriptor(SESSIONS, self._key_codec, _SPANS))

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        times, keys = times_of(batch, self._ctx.operator), batch.keys or []
        (state,) = self._others
        spans = state.view(keys)
        rows = zip(keys, times, strict=True)
        known = [(key, span[0]) for key, time in rows for span in self._find_touched(spans.get(key, ()), time)[1]]
        self._view = self._cells.view([*known, *zip(keys, times, strict=True)])
        made: list[list[Result]] = []
        refused: list[int] = []
        for index, (key, time, item) in enumerate(
            zip(keys, times, TrackedRows(batch, self._items(batch)), strict=True)
        ):
            mine = spans.get(key, ())
            first, touched = self._find_touched(mine, time)
            start = min(time, touched[0][0]) if touched else time
            end = max(time + self._gap, touched[-1][1]) if touched else time + self._gap
            now = self._timers.get_time(key)
            try:
                if end - 1 + self._lateness <= now:
                    made.append(self._too_late(time, batch.values[index], end))
                    continue
                over = end - 1 <= now
                acc = self._with(key, touched, item, over=over)
                if acc is None:
                    raise make_none_error()
                full = self._is_full(acc)
                results = [(end - 1, self._emitted(key, start, end, [acc]))] if over or full else []
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            made.append(results)
            self._keep(key, touched, (start, end), (0, acc[1]) if full else acc)
            if self._by_clock is not None and not over:
                self._by_clock.mark_changed(key, start)
            if touched != (span := (start, end),):
                spans[key] = (*mine[:first], span, *mine[first + len(touched) :])
            self._wait(key, touched, end, now)
        return self._build_results(batch, refused, made)

    def _find_touched(self, spans: Sequence[_Span], time: int) -> tuple[int, Sequence[_Span]]:
        """Return the sessions to which a row of that time belongs, and where they begin in ``spans``."""
        first = bisect_right(spans, time, key=_END)
        return first, spans[first : bisect_left(spans, time + self._gap, key=_START)]

    def _keep(self, key: Any, touched: Sequence[_Span], span: _Span, acc: Any) -> None:
        """Store a session in place of those that were merged into it."""
        for start, _ in touched:
            self._view.pop((key, start), None)
        self._view[key, span[0]] = acc

    def _early(self, key: Any, changed: Sequence[int], call: Callable[..., Sequence[Any]]) -> Sequence[Result]:
        (state,) = self._others
        now = self._timers.get_time(key)
        starts = frozenset(changed)
        there = [(start, end) for start, end in state.get(key) or () if start in starts and end - 1 > now]
        return [
            (end - 1, call(self._emitted, key, start, end, [self._cells.get((key, start))])) for start, end in there
        ]

    def _with(self, key: Any, touched: Sequence[_Span], item: Any, *, over: bool) -> Any:
        """Return the merged contents of these sessions with one row more: a new object if it emits a result."""
        contents = self._contents
        if not touched:
            return contents.first(item)
        first, *others = [self._view[key, start] for start, _ in touched]
        if not others and not over and not self._is_full(first, more=1):
            return contents.add(first, item)
        assert self._merge_stored is not None  # the plan guarantees it
        for other in (*others, contents.first(item)):
            first = self._merge_stored(first, other)
        return first

    def _wait(self, key: Any, touched: Sequence[_Span], end: int, now: int) -> None:
        """Set a timer for the end of the session, unless one of its parts has one, or for its expiry."""
        if end - 1 <= now:
            self._timers.add(key, end - 1 + self._lateness)
        elif not any(before - 1 > now for _, before in touched):
            self._timers.add(key, end - 1)

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        (state,) = self._others
        spans = state.get(key) or ()
        outputs: Sequence[Any] = ()
        at = bisect_right(spans, time, key=_END)
        if at < len(spans) and spans[at][0] <= time:
            start, end = spans[at]
            if end - 1 > time:
                self._timers.add(key, end - 1)
            else:
                outputs = self._emitted_by_timer(key, start, end, [self._cells.get((key, start))])
                if self._lateness:
                    self._timers.add(key, time + self._lateness)
        expired = time + 1 - self._lateness
        at = bisect_left(spans, expired, key=_END)
        if at < len(spans) and spans[at][1] == expired:
            self._delete(key, spans[at][0])
            if left := spans[:at] + spans[at + 1 :]:
                state.put(key, left)
            else:
                state.delete(key)
        return outputs
