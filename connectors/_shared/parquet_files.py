"""Parquet files that are opened and read with the checks that pyarrow leaves out.

Rule: a file that contradicts itself raises a ValueError or an OSError without a number, never fewer rows. pyarrow alone
returns the rows of a page that has fewer than the footer states, and verifies no checksums. The functions with which it
describes a column catch no errors of C++: so it ends the process if a column is encrypted, or if its statistics do not
fit the schema.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_eos.connectors._shared.thrift_structs import Fields, ThriftType, read_struct

_TRAILER: Final = 8
"""Bytes at the end of a file: the length of the footer, and the name of the format."""
_LENGTH: Final = 4
_MOST_ELEMENTS: Final = 60_000
"""The limit on elements of a schema. pyarrow takes a tenth of a millisecond per element to return the schema."""
_CHUNK: Final = 1024
"""Bytes that pyarrow takes at least for one column of a row group."""
_LARGEST: Final = 256 << 20
_ENCRYPTED: Final = "it has encrypted columns, which are not supported: write it without encryption"

_SCHEMA, _ROW_GROUPS, _COLUMNS, _METADATA, _ENCRYPTION = 2, 4, 1, 3, 8
_TYPE, _STATISTICS, _SIZES = 1, 12, 16
_BYTES_OF_TEXT, _REPETITIONS, _DEFINITIONS = 1, 2, 3
_SKIPPED: Final[Fields] = {}
_OF_COLUMN: Final[Fields] = {
    _TYPE: ThriftType.INT,
    2: [ThriftType.INT],  # encodings
    3: [ThriftType.BINARY],  # path
    8: [_SKIPPED],  # metadata of users
    _STATISTICS: dict.fromkeys((1, 2, 5, 6), ThriftType.BINARY),  # least and greatest values
    13: [_SKIPPED],  # encodings of pages
    _SIZES: {_BYTES_OF_TEXT: ThriftType.LONG, _REPETITIONS: [ThriftType.LONG], _DEFINITIONS: [ThriftType.LONG]},
    17: {2: [ThriftType.INT]},  # kinds of shapes
}
_FOOTER: Final[Fields] = {
    _SCHEMA: [_SKIPPED],
    _ROW_GROUPS: [{_COLUMNS: [{_METADATA: _OF_COLUMN, _ENCRYPTION: _SKIPPED}], 4: [_SKIPPED]}],  # and its order
    5: [_SKIPPED],  # metadata of users
    7: [_SKIPPED],  # orders of columns
}
"""Numbers of fields. All lists are among them, because pyarrow ignores their types."""
_TYPES: Final = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 0}


class OpenFile(Protocol):
    """A file that is open for reading, on disk or in a store."""

    def read(self, size: int = ..., /) -> bytes: ...

    def seek(self, offset: int, whence: int = ..., /) -> int: ...


@contextmanager
def open_parquet(
    source: Path | OpenFile, *, int96_unit: str = "us", largest: int = _LARGEST
) -> Iterator[pq.ParquetFile]:
    """Open a file. Raise ValueError if it is encrypted, or if its footer contradicts itself.

    ``source``: a path, or an open file, which stays open.
    ``int96_unit``: the unit of Spark's 96-bit times. They may be after 2262, which nanoseconds cannot represent.
    ``largest``: most bytes of memory for the description of its columns.
    """
    groups = _read_groups(source, largest)
    with pq.ParquetFile(source, coerce_int96_timestamp_unit=int96_unit, page_checksum_verification=True) as file:
        _expect_consistent(file, groups)
        yield file


def read_footer(source: Path | OpenFile) -> pq.FileMetaData:
    """Return the metadata of a file, whose statistics may be used. Raises what ``open_parquet`` raises."""
    groups = _read_groups(source, _LARGEST)
    with pq.ParquetFile(source) as file:
        columns = _expect_consistent(file, groups)
        for group in groups:
            for column, chunk in zip(columns, group[_COLUMNS], strict=True):
                width = _WIDTHS.get(column.physical_type, column.length)
                if min(chunk[_METADATA].get(_STATISTICS, {}).values(), default=width) < width:
                    raise ValueError(f"a bound of column {column.path} is shorter than its values")
        return file.metadata


def read_batches(
    file: pq.ParquetFile, columns: Sequence[str], *, group: int | None = None, most: int = 65_536
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file or of one row group, at most ``most`` at once.

    Raises ValueError at the end if there are more or fewer than the footer states.
    """
    stated = (file.metadata if group is None else file.metadata.row_group(group)).num_rows
    found = 0
    for batch in file.iter_batches(most, None if group is None else [group], [*columns]):
        found += batch.num_rows
        yield batch.select([*columns])
    if found != stated:
        raise ValueError(f"its footer states {stated:,} rows, but its pages contain {found:,}")


