"""Positions in a snapshot of a table, and the rows that belong to the snapshot.

A snapshot consists of the rows that were committed in the table at the job's first start. Nothing is held open for it:
each row states the transaction that wrote it, and its partition. A row belongs to the snapshot under two conditions:
- Its transaction is older than the ``horizon``, the oldest transaction that was open then; or it is one of the
  ``recent`` ones, which are newer, had written to the table, and were committed.
- Its partition existed.
A row that is changed or deleted before it is read is missing in the end, and rows are counted.

Pure. Rule: a position contains everything needed to continue in another process, and to notice that the snapshot is
lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.json_values import Json, Position

Key = tuple[str, ...]
"""Values of the key's columns, as the server's text."""


class TableSnapshot(Struct, frozen=True):
    """The table, key and transactions that define a snapshot. Snapshots with different facts are unrelated."""

    oid: int
    key: tuple[str, ...]
    where: str | None
    horizon: int
    """A 64-bit transaction id: all rows written by older transactions belong to the snapshot."""
    recent: tuple[int, ...] = ()
    """Ids of newer transactions, in the 32 bits that rows have."""
    parts: tuple[int, ...] = ()
    """The tables with its rows: the partitions at that time, or the table itself. Older positions name none."""

    @property
    def facts(self) -> dict[str, Json]:
        ids: dict[str, Json] = {"horizon": self.horizon, "recent": [*self.recent]}
        parts: dict[str, Json] = {"parts": [*self.parts]} if self.parts else {}
        return {"oid": self.oid, "key": [*self.key], "where": self.where, **ids, **parts}


class RangeProgress(Struct, frozen=True):
    """The progress in reading one key range of a snapshot."""

    of: TableSnapshot
    rows: int
    """The number of rows that the range had at first."""
    until: Key | None
    """The key of its last row; None if it has no rows."""
    after: Key | None
    """The key of the row that was read last; before the first read, of the last row of the previous range."""
    row: int = 0
    """The number of rows that were read."""

    @property
    def done(self) -> bool:
        return self.row >= self.rows

    def read(self, rows: int, last: Key) -> RangeProgress:
        """Return the progress after this many more rows, up to that key."""
        return replace(self, row=self.row + rows, after=last)

    def at_end(self) -> RangeProgress:
        return replace(self, row=self.rows, after=self.until)

    def position(self) -> Position:
        keys: dict[str, Json] = {
            name: None if key is None else [*key] for name, key in (("until", self.until), ("after", self.after))
        }
        return {**self.of.facts, **keys, "rows": self.rows, "row": self.row, "done": self.done}

    @staticmethod
    def parse(position: Mapping[str, Json]) -> RangeProgress:
        """Parse a position. Raise CorruptCheckpoint if it is not valid."""
        match {"parts": [], **position}:
            case {
                "oid": int(oid), "key": list(key), "where": str() | None as where, "horizon": int(horizon),
                "recent": list(recent), "parts": list(parts),
                "until": list() | None as until, "after": list() | None as after, "rows": int(rows), "row": int(row),
            }:  # fmt: skip
                of = TableSnapshot(oid, _texts(key), where, horizon, _numbers(recent), _numbers(parts))
                return RangeProgress(of, rows, _key(until), _key(after), row)
        raise CorruptCheckpoint(f"not a position in a snapshot of a table: {dict(position)!r}")


def _key(found: list[Json] | None) -> Key | None:
    return None if found is None else _texts(found)


def _texts(found: list[Json]) -> tuple[str, ...]:
    return tuple(map(str, found))


def _numbers(found: list[Json]) -> tuple[int, ...]:
    return tuple(number for number in found if isinstance(number, int))


def is_end(position: Mapping[str, Json]) -> bool:
    """Return whether the position is the end of its range."""
    return position.get("done") is True
