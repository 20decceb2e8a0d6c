"""Results of joins for pairs and for rows without a partner, by the user's functions inside Spark's Python workers.

Rule: ``results`` runs on all results of a key together, in the order of times. Results of one time are in the order
that joins define: pairs by their left and then their right row, then rows without a partner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from kafka_eos.audit.tables.python_tasks import columns_of, cut_of
from kafka_eos.audit.tables.windows.join_sql import LEFT, PAIR
from kafka_eos.audit.tables.windows.window_rows import Part, RequestedRows, TakenRow, results_of
from kafka_eos.core.provenance import TIMERS
from kafka_eos.core.records import Batch
from kafka_eos.plan import JoinNode, Plan, input_of
from kafka_eos.runtime.operators.side_outputs import TaggedValue
from kafka_eos.runtime.operators.timer_firing import FiringOrigin, branch_of

_AT_ONCE = 500


class JoinedRow(NamedTuple):
    """A row of the table ``JOINED`` of ``join_sql``."""

    grp: bytes
    group: int
    at: int
    kind: int
    left: Mapping[str, Any] | None
    right: Mapping[str, Any] | None
    loose: bool

    @property
    def firing(self) -> tuple[bytes, int]:
        return self.grp, self.at


def results(
    app: str, workers: int, operator: str, wanted: RequestedRows, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the results of a join, up to the next join. Input: ``JOINED`` rows, in the order of keys and times."""
    plan = cut_of(app, workers).whole
    with Part.open(plan, frozenset({operator}), wanted) as part:
        made = _Firings(plan, operator, part)
        rows = (JoinedRow(*row) for batch in batches for row in zip(*columns_of(batch), strict=True))
        for _, firing in groupby(rows, key=lambda row: row.firing):
            made.add(list(firing))
            if made.full:
                made.hand_on()
                yield part.take()
        made.hand_on()
        yield part.take()


def asides(
    app: str, workers: int, operator: str, wanted: RequestedRows, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the late rows, as a join emits them. Input: TAKEN rows."""
    plan = cut_of(app, workers).whole
    node = _join(plan, operator)
    codecs = [key_by.value_codec for key_by in plan.key_bys(node.inputs[0])]
    with Part.open(plan, frozenset({operator}), wanted) as part:
        for batch in batches:
            for row in map(TakenRow, *columns_of(batch)):
                side = input_of(row.lane, len(codecs))
                (value,) = codecs[side].decode(row.payload)
                late = [TaggedValue(str(node.late[side]), value)]
                out = Batch(
                    late, [0], row.origin(part.plan), lane=row.lane, branch=[row.branch], event_times=[row.time]
                )
                part.push(operator, out, [(row.grp, False)])
            yield part.take()


def _join(plan: Plan, operator: str) -> JoinNode:
    node = plan.node(operator)
    assert isinstance(node, JoinNode)
    return node


class _Firings:
    """The results of keys by time, until they are returned."""

    def __init__(self, plan: Plan, operator: str, part: Part) -> None:
        self._node, self._part = _join(plan, operator), part
        self._decode: list[Callable[[bytes], list[Any]]] = [
            key_by.value_codec.decode for key_by in plan.key_bys(self._node.inputs[0])
        ]
        self._found: list[tuple[JoinedRow, bool, Sequence[Any]]] = []

    @property
    def full(self) -> bool:
        return len(self._found) >= _AT_ONCE

    def add(self, rows: list[JoinedRow]) -> None:
        """Add all results of a key at a time."""
        sides = [(row, self._row(row.left, 0), self._row(row.right, 1)) for row in rows]
        sides.sort(key=lambda each: (each[0].kind, each[1][0], each[2][0]))
        outputs = [out for row, left, right in sides for out in self._made(row.kind, left[1], right[1])]
        self._found.append((rows[0], any(row.loose for row in rows), outputs))

    def hand_on(self) -> None:
        found = [each for each in self._found if each[2]]
        self._found.clear()
        if not found:
            return
        index = [row for row, (_, _, outputs) in enumerate(found) for _ in outputs]
        batch = Batch(
            [output for _, _, outputs in found for output in outputs],
            index,
            FiringOrigin(self._node.name, TIMERS, [row.group for row, _, _ in found], [row.at for row, _, _ in found]),
            branch=[branch_of(found[row][0].grp) for row in index],
            event_times=[found[row][0].at for row in index],
        )
        self._part.push(self._node.name, batch, [(row.grp, loose) for row, loose, _ in found])

    def _made(self, kind: int, left: Any, right: Any) -> Sequence[Any]:
        if kind == PAIR:
            return results_of(self._node.join_rows, left, right)
        side, value = (0, left) if kind == LEFT else (1, right)
        return (TaggedValue(str(self._node.unmatched[side]), value),)

    def _row(self, row: Mapping[str, Any] | None, side: int) -> tuple[tuple[Any, ...], Any]:
        """Return the sort key of a row, and its value."""
        if row is None:
            return (), None
        value = self._node.extract_stored(side, *self._decode[side](row["payload"]))
        return (row["time"], row["s_partition"], row["s_offset"], self._node.value_codec[side].encode(value)), value
