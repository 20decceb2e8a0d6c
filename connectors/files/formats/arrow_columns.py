"""Conversion of values to Arrow columns, and detection of values that a column would change.

Rule: a value is accepted if the column returns it equal; the checks are derived from the type once. The one exception
is stated by the type itself: a column of 32- or 16-bit floats stores the nearest value.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds

from kafka_eos.codecs.time_zones import describe_range
from kafka_eos.connectors.files.formats.record_fields import taken_apart

Make: TypeAlias = Callable[[Any], Any]

_FINEST: Final = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
"""Microseconds per time unit; Python values have no finer resolution."""
_NARROW: Final = {16: "<e", 32: "<f"}
"""The ``struct`` codes of floats narrower than Python's, by bits."""


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    """The conversion of cells to one Arrow column without changing any value."""

    field: pa.Field
    exact: frozenset[type]
    """Types of values that are accepted without a check."""
    make: Make
    """The conversion of values of other types. It raises ValueError if the column would change the value."""

    def array(self, cells: Sequence[Any]) -> pa.Array:
        return pa.array(self.ready(cells), self.field.type)

    def ready(self, cells: Sequence[Any]) -> Sequence[Any]:
        exact, make = self.exact, self.make
        if exact.issuperset(map(type, cells)):
            return cells
        return [cell if type(cell) in exact else make(cell) for cell in cells]


def column_of(field: pa.Field) -> ArrowColumn:
    """Return the conversion for a field of a schema, and for all nested fields."""
    exact, make = _of(field.type)
    if field.nullable:
        return ArrowColumn(field, exact | {type(None)}, lambda cell: None if cell is None else make(cell))
    return ArrowColumn(field, exact, _not_null(make))


def _not_null(make: Make) -> Make:
    def of(cell: Any) -> Any:
        if cell is None:
            raise ValueError("it may not be null")
        return make(cell)

    return of


def _of(tp: pa.DataType) -> tuple[frozenset[type], Make]:
    """Return the types that need no check, and the conversion of others. None is handled by the caller."""
    for applies, taken in _PLAIN:
        if applies(tp):
            return frozenset({taken}), _one_of(taken)
    if kinds.is_floating(tp) and tp.bit_width in _NARROW:
        return frozenset(), _narrow(_NARROW[tp.bit_width])
    if kinds.is_floating(tp):
        return frozenset({float}), _float
    if kinds.is_decimal(tp):
        return frozenset({decimal.Decimal}), _decimal
    if kinds.is_string(tp) or kinds.is_large_string(tp) or kinds.is_string_view(tp):
        return frozenset({str}), _text
    if kinds.is_timestamp(tp):
        return frozenset(), _timestamp(_FINEST[tp.unit], tp.tz is not None)
    if kinds.is_time(tp):
        return frozenset(), _time(_FINEST[tp.unit])
    if kinds.is_duration(tp):
        return frozenset(), _duration(_FINEST[tp.unit])
    if kinds.is_dictionary(tp):
        return _of(tp.value_type)
    if kinds.is_list(tp) or kinds.is_large_list(tp) or kinds.is_fixed_size_list(tp):
        return frozenset(), _list(column_of(tp.value_field))
    if kinds.is_map(tp):
        return frozenset(), _map(column_of(tp.key_field), column_of(tp.item_field))
    if kinds.is_struct(tp):
        return frozenset(), _struct([column_of(tp.field(index)) for index in range(tp.num_fields)])
    return frozenset(), _given_back(tp)


def _is_binary(tp: pa.DataType) -> bool:
    tests = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
    return any(test(tp) for test in tests)


_PLAIN: Final[Sequence[tuple[Callable[[pa.DataType], bool], type]]] = (
    (kinds.is_boolean, bool),
    (kinds.is_integer, int),
    (_is_binary, bytes),
    (kinds.is_date, datetime.date),
)


def _one_of(taken: type) -> Make:
    """Return a conversion for enums and subclasses. In Python a datetime is a date and a bool an int; here they are
    not."""

    def of(cell: Any) -> Any:
        found = _opened(cell)
        if isinstance(found, bytearray) and taken is bytes:
            found = bytes(found)
        if not isinstance(found, taken) or (isinstance(found, bool | datetime.datetime) and type(found) is not taken):
            raise _unfit(cell)
        return found

    return of


