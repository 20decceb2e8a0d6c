"""The division of a table's rows into data files: each file has rows of one partition.

Rule: a row whose partition the commit could not recompute is rejected when it is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kafka_eos.connectors.files.file_names import DEFAULT_PARTITION


class TablePartitioning(Protocol):
    """The assignment of a table's rows to partitions.

    ``columns``: the columns whose values determine the partition of a row; none if the table is not partitioned.
    ``omitted_columns``: those of them that data files do not contain.
    """

    columns: Sequence[str]
    omitted_columns: Sequence[str]

    def of(self, cells: Mapping[str, Any]) -> Mapping[str, object]:
        """Return the partition of a row, for ``files.file_names.partition``. Raise ValueError if it has none."""

    def explain_mismatch(self, partition: Mapping[str, str | None]) -> str | None:
        """Return why a file of this partition does not belong to the table; None if it does."""


class ColumnPartitioning:
    """Partitioning by column values that are stored in paths, as in Delta."""

    def __init__(self, columns: Sequence[str] = ()) -> None:
        self.columns = self.omitted_columns = columns

    def of(self, cells: Mapping[str, Any]) -> Mapping[str, object]:
        for name, cell in cells.items():
            if cell in ("", DEFAULT_PARTITION):
                raise ValueError(f"column {name!r}: {cell!r} cannot be in a column by which a table is partitioned")
        return cells

    def explain_mismatch(self, partition: Mapping[str, str | None]) -> str | None:
        return None if {*self.columns} == {*partition} else repartitioned(self.columns, [*partition])


def repartitioned(now: Sequence[str], then: Sequence[str]) -> str:
    """Return the message for a table whose partitioning was changed meanwhile."""
    now_by, was_by = (", ".join(names) or "nothing" for names in (now, then))
    return f"it is partitioned by {now_by} now, and was by {was_by}"


def partition_of(partitions: TablePartitioning, value: Any) -> Callable[[Any], Mapping[str, object]] | None:
    """Return a function that maps a value to its partition; None for a table without partitions.

    ``value``: the type of the values; None for dicts.
    """
    if not partitions.columns:
        return None

    def of(row: Any) -> Mapping[str, object]:
        if value is None and not isinstance(row, Mapping):
            raise ValueError(f"expected a dict with the columns, got {type(row).__name__}")
        return partitions.of(
            {name: row.get(name) if value is None else getattr(row, name) for name in partitions.columns}
        )

    return of
