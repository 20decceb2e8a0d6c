"""The window join: each row of the first stream with each row of the second in the same window.

A window closes when the watermark passes its end; sessions consist of the rows of both streams. A row waits until its
last window is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from kafka_eos.plan import WindowJoinNode
from kafka_eos.plan.window_assigners import PanedAssigner, SessionWindows
from kafka_eos.runtime.operators.joins.join_operator import SIDES, JoinOperator, JoinRow

_Rows = list[JoinRow]


class WindowJoinOperator(JoinOperator):
    """The base of joins in windows and in sessions."""

    def __init__(self, node: WindowJoinNode) -> None:
        super().__init__(node)

    def _of_window(self, key: Any, start: int, end: int) -> tuple[_Rows, _Rows]:
        """Return the rows of both streams between these times."""
        left, right = (
            [JoinRow(*element) for _, elements in self._rows(side, key, start, end) for element in elements]
            for side in SIDES
        )
        return left, right

    def _result(self, key: Any, time: int, left: _Rows, right: _Rows) -> list[Any]:
        """Return a window's outputs: its pairs, or the rows of one stream if the other has none."""
        outputs = self._joined(key, time, [(one, other) for one in left for other in right])
        for side, (rows, others) in enumerate(((left, right), (right, left))):
            outputs += self._tag_unmatched(side, rows) if not others else []
        return outputs

    def _forget(self, key: Any, time: int) -> None:
        for state in SIDES:
            self._states[state].delete((key, time))


class PanedJoinOperator(WindowJoinOperator):
    """Join of windows that follow from a row's time alone (tumbling, sliding, days)."""

    def __init__(self, node: WindowJoinNode, assigner: PanedAssigner) -> None:
        super().__init__(node)
        self._assigner = assigner

    def _ends(self, time: int) -> Sequence[int]:
        return self._assigner.ends(self._assigner.pane(time))

    def _find_first_timer(self, key: Any, time: int) -> int | None:
        now = self._timers.get_time(key)
        return next((end - 1 for end in self._ends(time) if end - 1 > now), None)

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        end = time + 1
        left, right = self._of_window(key, self._assigner.start(end), end)
        outputs = self._result(key, time, left, right)
        for at in {row.time for row in chain(left, right)}:
            ends = self._ends(at)
            if ends[-1] == end:
                self._forget(key, at)
            else:
                self._timers.add(key, ends[ends.index(end) + 1] - 1)
        return outputs


class SessionJoinOperator(WindowJoinOperator):
    """Join within sessions of the rows of both streams.

    Each row's time has a timer at which a session would end after it.
    """

    def __init__(self, node: WindowJoinNode, assigner: SessionWindows) -> None:
        super().__init__(node)
        self._gap = assigner.gap

    def _find_first_timer(self, key: Any, time: int) -> int | None:
        end, now = time + self._gap - 1, self._timers.get_time(key)
        if end > now:
            return end
        # A later row of its session has a timer too; this one will find nothing to do.
        return now + 1 if self._has_rows(key, time - self._gap + 1, time + self._gap) else None

    def _has_rows(self, key: Any, start: int, end: int) -> bool:
        return any(True for side in SIDES for _ in self._rows(side, key, start, end))

    def _find_start(self, key: Any, last: int) -> int:
        """Return the first time of the session that has rows at ``last``."""
        start = last
        while before := [at for side in SIDES for at, _ in self._rows(side, key, start - self._gap + 1, start)]:
            start = min(before)
        return start

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        end, last = time + 1, time + 1 - self._gap
        if self._has_rows(key, last + 1, end) or not self._has_rows(key, last, last + 1):
            return ()
        start = self._find_start(key, last)
        left, right = self._of_window(key, start, end)
        for at in {row.time for row in chain(left, right)}:
            self._forget(key, at)
        return self._result(key, time, left, right)