def _float(cell: Any) -> float:
    found = _opened(cell)
    if isinstance(found, int) and not isinstance(found, bool) and float(found) == found:
        return float(found)
    if not isinstance(found, float):
        raise _unfit(cell)
    return found


def _decimal(cell: Any) -> Any:
    found = _opened(cell)
    if not isinstance(found, decimal.Decimal | int) or isinstance(found, bool):
        raise _unfit(cell)
    return found


def _narrow(code: str) -> Make:
    def of(cell: Any) -> float:
        found = _float(cell)
        struct.pack(code, found)  # raises OverflowError if the value is too large
        return found

    return of


def _text(cell: Any) -> str:
    found = _opened(cell)
    if isinstance(found, uuid.UUID):
        return str(found)
    if not isinstance(found, str):
        raise _unfit(cell)
    return found


def _timestamp(unit: int, zoned: bool) -> Make:
    def of(cell: Any) -> Any:
        if not isinstance(cell, datetime.datetime):
            raise _unfit(cell)
        if zoned != (cell.tzinfo is not None):
            raise ValueError(f"datetime {cell.isoformat()} has {'no' if zoned else 'a'} time zone")
        if zoned and (wrong := describe_range(cell)):
            raise ValueError(f"datetime {cell.isoformat()} {wrong}")
        _expect_whole(cell.microsecond, unit, cell)
        return cell

    return of


def _time(unit: int) -> Make:
    def of(cell: Any) -> Any:
        if not isinstance(cell, datetime.time):
            raise _unfit(cell)
        if cell.tzinfo is not None:
            raise ValueError(f"time {cell.isoformat()} has a time zone")
        _expect_whole(cell.microsecond, unit, cell)
        return cell

    return of


def _duration(unit: int) -> Make:
    def of(cell: Any) -> Any:
        if not isinstance(cell, datetime.timedelta):
            raise _unfit(cell)
        _expect_whole(cell.microseconds, unit, cell)
        return cell

    return of


def _list(items: ArrowColumn) -> Make:
    def of(cell: Any) -> Any:
        if not isinstance(cell, list | tuple):
            raise _unfit(cell)
        return items.ready(cell)

    return of


def _map(keys: ArrowColumn, items: ArrowColumn) -> Make:
    def of(cell: Any) -> Any:
        if isinstance(cell, Mapping):
            names, values = list(cell), list(cell.values())
        elif isinstance(cell, list | tuple) and all(isinstance(each, tuple) and len(each) == 2 for each in cell):
            names, values = [each[0] for each in cell], [each[1] for each in cell]
        else:
            raise _unfit(cell)
        return [*zip(keys.ready(names), items.ready(values), strict=True)]

    return of


def _struct(columns: Sequence[ArrowColumn]) -> Make:
    known = frozenset(each.field.name for each in columns)

    def of(cell: Any) -> Any:
        values = taken_apart(cell)
        if values is None:
            raise _unfit(cell)
        if not known.issuperset(values):
            raise ValueError(f"no field for {', '.join(sorted(map(str, values.keys() - known)))}")
        return {each.field.name: each.ready((values.get(each.field.name),))[0] for each in columns}

    return of


def _given_back(tp: pa.DataType) -> Make:
    """Return a conversion for a type that is unknown here: it compares each value with the stored one."""

    def of(cell: Any) -> Any:
        if pa.scalar(cell, tp).as_py() != cell:
            raise _unfit(cell)
        return cell

    return of


def _opened(cell: Any) -> Any:
    return cell.value if isinstance(cell, enum.Enum) else cell


def _expect_whole(microseconds: int, unit: int, cell: Any) -> None:
    if microseconds % unit:
        raise ValueError(f"{cell} is finer than the unit of the column")


def _unfit(cell: Any) -> ValueError:
    return ValueError(f"a {type(cell).__name__} is not one of its values: {cell!r:.100}")
