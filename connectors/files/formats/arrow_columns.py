"""Conversion of values to Arrow columns, and detection of values that a column would change.

Rule: a value is accepted if the column returns it equal; the checks are derived from the type once. The one exception
is stated by the type itself: a column of 32- or 16-bit floats stores the nearest value.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import struct
import typing
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds
from msgspec import Struct

from kafka_eos.codecs.time_zones import describe_range
from kafka_eos.codecs.type_inspection import without_none
from kafka_eos.connectors.files.formats.record_fields import fields_of, taken_apart

Make: TypeAlias = Callable[[Any], Any]

_FINEST: Final = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
"""Microseconds per time unit; Python values have no finer resolution."""
_NARROW: Final = {16: "<e", 32: "<f"}
"""The ``struct`` codes of floats narrower than Python's, by bits."""


class ArrowColumn(Struct, frozen=True):
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


def column_of(field: pa.Field, declared: Any = None) -> ArrowColumn:
    """Return the conversion for a field of a schema, and for all nested fields.

    ``declared``: the type of its values, in which they are read; None for rows without a type.
    """
    exact, make = _of(field.type, _without_marks(declared))
    if field.nullable:
        return ArrowColumn(field, exact | {type(None)}, lambda cell: None if cell is None else make(cell))
    return ArrowColumn(field, exact, _not_null(make))


def _not_null(make: Make) -> Make:
    def of(cell: Any) -> Any:
        if cell is None:
            raise ValueError("it may not be null")
        return make(cell)

    return of


def _of(tp: pa.DataType, declared: Any) -> tuple[frozenset[type], Make]:
    """Return the types that need no check, and the conversion of others. None is handled by the caller."""
    if isinstance(declared, type) and issubclass(declared, enum.Enum):
        return frozenset(), _member(declared, _of(tp, None)[1])
    if declared is uuid.UUID and is_text(tp):
        return frozenset(), _uuid_text
    for applies, taken in _PLAIN:
        if applies(tp):
            return frozenset({taken}), _one_of(taken)
    if kinds.is_floating(tp) and tp.bit_width in _NARROW:
        return frozenset(), _narrow(_NARROW[tp.bit_width])
    if kinds.is_floating(tp):
        return frozenset({float}), _float
    if kinds.is_decimal(tp):
        return frozenset({decimal.Decimal}), _decimal
    if is_text(tp):
        return frozenset({str}), _one_of(str)
    if kinds.is_timestamp(tp):
        return frozenset(), _timestamp(_FINEST[tp.unit], tp.tz is not None)
    if kinds.is_time(tp):
        return frozenset(), _time(_FINEST[tp.unit])
    if kinds.is_duration(tp):
        return frozenset(), _duration(_FINEST[tp.unit])
    if kinds.is_dictionary(tp):
        return _of(tp.value_type, declared)
    if is_list(tp):
        return frozenset(), _list(column_of(tp.value_field, *typing.get_args(declared)[:1]))
    if kinds.is_map(tp):
        keys, items = typing.get_args(declared) or (None, None)
        return frozenset(), _map(column_of(tp.key_field, keys), column_of(tp.item_field, items))
    if kinds.is_struct(tp):
        types = None if declared is None else fields_of(declared, "")
        columns = [column_of(field, None if types is None else types.get(field.name)) for field in tp.fields]
        return frozenset(), _struct(columns, None if declared is None else declared)
    return frozenset(), _given_back(tp)


def _without_marks(tp: Any) -> Any:
    """Return a type without None and without annotations; None for one of several types."""
    tp = without_none(tp)
    if typing.get_origin(tp) is typing.Annotated:
        return _without_marks(typing.get_args(tp)[0])
    return None if typing.get_origin(tp) in (typing.Union, typing.Literal) else tp


def is_text(tp: pa.DataType) -> bool:
    """Return whether values of a type are texts."""
    return any(test(tp) for test in (kinds.is_string, kinds.is_large_string, kinds.is_string_view))


def is_list(tp: pa.DataType) -> bool:
    """Return whether values of a type are lists."""
    return any(test(tp) for test in (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list))


def is_binary(tp: pa.DataType) -> bool:
    """Return whether values of a type are bytes."""
    tests = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
    return any(test(tp) for test in tests)


_PLAIN: Final[Sequence[tuple[Callable[[pa.DataType], bool], type]]] = (
    (kinds.is_boolean, bool),
    (kinds.is_integer, int),
    (is_binary, bytes),
    (kinds.is_date, datetime.date),
)


def _one_of(taken: type) -> Make:
    """Return a conversion for subclasses. In Python a datetime is a date and a bool an int; here they are not."""

    def of(cell: Any) -> Any:
        if not isinstance(cell, taken) or (isinstance(cell, bool | datetime.datetime) and type(cell) is not taken):
            raise _unfit(cell)
        return cell

    return of


def _member(declared: type[enum.Enum], make: Make) -> Make:
    def of(cell: Any) -> Any:
        if not isinstance(cell, declared):
            raise _unfit(cell)
        return make(cell.value)

    return of


def _float(cell: Any) -> float:
    if isinstance(cell, int) and not isinstance(cell, bool) and float(cell) == cell:
        return float(cell)
    if not isinstance(cell, float):
        raise _unfit(cell)
    return cell


def _decimal(cell: Any) -> Any:
    if not isinstance(cell, decimal.Decimal):
        raise _unfit(cell)
    return cell


def _narrow(code: str) -> Make:
    def of(cell: Any) -> float:
        found = _float(cell)
        struct.pack(code, found)  # raises OverflowError if the value is too large
        return found

    return of


def _uuid_text(cell: Any) -> str:
    if not isinstance(cell, uuid.UUID):
        raise _unfit(cell)
    return str(cell)


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
        if not isinstance(cell, list):
            raise _unfit(cell)
        return items.ready(cell)

    return of


def _map(keys: ArrowColumn, items: ArrowColumn) -> Make:
    def of(cell: Any) -> Any:
        if not isinstance(cell, dict):
            raise _unfit(cell)
        return [*zip(keys.ready([*cell]), items.ready([*cell.values()]), strict=True)]

    return of


def _struct(columns: Sequence[ArrowColumn], declared: type | None) -> Make:
    """Return the conversion of records of a class, or of dicts."""
    taken = dict if declared is None else declared
    known = frozenset(each.field.name for each in columns)

    def of(cell: Any) -> Any:
        values = taken_apart(cell) if isinstance(cell, taken) else None
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


def _expect_whole(microseconds: int, unit: int, cell: Any) -> None:
    if microseconds % unit:
        raise ValueError(f"{cell} is finer than the unit of the column")


def _unfit(cell: Any) -> ValueError:
    return ValueError(f"a {type(cell).__name__} is not one of its values: {cell!r:.100}")
