"""The as-of join: each row of a stream with a table's version for its key at the row's event time.

A row waits until the watermark reaches its time: no relevant version can arrive afterwards. So the state keeps versions
newer than the watermark, and the newest of the others, unless it deletes the key.

The state ``right`` has the versions of the table, None for a deletion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from kafka_eos.core.records import MIN_EVENT_TIME, Batch
from kafka_eos.plan import AsOfJoinNode, input_of
from kafka_eos.runtime.operators.joins.join_operator import SIDES, JoinOperator, JoinRow

_NOTHING = JoinRow(None, (0, 0, 0))
"""The version of a key that the table does not have yet."""


class AsOfJoinOperator(JoinOperator):
    """The operator of ``KeyedStream.join_as_of`` and ``left_join_as_of``."""

    declared_with = (".key_by(..., values=...)", ".table(..., values=...)")

    def __init__(self, node: AsOfJoinNode) -> None:
        super().__init__(node)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        side = input_of(batch.lane, len(SIDES))
        return super().process(
            replace(batch, values=[self._node.extract_stored(side, value) for value in batch.values])
        )

    def _find_first_timer(self, key: Any, time: int) -> int | None:
        return time if time > self._timers.get_time(key) else None

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        version = self._version(key, time)
        given = self._states[SIDES[0]].get((key, time)) or ()
        outputs = self._joined(key, time, [(JoinRow(value, place), version) for value, place in given])
        if given:
            self._states[SIDES[0]].delete((key, time))
        return outputs

    def _version(self, key: Any, time: int) -> JoinRow:
        """Return the table's version for a key at a time, and drop older versions."""
        versions = self._states[SIDES[1]]
        known = list(self._rows(SIDES[1], key, MIN_EVENT_TIME, time + 1))
        if not known:
            return _NOTHING
        at, elements = known.pop()
        rows = [JoinRow(value, place) for value, place in elements]
        places = self._places(1, rows)
        newest = max(rows, key=lambda row: places[id(row)])
        for older, _ in known:
            versions.delete((key, older))
        if newest.value is None:
            versions.delete((key, at))
        elif len(rows) > 1:
            versions.put((key, at), [(newest.value, newest.place)])
        return newest
