"""Values as Arrow columns, and Parquet files of these.

Rule: a value is never changed to make it fit (``arrow_columns``); a schema that cannot be written is refused when the
sink is created.
"""

from __future__ import annotations

import datetime
import enum
import io
import json
import types
import typing
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as arrow_types

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import JsonCodec
from kafka_eos.codecs.type_inspection import is_model, is_record, type_name
from kafka_eos.connectors._shared.parquet_files import open_parquet, read_batches
from kafka_eos.connectors._shared.row_errors import BadRows, map_rows
from kafka_eos.connectors.files.formats.arrow_columns import column_of, is_binary, is_list, is_text
from kafka_eos.connectors.files.formats.format import PROVENANCE, ByteOutput
from kafka_eos.connectors.files.formats.record_fields import expect_columns, fields_of, picker
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.limits import LIMITS

_EACH_TABLE: Final = 6 << 10
"""Bytes that a table with a few columns takes besides its rows."""
_TYPES: Final[Mapping[Any, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", "UTC"),
    datetime.date: pa.date32(),
    datetime.time: pa.time64("us"),
    datetime.timedelta: pa.duration("us"),
    uuid.UUID: pa.string(),
}
_FAMILIES: Final[Sequence[tuple[str, Callable[[pa.DataType], bool]]]] = (
    ("a bool", arrow_types.is_boolean),
    ("an integer", arrow_types.is_integer),
    ("a float", arrow_types.is_floating),
    ("a decimal", arrow_types.is_decimal),
    ("a text", is_text),
    ("bytes", is_binary),
    ("a time", arrow_types.is_timestamp),
    ("a time of day", arrow_types.is_time),
    ("a duration", arrow_types.is_duration),
    ("a date", arrow_types.is_date),
    ("a list", is_list),
    ("a map", arrow_types.is_map),
    ("a struct", arrow_types.is_struct),
)
_SAY_WHICH: Final = "say which: format=Parquet(schema=pyarrow.schema(…))"
_BAD_DATA: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)


def arrow_schema(tp: Any, otherwise: str) -> pa.Schema:
    """Return the schema of a model. Raise ConfigError with a field whose type has no counterpart, and advice
    ``otherwise``."""
    fields = fields_of(tp, otherwise)
    try:
        return pa.schema([_field(name, hint, f"{type_name(tp)}.{name}") for name, hint in fields.items()])
    except _NoCounterpart as error:
        raise ConfigError(f"{error}; {otherwise}") from None


def arrow_type(tp: Any) -> pa.DataType | None:
    """Return the Arrow type of a field; None if it has no unique counterpart."""
    try:
        return _type(tp, "")[0]
    except _NoCounterpart:
        return None


def find_misfits(declared: Mapping[str, Any], schema: pa.Schema) -> Iterator[str]:
    """Yield the columns of a schema that can return no value of their field's type."""
    for column in schema:
        made = arrow_type(declared[column.name]) if column.name in declared else None
        if made is None or isinstance(column.type, pa.BaseExtensionType):
            continue  # its rows tell
        has, gets = family(column.type), family(made)
        if has != gets:
            yield f"its column {column.name} is {has} ({column.type}), and the field is {gets}"


def family(tp: pa.DataType) -> str:
    """Return the family of a type, in words. Values of one family may differ in their number of digits."""
    if arrow_types.is_dictionary(tp):
        return family(tp.value_type)
    return next((name for name, applies in _FAMILIES if applies(tp)), str(tp))


class _NoCounterpart(Exception):
    """A field's type has no Arrow counterpart; the message names the field."""


def _field(name: str, tp: Any, at: str) -> pa.Field:
    found, nullable = _type(tp, at)
    return pa.field(name, found, nullable)


