"""How a table divides its rows into data files: each file has rows of one partition.

Rule: a row whose partition could not be told again by the commit is refused when it is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kafka_eos.connectors.files.file_names import DEFAULT_PARTITION


class Partitions(Protocol):
    """The partitions that a table has now.

    ``columns``   those of which the values tell the partition of a row; none if the table is not partitioned
    ``left_out``  those of them that data files do not have
    """

    columns: Sequence[str]
    left_out: Sequence[str]

    def of(self, cells: Mapping[str, Any]) -> Mapping[str, object]:
        """The partition of a row with these cells, for ``files.names.partition``. ValueError if there is none."""

    def otherwise(self, partition: Mapping[str, str | None]) -> str | None:
        """Why a file of this partition, as ``lake.names.partition`` reads it, belongs to none; None if it does."""


class ByColumns:
    """By the values of columns, which the table has in the place of the files: as Delta does."""

    def __init__(self, columns: Sequence[str] = ()) -> None:
        self.columns = self.left_out = columns

    def of(self, cells: Mapping[str, Any]) -> Mapping[str, object]:
        for name, cell in cells.items():
            if cell in ("", DEFAULT_PARTITION):
                raise ValueError(f"column {name!r}: {cell!r} cannot be in a column by which a table is partitioned")
        return cells

    def otherwise(self, partition: Mapping[str, str | None]) -> str | None:
        return None if {*self.columns} == {*partition} else repartitioned(self.columns, [*partition])


def repartitioned(now: Sequence[str], then: Sequence[str]) -> str:
    """What a commit says of a table that was partitioned in another way meanwhile."""
    now_by, was_by = (", ".join(names) or "nothing" for names in (now, then))
    return f"it is partitioned by {now_by} now, and was by {was_by}"


def partition_of(partitions: Partitions, value: Any) -> Callable[[Any], Mapping[str, object]] | None:
    """Of each value its partition; None of a table without. ``value``: the type of the values; None for dicts."""
    if not partitions.columns:
        return None

    def of(row: Any) -> Mapping[str, object]:
        if value is None and not isinstance(row, Mapping):
            raise ValueError(f"expected a dict with the columns, got {type(row).__name__}")
        return partitions.of(
            {name: row.get(name) if value is None else getattr(row, name) for name in partitions.columns}
        )

    return of
