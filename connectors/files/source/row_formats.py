"""The rows of a file, one after the other, from any row on: as JSON lines, CSV, Avro or Parquet.

Rule: the same rows in the same order whenever a file is read. What a row holds is decoded by itself, so that one that
cannot be is named; a file that cannot be read any further stops the job, because nobody knows what else was in it. So
does one whose columns are none of the type's: it is another file than the user thinks, or it lacks its line of names.
"""

from __future__ import annotations

import codecs
import csv
import gzip
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from kafka_eos._util.extras import expect_extra
from kafka_eos.codecs import codec_for
from kafka_eos.codecs.type_inspection import type_name
from kafka_eos.connectors._shared.plain_rows import columns_taken, converter, said
from kafka_eos.connectors.files.hive_partitions import Columns, typed
from kafka_eos.connectors.files.source.avro_rows import avro_rows
from kafka_eos.connectors.files.source.bounded_text import TooLong, csv_rows, lines
from kafka_eos.connectors.files.source.parquet_pages import rows_at_once
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.limits import LIMITS

FORMATS: Final = ("jsonl", "csv", "avro", "parquet")
Rows: TypeAlias = Callable[[Path, int], Generator[Any]]
_LARGEST: Final = (1 << 31) - 1
"""Characters of a cell of CSV: pyarrow ends before."""
_END: Final = "kafka_eos_end"
"""What pyarrow finds behind the last row of CSV, unless a cell is not closed, which would take all rows up to there."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How files of one format are read.

    ``names``   what their names match, unless the user says
    ``rows``    of a file from a row on, the first is 0; they may raise anything if the file is damaged
    ``decoder`` what makes a value of a row; ValueError if it does not fit. It is given the columns that the directories
                of the file tell, as texts: those that the row has itself count. ValueError if they are not of the type
    ``told``    a row as bytes, for dead letters
    """

    name: str
    names: tuple[str, ...]
    rows: Rows
    decoder: Callable[[Columns], Callable[[Any], Any]]
    told: Callable[[Any], bytes]


def reading(name: str, tp: Any, *, longest: int, largest: int, in_partitions: bool = False) -> Reading:
    """ConfigError if there is no such format, or it cannot give values of the type. PlanError as codecs.

    ``in_partitions``: files are in directories that tell columns. ``longest``: bytes of a row of text.
    ``largest``: of a block of Avro, or pages of Parquet.
    """
    what = f"FileSource with format={name}"
    known = frozenset[str]() if in_partitions else columns_taken(tp)
    match name:
        case "jsonl" if in_partitions:
            decoder = _with_columns(converter(f"{what} and partitions", tp), tp, _object)
            return Reading(name, ("*.jsonl", "*.jsonl.gz"), partial(_lines, longest), decoder, bytes)
        case "jsonl":
            decode = codec_for(Any if tp is None else tp).decode
            return Reading(name, ("*.jsonl", "*.jsonl.gz"), partial(_lines, longest), lambda columns: decode, bytes)
        case "csv":
            expect_extra("parquet", what)
            decoder = _with_columns(converter(what, tp, of_texts=True), tp)
            return Reading(name, ("*.csv", "*.csv.gz"), _of_type(tp, known, partial(_csv, longest)), decoder, said)
        case "avro":
            return Reading(
                name,
                ("*.avro",),
                _of_type(tp, known, partial(avro_rows, largest)),
                _with_columns(converter(what, tp), tp),
                said,
            )
        case "parquet":
            expect_extra("parquet", what)
            return Reading(
                name,
                ("*.parquet",),
                _of_type(tp, known, partial(_parquet, largest)),
                _with_columns(converter(what, tp), tp),
                said,
            )
    raise ConfigError(f"format={name!r}: FileSource reads {', '.join(FORMATS[:-1])} and {FORMATS[-1]}")


def _of_type(tp: Any, known: frozenset[str], rows: Rows) -> Rows:
    """The same rows; ValueError at the first one if none of its columns is ``known``. If nothing is, all are taken."""
    if not known:
        return rows

    def checked(path: Path, first: int) -> Generator[Any]:
        with closing(rows(path, first)) as found:
            for row in islice(found, 1):
                if known.isdisjoint(row):
                    columns = ", ".join(map(repr, row))
                    raise ValueError(f"it has the columns {columns}, and none of them is a field of {type_name(tp)}")
                yield row
            yield from found

    return checked


