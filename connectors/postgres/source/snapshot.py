"""What a position in a snapshot of a table is, and which rows belong to the snapshot.

A snapshot is what was committed in the table at the job's first start. Nothing is held open for it: each row says which
transaction wrote it, and in which partition it is. It belongs to the snapshot if the transaction is older than the
``horizon``, the oldest one that was open then, or one of the ``recent``: those that had written to the table since, and
were committed; and if its partition was there. A row that is changed or deleted before it is read is missing in the
end, and the rows are counted.

Pure. Rule: a position says all that is needed to read on in another process, and to notice that the snapshot is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.json_values import Json, Position

Key = tuple[str, ...]
"""Values of the key's columns, as the server writes them as text."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Of which table, by which key. Two with different facts have nothing in common."""

    oid: int
    key: tuple[str, ...]
    where: str | None
    horizon: int
    """The id of a transaction, of 64 bits: all that older ones have written belongs to the snapshot."""
    recent: tuple[int, ...] = ()
    """Ids of newer ones, as rows have them, of 32 bits."""
    parts: tuple[int, ...] = ()
    """The tables that have its rows: the partitions that there were, or the table itself. Older positions name none."""

    @property
    def facts(self) -> dict[str, Json]:
        ids: dict[str, Json] = {"horizon": self.horizon, "recent": [*self.recent]}
        parts: dict[str, Json] = {"parts": [*self.parts]} if self.parts else {}
        return {"oid": self.oid, "key": [*self.key], "where": self.where, **ids, **parts}


@dataclass(frozen=True, slots=True)
class Progress:
    """In one range of keys of a snapshot."""

    of: Snapshot
    rows: int
    """How many the range had at first."""
    until: Key | None
    """The key of its last row; None if it has none."""
    after: Key | None
    """The key of the row that was read last; of one that is not begun, of the last row of the range before."""
    row: int = 0
    """How many were read."""

    @property
    def done(self) -> bool:
        return self.row >= self.rows

    def read(self, rows: int, last: Key) -> Progress:
        """So many rows more were read, up to that key."""
        return replace(self, row=self.row + rows, after=last)

    def at_end(self) -> Progress:
        return replace(self, row=self.rows, after=self.until)

    def position(self) -> Position:
        keys: dict[str, Json] = {
            name: None if key is None else [*key] for name, key in (("until", self.until), ("after", self.after))
        }
        return {**self.of.facts, **keys, "rows": self.rows, "row": self.row, "done": self.done}

    @staticmethod
    def parse(position: Mapping[str, Json]) -> Progress:
        """CorruptCheckpoint if it is none."""
        match {"parts": [], **position}:
            case {
                "oid": int(oid), "key": list(key), "where": str() | None as where, "horizon": int(horizon),
                "recent": list(recent), "parts": list(parts),
                "until": list() | None as until, "after": list() | None as after, "rows": int(rows), "row": int(row),
            }:  # fmt: skip
                of = Snapshot(oid, _texts(key), where, horizon, _numbers(recent), _numbers(parts))
                return Progress(of, rows, _key(until), _key(after), row)
        raise CorruptCheckpoint(f"not a position in a snapshot of a table: {dict(position)!r}")


def _key(found: list[Json] | None) -> Key | None:
    return None if found is None else _texts(found)


def _texts(found: list[Json]) -> tuple[str, ...]:
    return tuple(map(str, found))


def _numbers(found: list[Json]) -> tuple[int, ...]:
    return tuple(number for number in found if isinstance(number, int))


def is_end(position: Mapping[str, Json]) -> bool:
    """Does the position say that all of its range is read?"""
    return position.get("done") is True
