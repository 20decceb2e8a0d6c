"""Rows with a value that Python cannot represent, and the columns of a file that a type takes.

Pure. Rule: such a value is the fault of its row only, and of no row if the type does not take its column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from kafka_eos.codecs.type_inspection import is_model, type_name
from kafka_eos.connectors._shared.plain_rows import columns_taken
from kafka_eos.core.limits import LIMITS

_MOST_COLUMNS: Final = 20_000
"""The limit on columns. The time of pyarrow grows with the square of their number: this many take seconds."""
_SHOWN: Final = 50
"""Columns in a message."""


class UnreadableRow(dict[str, Any]):
    """A row with a value that Python cannot represent. That value is given as the file stores it, as a number or bytes.

    ``reason``: why the value cannot be represented.
    """

    __slots__ = ("reason",)

    def __init__(self, cells: Any, reason: str) -> None:
        super().__init__(cells)
        self.reason = reason


def expect_few(columns: Sequence[str]) -> None:
    """Raise ValueError for more columns than are read."""
    if len(columns) > _MOST_COLUMNS:
        raise ValueError(f"it has {len(columns):,} columns, and at most {_MOST_COLUMNS:,} are read")


def rows_per_read(columns: int) -> int:
    """Return how many rows with so many columns become Python objects at once."""
    return max(1, min(LIMITS.rows_per_file_read, LIMITS.cells_per_file_read // max(1, columns)))


def rejecting_unreadable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the same conversion of rows; it raises ValueError for unreadable ones."""

    def decode(row: Any) -> Any:
        if type(row) is UnreadableRow:
            raise ValueError(row.reason)
        return convert(row)

    return decode


class TypeColumns(Struct, frozen=True):
    """The columns that a type takes. ``known``: their names; empty if unknown, or if the type takes any column.

    ``all_needed``: the type decides about all columns of a row, for example because it forbids others.
    ``required``: a file must have one of them.
    """

    type: Any
    known: frozenset[str]
    all_needed: bool
    required: bool

    @classmethod
    def of(cls, tp: Any, *, in_partitions: bool) -> TypeColumns:
        """Return the columns of a type. ``in_partitions``: files need none, because directories have columns too."""
        known = columns_taken(tp)
        return cls(tp, known, not known or _forbids_others(tp), bool(known) and not in_partitions)

    def select(self, names: Sequence[str]) -> list[str]:
        """Return which columns of a file must be read. Raise ValueError if the file has none of the type's."""
        expect_few(names)
        found = [name for name in names if name in self.known]
        if self.required and not found:
            columns = ", ".join([*map(repr, names[:_SHOWN]), *("…" for _ in names[_SHOWN : _SHOWN + 1])])
            raise ValueError(f"it has the columns {columns}, but none of them is a field of {type_name(self.type)}")
        return list(names) if self.all_needed else found


def _forbids_others(tp: Any) -> bool:
    if is_model(tp):
        return bool(tp.model_config.get("extra") == "forbid")
    return issubclass(tp, msgspec.Struct) and tp.__struct_config__.forbid_unknown_fields
