"""The as-of join: each row of a stream with what a table had for its key at the row's event time.

A row waits until event time has come to its time: no version that counts for it can come then. So versions are kept
that are newer than event time, and the newest one of the others; of a key that was taken away, none.

The state ``right`` has the versions of the table, None for a key that was taken away then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kafka_eos.core.records import Batch
from kafka_eos.plan import AsOfJoin, input_of
from kafka_eos.runtime.operators.joins.join_operator import SIDES, JoinOperator, Row

_NOTHING = Row(None, (0, 0, 0))
"""What a key has of which the table has no version yet."""


class AsOfJoinOperator(JoinOperator):
    """See ``KeyedStream.join_as_of`` and ``left_join_as_of``."""

    declared_with = (".key_by(..., values=...)", ".table(..., values=...)")

    def __init__(self, node: AsOfJoin) -> None:
        super().__init__(node)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        side = input_of(batch.lane, len(SIDES))
        return super().process(replace(batch, values=[self._node.seen(side, value) for value in batch.values]))

    def _first(self, key: Any, time: int) -> int | None:
        return time if time > self._timers.now(key) else None

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        version = self._version(key, time)
        given = self._states[SIDES[0]].get((key, time)) or ()
        outputs = self._joined([(Row(value, place), version) for value, place in given])
        if given:
            self._states[SIDES[0]].delete((key, time))
        return outputs

    def _version(self, key: Any, time: int) -> Row:
        """What the table has of a key at a time; older versions are forgotten."""
        versions = self._states[SIDES[1]]
        known = []
        for (_, at), elements in versions.within(key):
            if at > time:
                break
            known.append((at, elements))
        if not known:
            return _NOTHING
        at, elements = known.pop()
        rows = [Row(value, place) for value, place in elements]
        places = self._places(1, rows)
        newest = max(rows, key=lambda row: places[id(row)])
        for older, _ in known:
            versions.delete((key, older))
        if newest.value is None:
            versions.delete((key, at))
        elif len(rows) > 1:
            versions.put((key, at), [(newest.value, newest.place)])
        return newest
