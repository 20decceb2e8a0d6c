"""Rows of a Parquet file as Python objects.

Rule: a value is exact, or its row is unreadable. Nanoseconds become microseconds, the unit of Python, by an exact cast:
pyarrow itself returns objects of pandas if that is installed, and otherwise cuts some values off.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from kafka_eos.connectors._shared.parquet_files import open_parquet, read_batches
from kafka_eos.connectors.files.source.bounded_reads import READ_ENDS, ReadSize
from kafka_eos.connectors.files.source.parquet_pages import rows_at_once
from kafka_eos.connectors.files.source.unreadable_rows import TypeColumns, UnreadableRow, rows_per_read

_UNREPRESENTABLE: Final = (ValueError, OverflowError, KeyError)
"""Raised by pyarrow for a value that Python cannot represent; KeyError for a map that has a key twice."""
_BINARY: Final = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


def parquet_rows(largest: int, columns: TypeColumns, path: Path, first: int) -> Generator[Any]:
    """Yield the rows from number ``first`` on as dicts. ``largest``: most bytes of the pages decompressed together."""
    with open_parquet(path, largest=largest) as file:
        if not file.metadata.num_rows:
            return
        names = columns.select(file.schema_arrow.names)
        if len(set(names)) < len(names):
            raise ValueError(f"two columns have the same name: {', '.join(names)}")
        in_96_bits, size = _in_96_bits(file, names), ReadSize()
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if first >= rows:
                first -= rows
                continue
            most = rows_at_once(path, file, number, names, largest, rows_per_read(len(names)))
            cut = _cut_times(path, in_96_bits, number, most) if in_96_bits else iter(())
            for batch in read_batches(file, names, group=number, most=most):
                yield from islice(_rows(batch, cut), first, None)
                first = max(0, first - batch.num_rows)
                if size.is_used_up(batch.nbytes):
                    yield READ_ENDS


def _rows(batch: pa.RecordBatch, cut: Iterator[str | None]) -> Sequence[Any]:
    """Return a batch's rows. ``cut``: for each row why one of its values is not exact, if so."""
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    wrong = {index: reason for index, reason in enumerate(islice(cut, batch.num_rows)) if reason is not None}
    cells = [_cells(name, column, wrong) for name, column in zip(names, batch.columns, strict=True)]
    rows = [*map(dict, map(zip, repeat(names), zip(*cells, strict=True)))]  # a loop in C
    for index, reason in wrong.items():
        rows[index] = UnreadableRow(rows[index], reason)
    return rows


def _cells(name: str, column: pa.Array, wrong: dict[int, str]) -> Sequence[Any]:
    """Return the values of a column; add the reasons for those that Python cannot represent, by index."""
    exact = _exact_type(column.type)
    try:
        return _objects(column, exact)
    except _UNREPRESENTABLE:
        pass
    cells = list[Any]()
    for index in range(len(column)):
        cell = column.take([index])  # a cast of a slice also casts the list elements outside of it
        try:
            cells += _objects(cell, exact)
        except _UNREPRESENTABLE as error:
            wrong[index] = f"column {name!r}, {column.type}: {error}"
            cells += cell.cast(_stored_type(column.type)).to_pylist()
    return cells


def _objects(column: pa.Array, exact: pa.DataType) -> list[Any]:
    cast = column if column.type == exact else column.cast(exact)
    return list(cast.to_pylist(maps_as_pydicts="strict"))


def _in_96_bits(file: Any, names: Sequence[str]) -> Sequence[str]:
    """Return the columns with times of 96 bits. They have nanoseconds, and are read in microseconds."""
    columns = (file.schema.column(index) for index in range(len(file.schema)))
    found = {column.path.split(".")[0] for column in columns if column.physical_type == "INT96"}
    return [name for name in names if name.split(".")[0] in found]