def _read_groups(source: Path | OpenFile, largest: int) -> Sequence[dict[int, Any]]:
    """Return the row groups of a file's footer. Raise ValueError if they take too much memory or time."""
    with open(source, "rb") if isinstance(source, Path) else nullcontext(source) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _TRAILER))
        trailer = file.read(_TRAILER)
        length = int.from_bytes(trailer[:_LENGTH], "little")
        if trailer[_LENGTH:] == b"PARE":
            raise ValueError(_ENCRYPTED)
        if trailer[_LENGTH:] != b"PAR1" or length > end - _TRAILER:
            raise ValueError("it does not end like a Parquet file")
        file.seek(end - _TRAILER - length)
        footer = read_struct(BytesIO(file.read(length)), _FOOTER)
        file.seek(0)
    schema, groups = footer.get(_SCHEMA, []), list[dict[int, Any]](footer.get(_ROW_GROUPS, []))
    if len(schema) > _MOST_ELEMENTS:
        raise ValueError(f"its schema has {len(schema):,} elements, and at most {_MOST_ELEMENTS:,} are read")
    chunks = sum(len(group.get(_COLUMNS, ())) for group in groups)
    if chunks * _CHUNK > largest:
        raise ValueError(f"its {len(groups):,} row groups have {chunks:,} columns, more than largest_part= allows")
    return groups


def _expect_consistent(file: pq.ParquetFile, groups: Sequence[Mapping[int, Any]]) -> Sequence[Any]:
    """Return the columns of a file. Raise ValueError unless its row groups fit its schema and its number of rows."""
    stated = file.metadata
    columns = [file.schema.column(index) for index in range(stated.num_columns)]
    for group in groups:
        _expect_describable(columns, group.get(_COLUMNS, ()))
    rows = sum(stated.row_group(number).num_rows for number in range(stated.num_row_groups))
    if rows != stated.num_rows:
        raise ValueError(f"its footer states {stated.num_rows:,} rows, but its row groups contain {rows:,}")
    return columns


def _expect_describable(columns: Sequence[Any], chunks: Sequence[Any]) -> None:
    """Raise ValueError unless pyarrow can describe the columns of a row group."""
    if len(chunks) != len(columns):
        raise ValueError(f"a row group has {len(chunks)} columns, and its schema {len(columns)}")
    for column, chunk in zip(columns, chunks, strict=True):
        if _ENCRYPTION in chunk:
            raise ValueError(_ENCRYPTED)
        if not _is_describable(column, chunk.get(_METADATA, {})):
            raise ValueError(f"its description of column {column.path} does not fit the schema")


def _is_describable(column: Any, described: Mapping[int, Any]) -> bool:
    kind, sizes = column.physical_type, described.get(_SIZES, {})
    return (
        described.get(_TYPE) == _TYPES.index(kind)
        and _fits(sizes.get(_REPETITIONS), column.max_repetition_level)
        and _fits(sizes.get(_DEFINITIONS), column.max_definition_level)
        and (_BYTES_OF_TEXT not in sizes or kind == "BYTE_ARRAY")
    )


def _fits(histogram: Any, highest: int) -> bool:
    """Return whether a histogram of levels has a number for each level, or is missing."""
    return not histogram or len(histogram) == highest + 1
