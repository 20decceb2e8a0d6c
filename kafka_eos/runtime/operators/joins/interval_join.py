"""The interval join: each row of the first stream with rows of the second whose time is within an interval of its own.

A row is joined when the watermark reaches its time, with rows that were before it. It is kept as long as later rows may
match it. So a pair is emitted at the later of its two times, when no other row can come between.

Matched rows are distinguished only if unmatched rows are wanted: then they move from ``left`` to ``left-met``, and from
``right`` to ``right-met``. So the stored definition includes whether they are wanted: stored rows of a join without it
lack this information.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.plan import IntervalJoinNode
from kafka_eos.runtime.operators.joins.join_operator import SIDES, JoinOperator, JoinRow

_Found = dict[int, list[JoinRow]]
"""Rows of a key and stream, by time."""


class IntervalJoinOperator(JoinOperator):
    """The operator of ``ConnectedStreams.interval_join``."""

    def __init__(self, node: IntervalJoinNode) -> None:
        super().__init__(node)
        self._lower, self._upper = node.interval.lower, node.interval.upper
        self._kept = max(self._upper, 0), max(-self._lower, 0)
        """The time for which a row may still find partners, by stream."""

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        asked = [side for side, tag in enumerate(self._node.unmatched) if tag is not None]
        return (*super().states(), *(self._described(_met(side), self._codecs[side]) for side in asked))

    def _find_first_timer(self, key: Any, time: int) -> int | None:
        return time if time > self._timers.get_time(key) else None

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        new = [self._at(key, side, time) for side in (0, 1)]
        older = [bool(new[1 - side]) and self._kept[side] > 0 for side in (0, 1)]
        found = [self._until(key, side, time) if older[side] else {time: new[side]} for side in (0, 1)]
        pairs = self._pairs(found[0], found[1], time)
        changed: tuple[set[int], set[int]] = (set(), set())
        for pair in pairs:
            for side, row in enumerate(pair):
                if not row.is_matched:
                    row.is_matched = True
                    changed[side].add(row.time)
        outputs = self._joined(key, time, pairs)
        for side in (0, 1):
            if new[side] and self._kept[side]:
                self._timers.add(key, time + self._kept[side])
            outputs += self._over(key, side, time - self._kept[side], found[side])
            if self._node.unmatched[side] is not None:
                self._store_matched(
                    key, side, {at: found[side][at] for at in changed[side] if at + self._kept[side] > time}
                )
        return outputs

    def _pairs(self, left: _Found, right: _Found, time: int) -> list[tuple[JoinRow, JoinRow]]:
        """Return the pairs whose later row is of that time."""
        new = [
            (one, other)
            for at, others in right.items()
            if self._lower <= at - time <= self._upper
            for one in left.get(time, ())
            for other in others
        ]
        old = [
            (one, other)
            for at, ones in left.items()
            if at < time and self._lower <= time - at <= self._upper
            for other in right.get(time, ())
            for one in ones
        ]
        return new + old

    def _over(self, key: Any, side: int, time: int, found: _Found) -> list[Any]:
        """Drop the rows of a time that nothing can match any more; return them if they are unmatched."""
        asked = self._node.unmatched[side] is not None
        rows = (found[time] if time in found else self._at(key, side, time)) if asked else ()
        for state in self._names(side):
            self._states[state].delete((key, time))
        return self._tag_unmatched(side, rows)

    def _store_matched(self, key: Any, side: int, found: _Found) -> None:
        waiting, met = self._names(side)
        for time, rows in found.items():
            for state, which in ((waiting, False), (met, True)):
                elements = [(row.value, row.place) for row in rows if row.is_matched is which]
                if elements:
                    self._states[state].put((key, time), elements)
                else:
                    self._states[state].delete((key, time))

    def _at(self, key: Any, side: int, time: int) -> list[JoinRow]:
        names = self._names(side)
        held = [self._states[state].get((key, time)) or () for state in names]
        return [JoinRow(value, place, bool(met)) for met, elements in enumerate(held) for value, place in elements]

    def _until(self, key: Any, side: int, time: int) -> _Found:
        """Return the rows up to a time that are not over; later ones arrived ahead of the watermark."""
        found: _Found = {}
        for met, state in enumerate(self._names(side)):
            for at, elements in self._rows(state, key, time - self._kept[side], time + 1):
                found.setdefault(at, []).extend(JoinRow(value, place, bool(met)) for value, place in elements)
        return found

    def _names(self, side: int) -> Sequence[str]:
        return (SIDES[side],) if self._node.unmatched[side] is None else (SIDES[side], _met(side))


def _met(side: int) -> str:
    return f"{SIDES[side]}-met"