def _with_columns(
    convert: Callable[[Any], Any], tp: Any, fields: Callable[[Any], Mapping[str, Any]] | None = None
) -> Callable[[Columns], Callable[[Any], Any]]:
    """``fields``: of a row; without it rows are dicts."""

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
        raise ValueError(f"a line in a directory of a partition is an object of JSON, not {type(found).__name__}")
    return found


def _lines(longest: int, path: Path, first: int) -> Generator[bytes]:
    """Lines that are not blank, as they are but for the newline, and for a mark of UTF-8 before the first."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        mark = file.read(len(codecs.BOM_UTF8))
        if mark.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            mark.decode("utf-8")  # what it is not, and the error says so
        if mark != codecs.BOM_UTF8:
            file.seek(0)
        yield from islice((line.rstrip(b"\r\n") for line in lines(file, longest) if not line.isspace()), first, None)


def _csv(longest: int, path: Path, first: int) -> Generator[Any]:
    """Rows as dicts of texts, by the names in the first line; an empty cell is None, and ``""`` the empty text."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as text:  # pyarrow passes over a BOM and empty lines too
        csv.field_size_limit(_LARGEST)
        told = csv_rows(text, longest)
        names: Sequence[str] = next(told, [])
        if len(set(names)) < len(names):
            raise ValueError(f"two columns have one name: {', '.join(names)}")
        if names:
            yield from islice(_told_twice(_cells(path, names, longest), told), first, None)


def _told_twice(rows: Iterator[Any], strictly: Iterator[Sequence[str]]) -> Iterator[Any]:
    """The rows; a ValueError at the first one that is none for who reads ``strictly``.

    pyarrow makes ``yz`` of ``"y"z``. The other reader does not, but cannot tell an empty cell from an empty text.
    """
    for row in rows:
        if next(strictly, None) is None:
            raise ValueError("it has rows that end within a cell")
        yield row
    if next(strictly, None) is not None:
        raise ValueError("it has cells that hold several rows")


def _cells(path: Path, names: Sequence[str], longest: int) -> Iterator[Any]:
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
    # A row may not be longer than a block. With threads pyarrow reads blocks ahead, as many as there are processors.
    blocks = pyarrow.csv.ReadOptions(block_size=max(longest, LIMITS.csv_block_bytes), use_threads=False)
    with opened(path, "rb") as file:
        ended = _WithEnd(file, f"\n{_END}{',' * (len(names) - 1)}\n".encode())
        try:
            with pyarrow.csv.open_csv(ended, blocks, whole_cells, as_texts) as batches:
                rows = (row for batch in batches for some in _slices(batch) for row in some.to_pylist())
                yield from _before_end(rows, names[0])
        except pyarrow.ArrowInvalid as error:
            if "straddling" in str(error):  # pyarrow's word for a row that does not fit
                raise TooLong(longest) from None
            raise


def _slices(batch: Any) -> Iterator[Any]:
    """Few rows at a time: as objects of Python they take many times more memory."""
    few = LIMITS.rows_per_file_read
    return (batch.slice(first, few) for first in range(0, batch.num_rows, few))


def _before_end(rows: Iterator[Any], column: str) -> Iterator[Any]:
    """ValueError if the last row is not the one that was put there: it is in a cell of the row before."""
    last = next(rows)
    for row in rows:
        yield last
        last = row
    if last[column] != _END:
        raise ValueError("a cell begins with a quote, and has none at its end")


class _WithEnd:
    """A file with something behind it, as pyarrow reads it."""

    def __init__(self, file: Any, end: bytes) -> None:
        self._file, self._end = file, end

    def read(self, size: int, /) -> bytes:
        data = bytes(self._file.read(size))
        room = size - len(data)
        end, self._end = self._end[:room], self._end[room:]
        return data + end

    def close(self) -> None:
        """The file is closed by who opened it."""

    closed = False


def _parquet(largest: int, path: Path, first: int) -> Generator[Any]:
    import pyarrow.parquet

    # Times of 96 bits, as Spark writes them, may lie behind 2262, where nanoseconds end.
    with pyarrow.parquet.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if first >= rows:
                first -= rows
                continue
            most = rows_at_once(path, file, number, largest, LIMITS.rows_per_file_read)
            for batch in file.iter_batches(most, row_groups=[number]):
                yield from islice(batch.to_pylist(maps_as_pydicts="strict"), first, None)
                first = max(0, first - batch.num_rows)
