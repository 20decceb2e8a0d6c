"""The window join: each row of the first stream with each of the second that is in one window with it.

A window is over when event time has come to its end, whichever streams its rows are of; sessions are of the rows of
both. A row waits until the last window that it is in is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from kafka_eos.plan import WindowJoin
from kafka_eos.plan.window_assigners import Paned, Session
from kafka_eos.runtime.operators.joins.join_operator import SIDES, JoinOperator, Row

_Rows = list[Row]


class WindowJoinOperator(JoinOperator):
    """What windows and sessions have in common."""

    def __init__(self, node: WindowJoin) -> None:
        super().__init__(node)

    def _of_window(self, key: Any, start: int, end: int) -> tuple[_Rows, _Rows]:
        """The rows of both streams between these times."""
        left, right = (
            [Row(*element) for at, elements in self._rows(key, side) if start <= at < end for element in elements]
            for side in (0, 1)
        )
        return left, right

    def _result(self, left: _Rows, right: _Rows) -> list[Any]:
        """Of a window: its pairs, and rows of one stream where there are none of the other."""
        outputs = self._joined([(one, other) for one in left for other in right])
        for side, (rows, others) in enumerate(((left, right), (right, left))):
            outputs += self._alone(side, rows) if not others else []
        return outputs

    def _forget(self, key: Any, time: int) -> None:
        for state in SIDES:
            self._states[state].delete((key, time))


class PanedJoin(WindowJoinOperator):
    """Windows that are told by the time of a row alone."""

    def __init__(self, node: WindowJoin, assigner: Paned) -> None:
        super().__init__(node)
        self._assigner = assigner

    def _ends(self, time: int) -> Sequence[int]:
        return self._assigner.ends(self._assigner.pane(time))

    def _first(self, key: Any, time: int) -> int | None:
        now = self._timers.now(key)
        return next((end - 1 for end in self._ends(time) if end - 1 > now), None)

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        end = time + 1
        left, right = self._of_window(key, self._assigner.start(end), end)
        outputs = self._result(left, right)
        for at in {row.time for row in chain(left, right)}:
            ends = self._ends(at)
            if ends[-1] == end:
                self._forget(key, at)
            else:
                self._timers.add(key, ends[ends.index(end) + 1] - 1)
        return outputs


class SessionJoin(WindowJoinOperator):
    """Sessions of the rows of both streams. Each time in them has a timer for when a session would end behind it."""

    def __init__(self, node: WindowJoin, assigner: Session) -> None:
        super().__init__(node)
        self._gap = assigner.gap

    def _first(self, key: Any, time: int) -> int | None:
        end, now = time + self._gap - 1, self._timers.now(key)
        if end > now:
            return end
        # The session that it is in has a timer of another row; this one will find that there is nothing to do.
        return now + 1 if any(abs(at - time) < self._gap for at in self._times(key)) else None

    def _times(self, key: Any) -> list[int]:
        """Those of all rows that wait, in order."""
        return sorted({at for side in (0, 1) for at, _ in self._rows(key, side)})

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        end, times = time + 1, self._times(key)
        last = end - self._gap
        if last not in times or any(last < at < end for at in times):
            return ()
        start = last
        for at in reversed([at for at in times if at < last]):
            if start - at >= self._gap:
                break
            start = at
        left, right = self._of_window(key, start, end)
        for at in {row.time for row in chain(left, right)}:
            self._forget(key, at)
        return self._result(left, right)
