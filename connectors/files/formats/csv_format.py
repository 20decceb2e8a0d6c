"""CSV as in RFC 4180: a line of names, then one row per value. None is an empty cell, an empty text is ``""``.

A list, a dict or a record is a cell of JSON, which ``FileSource`` reads by the type of its field.
Rule: a cell is never changed to make it fit. A value that its type would read as another one is rejected, as is a value
without a unique text form. A column without a type is read as text.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import enum
import gzip
import io
import json
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import JsonCodec
from kafka_eos.codecs.json_codec import json_codec_of
from kafka_eos.codecs.returned_values import is_equal, unchanged
from kafka_eos.codecs.type_inspection import holds_values, is_model, reason, type_name, without_none
from kafka_eos.connectors._shared.plain_rows import build_cell_reader
from kafka_eos.connectors._shared.row_errors import map_rows
from kafka_eos.connectors.files.formats.format import PROVENANCE, ByteOutput, BytesBlock, TextWriter, expect_compression
from kafka_eos.connectors.files.formats.record_fields import expect_columns, fields_of, picker
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

_CellWriter: TypeAlias = Callable[[Any], str | None]
_EXACT: Final = (
    *(str, bool, int, float, decimal.Decimal, uuid.UUID),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
)
"""Classes whose values each have a text of their own, which is read as the same value."""
_QUOTED: Final = frozenset(',"\r\n')
_LARGEST: Final = 1 << 31
"""Most characters of a cell that the audit reads; the library's default is far below a broker's record limit."""


class Csv(Struct, frozen=True):
    """The CSV format. ``columns``: the keys of a stream of dicts. ``compression``: None or "gzip"."""

    columns: tuple[str, ...] | None = None
    compression: str | None = None

    def __post_init__(self) -> None:
        expect_compression(self.compression, (None, "gzip"), "CSV")
        if self.columns is not None:
            expect_columns(self.columns)

    @property
    def extension(self) -> str:
        return "csv.gz" if self.compression else "csv"

    @property
    def needs_type(self) -> bool:
        return self.columns is None

    def layout(self, value: Any, envelope: bool) -> CsvLayout:
        if (value is None) == (self.columns is None):
            raise ConfigError('CSV needs its columns: value=Model, or format=Csv(columns=("a", "b")) for dicts')
        fields = fields_of(value, "format=Csv(columns=…)") if self.columns is None else {}
        if binary := [name for name, tp in fields.items() if _is_binary(tp)]:
            raise ConfigError(
                f"{type_name(value)}.{binary[0]}: bytes have no standard form in CSV. Convert them to "
                'text, such as base64, or use format="parquet" or "avro"'
            )
        names = self.columns or tuple(fields)
        cells = [_cell if value is None else _cell_writer(fields[name], is_model(value)) for name in names]
        return CsvLayout(value, names, cells, envelope, self.compression is not None)

    def describe(self) -> Mapping[str, Json]:
        return {"compression": self.compression} if self.compression else {}


class CsvLayout:
    """CSV rows with one list of columns."""

    def __init__(
        self, tp: Any, names: Sequence[str], cells: Sequence[_CellWriter], envelope: bool, compressed: bool
    ) -> None:
        self._pick = picker(tp, names)
        self._cells = cells
        self._compressed = compressed
        self._envelope = envelope
        self._header = _row([*names, PROVENANCE] if envelope else names)
        self.codec: Codec[Any] = JsonCodec(Any)

    def block(self, values: Sequence[Any], provenance: Sequence[str] | None) -> BytesBlock:
        rows = map_rows(self._line, values)
        if provenance is None:
            return BytesBlock(rows)
        return BytesBlock(row + b"," + text.encode() for row, text in zip(rows, provenance, strict=True))

    def _line(self, value: Any) -> bytes:
        return _row([write(cell) for write, cell in zip(self._cells, self._pick(value), strict=True)])

    def joined(self, blocks: Sequence[BytesBlock]) -> BytesBlock:
        return BytesBlock.joined(blocks)

    def body(self, out: ByteOutput) -> TextWriter:
        return TextWriter(out, self._compressed, self._header + b"\n")

    def encode_for_audit(self, block: BytesBlock) -> list[bytes]:
        return [_said(row) for row in _parsed(io.StringIO("\n".join(row.decode() for row in block), newline=""))]

    def read(self, path: Path) -> Iterator[tuple[bytes, str | None]]:
        opened: Any = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            rows = _parsed(file)
            header = next(rows, None)
            if header is None or _row(header) != self._header:
                raise ValueError(f"{path.name}: its columns are {header}")
            for row in rows:
                yield (_said(row[:-1]), row[-1]) if self._envelope else (_said(row), None)


def _is_binary(tp: Any) -> bool:
    """Return whether all values of a field are bytes or None."""
    tp = _without_marks(tp)
    if typing.get_origin(tp) is typing.Union:
        return all(map(_is_binary, typing.get_args(tp)))
    return isinstance(tp, type) and issubclass(tp, bytes | bytearray)


def _parsed(lines: Any) -> Iterator[list[str]]:
    csv.field_size_limit(_LARGEST - 1)
    return csv.reader(lines, strict=True)


def _said(row: Sequence[str]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode()


def _row(cells: Sequence[str | None]) -> bytes:
    """Return one line. A row of one empty cell is ``""``, because an empty line is not a row."""
    if len(cells) == 1 and cells[0] is None:
        cells = [""]
    return ",".join(map(_quoted, cells)).encode()


def _quoted(cell: str | None) -> str:
    if cell is None:
        return ""
    if not cell or not _QUOTED.isdisjoint(cell) or cell != cell.strip():
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _cell_writer(tp: Any, of_model: bool) -> _CellWriter:
    """Return the function that writes the cells of a field. ``of_model``: whether it is one of a pydantic model."""
    if holds_values(tp):
        return lambda value: None if value is None else json_codec_of(tp).encode(value).decode()
    read, exact = build_cell_reader(tp, of_model=of_model), _without_marks(tp)
    exact = exact if exact in _EXACT else type(None)

    def write(value: Any) -> str | None:
        cell = _cell(value)
        if type(value) is not exact and cell is not None:
            _expect_return(value, cell, read, tp)
        return cell

    return write


def _expect_return(value: Any, cell: str, read: Callable[[str], Any], tp: Any) -> None:
    """Raise ValueError unless the cell is read as an equal value."""
    try:
        back = read(cell)
        equal = unchanged(back, value) if tp is Any else is_equal(back, value)
    except (ValueError, TypeError, ArithmeticError, NotImplementedError) as error:
        raise ValueError(f"{value!r:.200} is not read from CSV as {type_name(tp)}: {reason(error)}") from error
    if not equal:
        raise ValueError(
            f"{value!r:.200} would be read back from CSV as {back!r:.200}, because a cell does "
            f"not record which type of {type_name(tp)} it has: declare a single type for the field"
        )


def _without_marks(tp: Any) -> Any:
    """Return the type without None and without annotations."""
    tp = without_none(tp)
    return _without_marks(typing.get_args(tp)[0]) if typing.get_origin(tp) is typing.Annotated else tp


def _cell(value: Any) -> str | None:
    """Return the text of a value."""
    if isinstance(value, enum.Enum):
        value = value.value
    match value:
        case None:
            return None
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float() | decimal.Decimal() | uuid.UUID():
            return str(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case bytes() | bytearray():
            raise ValueError("bytes have no standard form in CSV: write them as text")
        case datetime.timedelta():
            return str(msgspec.to_builtins(value))
    data = json_codec_of(Any).encode(value)
    return str(msgspec.json.decode(data)) if data.startswith(b'"') else data.decode()
