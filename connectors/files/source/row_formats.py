"""The rows of a JSON lines, CSV, Avro or Parquet file, in sequence from any row on.

Rule: a file gives the same rows in the same order each time it is read. Each row is decoded by itself, so that a bad
row is named. A file that cannot be read further stops the job, because its remaining rows are unknown. A file that has
none of the type's columns also stops the job: it is the wrong file, or its header line is missing.
"""

from __future__ import annotations

import codecs
import csv
import gzip
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from kafka_eos._util.extras import ensure_extra
from kafka_eos.codecs import codec_for
from kafka_eos.connectors._shared.plain_rows import build_converter, encode_row
from kafka_eos.connectors.files.hive_partitions import Columns, typed
from kafka_eos.connectors.files.source.avro_rows import avro_rows
from kafka_eos.connectors.files.source.bounded_reads import READ_ENDS, PartTooLarge, rows_from
from kafka_eos.connectors.files.source.bounded_text import csv_rows, text_lines
from kafka_eos.connectors.files.source.unreadable_rows import (
    TypeColumns,
    expect_few,
    rejecting_unreadable,
    rows_per_read,
)
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.limits import LIMITS

FORMATS: Final = ("jsonl", "csv", "avro", "parquet")
Rows: TypeAlias = Callable[[Path, int], Generator[Any]]
LARGEST_ROW: Final = 16 << 20
"""The default for the most bytes of a row of text. A worker holds at most ``batch_size`` rows."""
LARGEST_BLOCK: Final = 256 << 20
"""The default for the most bytes of a block or of pages. Writers usually create blocks of 10 kB to a few MB."""
_LARGEST: Final = (1 << 31) - 1
"""Most characters of a CSV cell; pyarrow's own limit is lower."""
_END: Final = "kafka_eos_end"
"""A row appended to CSV. It is missing if a quote is not closed, because the cell then contains all later rows."""


class ReadFormat(Struct, frozen=True):
    """The reading and decoding of one format's files.

    ``names``: default patterns of file names.
    ``rows``: a function that yields a file's rows from a row number on, and ``READ_ENDS`` between them; it may raise
    anything if the file is damaged.
    ``decoder``: a function that takes the column values of the file's directories, as text, and returns the conversion
    of a row to a value. The row's own columns take precedence. Both raise ValueError for values that do not fit the
    type.
    ``encode_raw``: the encoding of a row as bytes, for dead letters.
    """

    name: str
    names: tuple[str, ...]
    rows: Rows
    decoder: Callable[[Columns], Callable[[Any], Any]]
    encode_raw: Callable[[Any], bytes]


def read_format(name: str, tp: Any, *, largest: int | None, in_partitions: bool = False) -> ReadFormat:
    """Return the reader of a format for a type. Raise ConfigError, or PlanError as codecs do.

    ``in_partitions``: files are in partition directories. ``largest``: most bytes of a row of text, an Avro block or
    Parquet pages; None: the default of the format.
    """
    what = f"FileSource with format={name}"
    columns = TypeColumns.of(tp, in_partitions=in_partitions)
    row = LARGEST_ROW if largest is None else largest
    block = LARGEST_BLOCK if largest is None else largest
    match name:
        case "jsonl" if in_partitions:
            decoder = _with_columns(build_converter(f"{what} and partitions", tp), tp, _object)
            return ReadFormat(name, ("*.jsonl", "*.jsonl.gz"), partial(_lines, row), decoder, bytes)
        case "jsonl":
            decode = codec_for(Any if tp is None else tp).decode
            return ReadFormat(name, ("*.jsonl", "*.jsonl.gz"), partial(_lines, row), lambda columns: decode, bytes)
        case "csv":
            ensure_extra("parquet", what)
            decoder = _with_columns(build_converter(what, tp, of_texts=True), tp)
            return ReadFormat(name, ("*.csv", "*.csv.gz"), partial(_csv, row, columns), decoder, encode_row)
        case "avro":
            decoder = _with_columns(rejecting_unreadable(build_converter(what, tp)), tp)
            return ReadFormat(name, ("*.avro",), partial(avro_rows, block, columns), decoder, encode_row)
        case "parquet":
            ensure_extra("parquet", what)
            from kafka_eos.connectors.files.source.parquet_rows import parquet_rows

            decoder = _with_columns(rejecting_unreadable(build_converter(what, tp)), tp)
            return ReadFormat(name, ("*.parquet",), partial(parquet_rows, block, columns), decoder, encode_row)
    raise ConfigError(f"format={name!r}: FileSource reads {', '.join(FORMATS[:-1])} and {FORMATS[-1]}")


