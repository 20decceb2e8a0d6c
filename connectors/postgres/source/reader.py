"""The reader of a snapshot's ranges, one after the other, some rows at a time, in key order.

Rule: a position advances when its rows have been returned. A range that ends with fewer rows than it had at first is
InputLost, because some were changed or deleted before they were read. So is one with more rows, because it is unknown
which of them belong to the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import psycopg

from kafka_eos._util.bulk_calls import map_rows
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.source import Reader
from kafka_eos.connectors._shared.plain_rows import encode_row
from kafka_eos.connectors.postgres.connection import Connection, map_errors
from kafka_eos.connectors.postgres.source.snapshot import Key, RangeProgress, is_end
from kafka_eos.connectors.postgres.source.snapshot_queries import SnapshotQuery
from kafka_eos.core.error_messages import show_value
from kafka_eos.core.errors import EnvironmentFailed, InputLost
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch, Origin, RawRecord

Row = dict[str, Any]


class SnapshotReader(Reader[Any]):
    """The reader of one subtask's ranges. ``connect``: opens a connection and describes the table, at the
    first read."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], tuple[Connection, SnapshotQuery]],
        decode: Callable[[Row], Any],
        ctx: TaskContext,
        positions: Positions,
    ) -> None:
        self._name = name
        self._connect = connect
        self._decode = decode
        self._operator = ctx.operator
        self._reject = partial(ctx.services.reject_record, ctx.operator)
        self._at: dict[SplitId, RangeProgress] = {}
        self._paused: frozenset[SplitId] = frozenset()
        self._open: tuple[Connection, SnapshotQuery] | None = None
        self.assign(positions)

    def poll(self, max_records: int, timeout: float) -> Batch[Any] | None:
        unread = (split for split, at in self._at.items() if not at.done and split not in self._paused)
        split = min(unread, key=_number, default=None)
        if split is None:
            time.sleep(timeout)
            return None
        at = self._at[split]
        try:
            rows, last = self._next(at, max_records)
            batch = self._decoded(split, at, rows)
        except psycopg.DataError as error:
            rows, last = self._next(at, 1, as_text=True)
            self._reject(self._raw(split, at.row, rows[0]), ValueError(f"no value of Python: {error}"))
            batch = Batch([], [], SnapshotOrigin(self._operator, self._name, _number(split), at.row, []))
        self._at[split] = at.read(len(rows), last)
        return batch if batch.values else None

    def _next(self, at: RangeProgress, most: int, *, as_text: bool = False) -> tuple[Sequence[Row], Key]:
        """Return the next rows of a range, and the last key. Raise DataError for a value that Python
        cannot represent."""
        left = at.rows - at.row
        asked = left + 1 if most >= left else most  # one more than expected, to verify that there is none
        with map_errors(EnvironmentFailed, f"read {self._name}"):
            connection, reading = self._opened()
            try:
                found = connection.execute(reading.next(at, asked, as_text=as_text)).fetchall()
            except psycopg.DataError as error:
                if most > 1 and error.sqlstate is None:
                    return self._next(at, 1)
                raise
        if not found:
            raise InputLost(
                f"{self._name} has lost rows of its snapshot: of {at.rows:,} rows up to key "
                f"{show_value(at.until)} {at.row:,} were read; the others were changed, deleted or "
                "detached since the job's first start. Rows that were read are part of the results. "
                "Use a source with a new name, and read rows that do not change: with where=, from a "
                "closed partition, or from a copy (CREATE TABLE … AS)"
            )
        if len(found) > left:
            raise InputLost(
                f"{self._name} has rows that its snapshot did not have: more than {at.rows:,} up to key "
                f"{show_value(at.until)}. The condition where= matches other rows than at first. Rows "
                "that were read are part of the results, and some may not belong to the snapshot. "
                "Use a source with a new name, and read rows that do not change"
            )
        columns = len(reading.columns)
        rows = [dict(zip(reading.columns, row, strict=False)) for row in found]
        return rows, tuple(map(str, found[-1][columns:]))

    def _opened(self) -> tuple[Connection, SnapshotQuery]:
        if self._open is None or self._open[0].closed:
            self._open = self._connect()
        return self._open

    def _decoded(self, split: SplitId, at: RangeProgress, rows: Sequence[Row]) -> Batch[Any]:
        values, refused = map_rows(
            self._decode, rows, refuse=lambda row, error: self._reject(self._raw(split, at.row + row, rows[row]), error)
        )
        bad = frozenset(refused)
        kept = [row for row in range(len(rows)) if row not in bad] if bad else range(len(rows))
        return Batch(values, kept, SnapshotOrigin(self._operator, self._name, _number(split), at.row, rows))

    def _raw(self, split: SplitId, offset: int, row: Row) -> RawRecord:
        return RawRecord(self._name, _number(split), offset, -1, None, encode_row(row), ())

    def positions(self) -> Positions:
        return {split: at.position() for split, at in self._at.items()}

    def assign(self, positions: Positions) -> None:
        self._at |= {split: RangeProgress.parse(position) for split, position in positions.items()}

    def pause(self, splits: Collection[SplitId]) -> None:
        self._paused = frozenset(splits)

    def list_splits_at_end(self) -> Collection[SplitId]:
        return [split for split, at in self._at.items() if at.done]

    def lag(self) -> int | None:
        return sum(at.rows - at.row for at in self._at.values())

    def has_reached(self, ends: Positions) -> bool:
        return all(
            split in self._at
            and (self._at[split].done or not (is_end(end) or RangeProgress.parse(end).row > self._at[split].row))
            for split, end in ends.items()
        )

    def close(self) -> None:
        if self._open is not None:
            self._open[0].close()
            self._open = None


def _number(split: SplitId) -> int:
    return int(split.rpartition("/")[2])


class SnapshotOrigin(Origin):
    """The origin of rows of one range, starting with row ``first``. A row is encoded only when it is requested."""

    __slots__ = ("_first", "_rows", "offsets", "partitions", "source", "topic")

    def __init__(self, source: str, name: str, number: int, first: int, rows: Sequence[Row]) -> None:
        self.source = source
        self.topic = name
        self._first = first
        self._rows = rows
        self.partitions: Sequence[int] = [number] * len(rows)
        self.offsets: Sequence[int] = range(first, first + len(rows))

    def timestamps(self) -> Sequence[int]:
        return [-1] * len(self._rows)

    def raw(self, row: int) -> RawRecord:
        return RawRecord(self.topic, self.partitions[row], self._first + row, -1, None, encode_row(self._rows[row]), ())