def _type(tp: Any, at: str) -> tuple[pa.DataType, bool]:
    """Return the Arrow type, and whether it may be null."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is typing.Annotated:
        return _type(args[0], at)
    if origin in (typing.Union, types.UnionType):
        arms = [arm for arm in args if arm is not type(None)]
        if len(arms) == 1:
            return _type(arms[0], at)[0], len(arms) < len(args)
    elif origin is typing.Literal:
        kinds = {_TYPES.get(type(value)) for value in args}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            return kind, False
    elif isinstance(tp, type) and issubclass(tp, enum.Enum):
        kinds = {_TYPES.get(type(member.value)) for member in tp}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            return kind, False
    elif isinstance(tp, type) and tp in _TYPES:
        return _TYPES[tp], False
    elif origin in (list, Sequence):
        return pa.list_(_field("item", args[0], f"{at}[]")), False
    elif origin in (dict, Mapping) and args[0] is str:
        return pa.map_(pa.string(), _field("value", args[1], f"{at}{{}}")), False
    elif is_model(tp) or is_record(tp):
        inner = fields_of(tp, "")
        return pa.struct([_field(name, hint, f"{at}.{name}") for name, hint in inner.items()]), False
    raise _NoCounterpart(f"{at}: {type_name(tp)} has no single counterpart in Arrow")


class ArrowLayout:
    """Rows of one Arrow schema."""

    def __init__(
        self,
        tp: Any,
        schema: pa.Schema | None,
        envelope: bool,
        compression: str | None,
        row_group: int,
        left_out: Container[str] = (),
    ) -> None:
        """Create the layout. ``left_out``: columns that rows have and files do not."""
        self._schema = arrow_schema(tp, _SAY_WHICH) if schema is None else schema
        expect_columns(self._schema.names)
        declared = {} if tp is None else fields_of(tp, "schema")
        if tp is not None and (missing := declared.keys() ^ set(self._schema.names)):
            raise ConfigError(f"the schema and {type_name(tp)} differ in the columns {', '.join(sorted(missing))}")
        if wrong := [*find_misfits(declared, self._schema)]:
            raise ConfigError(f"rows of {type_name(tp)} do not fit the schema: {'; '.join(wrong)}")
        self._pick = picker(tp, self._schema.names)
        self._columns = [column_of(field, declared.get(field.name)) for field in self._schema]
        whole = self._schema.append(pa.field(PROVENANCE, pa.string(), False)) if envelope else self._schema
        self._written = pa.schema([field for field in whole if field.name not in left_out])
        self._compression, self._row_group = compression or "none", row_group
        self._read_back = _read_back(self._written)
        self.codec: Codec[Any] = JsonCodec(Any)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the values."""
        return self._schema

    def block(self, values: Sequence[Any], provenance: Sequence[str] | None) -> pa.Table:
        rows = map_rows(self._pick, values)
        try:
            table = self._table(rows)
        except _BAD_DATA:
            errors = {index: error for index, row in enumerate(rows) if (error := self._wrong(row)) is not None}
            if not errors:
                raise
            raise BadRows(errors) from None
        if provenance is None:
            return table
        return table.append_column(self._written.field(PROVENANCE), pa.array(provenance, pa.string()))

    def _table(self, rows: Sequence[Sequence[Any]]) -> pa.Table:
        columns = zip(*rows, strict=True) if rows else [()] * len(self._schema)
        return pa.Table.from_arrays(
            [column.array(cells) for column, cells in zip(self._columns, columns, strict=True)], schema=self._schema
        )

    def _wrong(self, row: Sequence[Any]) -> Exception | None:
        for column, cell in zip(self._columns, row, strict=True):
            try:
                column.array([cell])
            except _BAD_DATA as error:
                where = f"column {column.field.name!r}, {column.field.type}"
                return ValueError(f"{where}: {' '.join(str(error).split())}")
        return None

    def joined(self, blocks: Sequence[pa.Table]) -> pa.Table:
        return pa.concat_tables(blocks).combine_chunks()

    def body(self, out: ByteOutput) -> _ParquetWriter:
        return _ParquetWriter(out, self._written, self._compression, self._row_group)

    def encode_for_audit(self, block: pa.Table) -> list[bytes]:
        columns = [name for name in block.column_names if name != PROVENANCE]
        return [_said(row) for row in block.select(columns).to_pylist()]

    def read(self, path: Path) -> Iterator[tuple[bytes, str | None]]:
        with open_parquet(path) as file:
            if not file.schema_arrow.equals(self._read_back):
                raise ValueError(f"{path.name}: its columns are {file.schema_arrow.names} and not those of the sink")
            for batch in read_batches(file, file.schema_arrow.names, most=LIMITS.rows_per_file_read):
                for row in batch.to_pylist():
                    text = row.pop(PROVENANCE, None)
                    yield _said(row), text


class _ParquetWriter:
    """A writer of one Parquet file; rows are buffered until they fill a row group."""

    def __init__(self, out: ByteOutput, schema: pa.Schema, compression: str, row_group: int) -> None:
        self._row_group = row_group
        self._waiting = list[pa.Table]()
        self._rows = 0
        self._bytes = 0
        self._apart, self._names = 0, schema.names
        self._writer = pq.ParquetWriter(pa.PythonFile(_ArrowOutput(out), mode="w"), schema, compression=compression)

    def write(self, block: pa.Table) -> None:
        if block.column_names != self._names:
            block = block.select(self._names)
        self._waiting.append(block)
        self._rows += block.num_rows
        self._bytes += block.nbytes
        self._apart += 1
        if self._apart >= LIMITS.tables_per_row_group:
            self._waiting[-self._apart :] = [pa.concat_tables(self._waiting[-self._apart :]).combine_chunks()]
            self._apart = 0
        if self._rows >= self._row_group or self._bytes >= LIMITS.row_group_bytes:
            self.flush()

    @property
    def buffered_bytes(self) -> int:
        return self._bytes

    @property
    def memory(self) -> int:
        return self._bytes + len(self._waiting) * _EACH_TABLE

    def close(self) -> None:
        self.flush()
        self._writer.close()

    def flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=self._row_group)
        self._waiting = []
        self._rows = 0
        self._bytes = 0
        self._apart = 0


class _ArrowOutput:
    """An adapter from a byte output to the file interface that Arrow expects."""

    closed = False

    def __init__(self, out: ByteOutput) -> None:
        self._out, self._at = out, 0

    def write(self, data: Any) -> int:
        self._out.write(bytes(data))
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Do nothing: the sink flushes its own file."""

    def close(self) -> None:
        """Do nothing: the sink's own file stays open until it is synced."""


def _read_back(schema: pa.Schema) -> pa.Schema:
    """Return the schema as a file returns it: Parquet has no seconds. Raise ConfigError if it cannot be written."""
    file = io.BytesIO()
    try:
        pq.write_table(schema.empty_table(), file)
    except (pa.ArrowException, ValueError) as error:
        raise ConfigError(f"the schema cannot be written as Parquet: {' '.join(str(error).split())}") from error
    return pq.read_schema(file)


def _said(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, default=repr).encode()