def _with_columns(
    convert: Callable[[Any], Any], tp: Any, fields: Callable[[Any], Mapping[str, Any]] | None = None
) -> Callable[[Columns], Callable[[Any], Any]]:
    """Return a decoder that adds directory columns. ``fields``: splits a row; without it rows are dicts."""

    def decoder(columns: Columns) -> Callable[[Any], Any]:
        if not columns and fields is None:
            return convert
        more = typed(columns, tp)
        if fields is None:
            return lambda row: convert({**more, **row})
        return lambda row: convert({**more, **fields(row)})

    return decoder


def _object(line: bytes) -> Mapping[str, Any]:
    found = msgspec.json.decode(line)
    if not isinstance(found, dict):
        raise ValueError(f"a line in a partition directory must be a JSON object, not {type(found).__name__}")
    return found


def _lines(largest: int, path: Path, first: int) -> Generator[Any]:
    """Yield the lines that are not blank, without newline and without a leading UTF-8 byte order mark."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        mark = file.read(len(codecs.BOM_UTF8))
        if mark.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            mark.decode("utf-8")  # raises the error: the file is not UTF-8
        if mark != codecs.BOM_UTF8:
            file.seek(0)
        for line in rows_from(first, text_lines(file, largest)):
            yield line if line is READ_ENDS else line.rstrip(b"\r\n")


def _csv(largest: int, columns: TypeColumns, path: Path, first: int) -> Generator[Any]:
    """Yield rows as dicts of text, by the names in the first line; an empty cell is None, and ``""`` the empty text."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as text:  # pyarrow also skips a BOM and empty lines
        csv.field_size_limit(_LARGEST)
        strict_rows = csv_rows(text, largest)
        names: Any = next((row for row in strict_rows if row is not READ_ENDS), [])
        if len(set(names)) < len(names):
            raise ValueError(f"two columns have the same name: {', '.join(names)}")
        if names:
            expect_few(names)
            selected = False
            for row in rows_from(first, _cross_check(_cells(path, names, largest), strict_rows)):
                if not selected and row is not READ_ENDS:
                    columns.select(names)
                    selected = True
                yield row


def _cross_check(rows: Iterator[Any], strictly: Iterator[Any]) -> Iterator[Any]:
    """Yield rows and ``READ_ENDS``, and fail at the first row that a strict CSV reader would reject.

    pyarrow reads ``"y"z`` as ``yz``. The strict reader rejects it, but cannot distinguish an empty cell from an empty
    text. It goes first, because pyarrow reads on through any number of empty lines.
    """
    for strict in strictly:
        if strict is READ_ENDS:
            yield READ_ENDS
        elif (row := next(rows, None)) is not None:
            yield row
        else:
            raise ValueError("it has cells that hold several rows")
    if next(rows, None) is not None:
        raise ValueError("it has rows that end inside a cell")


def _cells(path: Path, names: Sequence[str], largest: int) -> Iterator[Any]:
    import pyarrow
    import pyarrow.csv

    opened: Any = gzip.open if path.suffix == ".gz" else open
    as_texts = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pyarrow.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    whole_cells = pyarrow.csv.ParseOptions(newlines_in_values=True)
    # A row must fit into a block. With threads pyarrow would read as many blocks ahead as there are processors.
    blocks = pyarrow.csv.ReadOptions(block_size=max(largest, LIMITS.csv_block_bytes), use_threads=False)
    with opened(path, "rb") as file:
        ended = _FileWithTrailer(file, f"\n{_END}{',' * (len(names) - 1)}\n".encode())
        try:
            with pyarrow.csv.open_csv(ended, blocks, whole_cells, as_texts) as batches:
                rows = (row for batch in batches for some in _slices(batch) for row in some.to_pylist())
                yield from _before_end(rows, names[0])
        except pyarrow.ArrowInvalid as error:
            if "straddling" in str(error):  # pyarrow's message for a row that does not fit
                raise PartTooLarge(largest) from None
            raise


def _slices(batch: Any) -> Iterator[Any]:
    """Yield small slices of a batch, because Python objects take many times more memory."""
    few = rows_per_read(batch.num_columns)
    return (batch.slice(first, few) for first in range(0, batch.num_rows, few))


def _before_end(rows: Iterator[Any], column: str) -> Iterator[Any]:
    """Yield all rows but the appended last one. Raise ValueError if that is missing: it is in a cell of the
    row before."""
    last = next(rows)
    for row in rows:
        yield last
        last = row
    if last[column] != _END:
        raise ValueError("a cell begins with a quote but does not end with one")


class _FileWithTrailer:
    """A file with extra bytes appended when it is read."""

    def __init__(self, file: Any, end: bytes) -> None:
        self._file, self._end = file, end

    def read(self, size: int, /) -> bytes:
        data = bytes(self._file.read(size))
        room = size - len(data)
        end, self._end = self._end[:room], self._end[room:]
        return data + end

    def close(self) -> None:
        """Do nothing: the code that opened the file closes it."""

    closed = False