def _cut_times(path: Path, names: Sequence[str], group: int, most: int) -> Iterator[str | None]:
    """Yield for each row why microseconds do not represent a time of 96 bits; None if they do.

    Both units of a time are read modulo 2^64.
    """
    with open_parquet(path) as file, open_parquet(path, int96_unit="ns") as exact:
        readings = (read_batches(each, names, group=group, most=most) for each in (file, exact))
        for batch, other in zip(*readings, strict=True):
            cut: list[str | None] = [None] * batch.num_rows
            for name, own, ns in zip(names, batch.columns, other.columns, strict=True):
                stored = (each.cast(_stored_type(each.type)).to_pylist() for each in (own, ns))
                for index, pair in enumerate(zip(*stored, strict=True)):
                    if not _is_same(own.type, ns.type, *pair):
                        cut[index] = f"column {name!r}: a time has nanoseconds"
            yield from cut


def _is_same(tp: pa.DataType, other: pa.DataType, value: Any, ns: Any) -> bool:
    """Return whether a value is the same in microseconds (``tp``) and in nanoseconds (``other``)."""
    if tp == other or value is None:
        return True
    if kinds.is_timestamp(tp):
        return bool((value * 1000 - ns) % (1 << 64) == 0)
    if kinds.is_struct(tp):
        fields = ((tp.field(at), other.field(at)) for at in range(tp.num_fields))
        return all(_is_same(own.type, of.type, value[own.name], ns[own.name]) for own, of in fields)
    if kinds.is_map(tp):
        keys, items = (tp.key_type, other.key_type), (tp.item_type, other.item_type)
        pairs = zip(value, ns, strict=True)
        return all(_is_same(*keys, a, b) and _is_same(*items, x, y) for (a, x), (b, y) in pairs)
    return all(_is_same(tp.value_type, other.value_type, a, b) for a, b in zip(value, ns, strict=True))


@lru_cache(1024)
def _exact_type(tp: pa.DataType) -> pa.DataType:
    """Return the type with microseconds in place of nanoseconds. Raise ValueError for an unknown time zone."""
    return _with_leaves(tp, _in_microseconds)


@lru_cache(1024)
def _stored_type(tp: pa.DataType) -> pa.DataType:
    """Return the type with numbers in place of times, and bytes in place of text: any value has a Python object."""
    return _with_leaves(tp, _stored_leaf)


def _with_leaves(tp: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    def field(of: pa.Field) -> pa.Field:
        return of.with_type(_with_leaves(of.type, leaf))

    if kinds.is_dictionary(tp):
        return _with_leaves(tp.value_type, leaf)
    if kinds.is_struct(tp):
        return pa.struct([field(tp.field(index)) for index in range(tp.num_fields)])
    if kinds.is_map(tp):
        return pa.map_(field(tp.key_field), field(tp.item_field), tp.keys_sorted)
    if kinds.is_list(tp):
        return pa.list_(field(tp.value_field))
    if kinds.is_large_list(tp):
        return pa.large_list(field(tp.value_field))
    if kinds.is_fixed_size_list(tp):
        return pa.list_(field(tp.value_field), tp.list_size)
    return leaf(tp)


def _in_microseconds(tp: pa.DataType) -> pa.DataType:
    if kinds.is_timestamp(tp) and tp.tz is not None:
        try:
            pa.scalar(0, pa.timestamp("us", tp.tz)).as_py()
        except (KeyError, ValueError) as error:
            raise ValueError(f"a column has the time zone {tp.tz!r}, which is unknown on this machine") from error
    if kinds.is_timestamp(tp) and tp.unit == "ns":
        return pa.timestamp("us", tp.tz)
    if kinds.is_duration(tp) and tp.unit == "ns":
        return pa.duration("us")
    return pa.time64("us") if tp == pa.time64("ns") else tp


def _stored_leaf(tp: pa.DataType) -> pa.DataType:
    if kinds.is_date32(tp) or kinds.is_time32(tp):
        return pa.int32()
    if kinds.is_timestamp(tp) or kinds.is_duration(tp) or kinds.is_time64(tp) or kinds.is_date64(tp):
        return pa.int64()
    return _BINARY.get(tp, tp)
