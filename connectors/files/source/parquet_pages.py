"""The number of rows of a Parquet row group that may be decoded at once, computed from the headers of its pages.

Rule: pyarrow trusts the sizes in a header and allocates that memory, so headers are checked first. Pages are skipped
without being read, except in a column with lists that is larger than the limit. There a row may continue in the next
page, and the beginning of each page shows whether it does.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kafka_eos.connectors._shared.thrift_structs import Fields, ThriftType, read_struct
from kafka_eos.connectors.files.source.bounded_reads import PartTooLarge
from kafka_eos.connectors.files.source.parquet_levels import begins_with_a_row, unpacked

_DICTIONARY: Final = 2
_KIND, _UNPACKED, _PACKED, _OF_DATA, _OF_DATA_2 = 1, 2, 3, 5, 8
"""Field numbers of a page header."""
_VALUES, _OF_LEVELS = 1, 4
"""Field numbers in the data part of a header; in version 1 also the encoding of repetition levels."""
_FIELDS: Final[Fields] = {
    **dict.fromkeys((_KIND, _UNPACKED, _PACKED), ThriftType.INT),
    _OF_DATA: dict.fromkeys((_VALUES, _OF_LEVELS), ThriftType.INT),
    _OF_DATA_2: {_VALUES: ThriftType.INT},
}
_RUNS: Final = 3
_LEVELS: Final = 8
"""Least bytes that any value takes in a column with lists."""
_NUMBER: Final = 16
"""Most bytes of a number."""
_SHARE: Final = 64
"""A dictionary is not checked if it takes less than this fraction of the limit, even if each row had all of it."""


class _Page(Struct, frozen=True):
    """One page of a column. ``begins``: the offset behind its header; ``packed``: the compressed length from there."""

    dictionary: bool
    unpacked: int
    values: int
    begins: int
    packed: int
    first_version: bool
    readable: bool
    """True if its levels are encoded as runs."""


class _ColumnPages:
    """The row counts and sizes of the pages of one column.

    A part is a page, or several pages if a row continues in the next page. Only numbers are stored, because a file may
    have millions of pages.
    """

    def __init__(self, lists: bool) -> None:
        self._lists = lists
        self._rows, self._sizes = array("Q"), array("Q")
        self.dictionary = 0
        self.values = 0

    def add(self, page: _Page, *, goes_on: bool) -> None:
        if page.dictionary:
            self.dictionary += page.unpacked
            return
        self.values += page.values
        size = max(page.unpacked, page.values * _LEVELS if self._lists else 0)
        if goes_on and self._sizes:
            self._sizes[-1] += size
        else:
            self._rows.append(1 if self._lists else max(1, page.values))
            self._sizes.append(size)

    @property
    def largest(self) -> int:
        return max(self._sizes, default=0)

    def together(self, rows: int) -> int:
        """Return the most bytes of consecutive parts that this many consecutive rows can touch."""
        most = size = first = between = 0
        for last, more in enumerate(self._sizes):
            size += more
            while first < last and between > rows - 2:
                size -= self._sizes[first]
                first += 1
                between -= self._rows[first] if first < last else 0
            most = max(most, size)
            between += self._rows[last] if first < last else 0
        return most


def rows_at_once(path: Path, file: Any, number: int, names: Sequence[str], largest: int, most: int) -> int:
    """Return how many rows of a row group may be decoded at once, at most ``most``. ``file``: ``path`` as pyarrow
    opened it; ``names``: the columns that are decoded.

    A dictionary stores a value once, but each row may have it. Raises PartTooLarge if decompressing a single row
    takes more than ``largest`` bytes. Raises ValueError if a header is damaged, or if the pages have more or fewer
    values than the footer states.
    """
    group, whole, longest, columns = file.metadata.row_group(number), 0, 0, list[_ColumnPages]()
    decoded = frozenset(names)
    with open(path, "rb") as pages:
        for index in range(group.num_columns):
            of_file = group.column(index)
            if decoded.isdisjoint(accumulate(of_file.path_in_schema.split("."), "{}.{}".format)):
                continue
            highest = file.schema.column(index).max_repetition_level
            if not highest:
                _expect_values(of_file, "its row group", group.num_rows)
            column = _column(pages, of_file, highest, largest)
            whole += column.dictionary + column.largest
            if whole > largest:
                raise PartTooLarge(largest)
            if column.dictionary * most > largest // _SHARE:
                longest += _longest(path, number, of_file, column.dictionary)
            columns.append(column)
    most = max(1, min(most, largest // max(1, longest)))
    while most > 1 and sum(column.together(most) for column in columns) > largest:
        most //= 2
    return most


def _column(file: Any, column: Any, highest: int, largest: int) -> _ColumnPages:
    """Return the pages of a column. Raise PartTooLarge for a page that exceeds the limit.

    ``highest``: the maximum repetition level, 0 for a column without lists.
    """
    found = _ColumnPages(highest > 0)
    total = column.total_uncompressed_size + column.num_values * _LEVELS
    for page in _pages(file, column):
        if page.unpacked > largest:
            raise PartTooLarge(largest)
        looked_at = highest and total > largest and not page.dictionary
        found.add(page, goes_on=bool(looked_at and not _begins_with_a_row(file, page, column.compression, highest)))
    _expect_values(column, "its pages", found.values)
    return found


def _expect_values(column: Any, what: str, values: int) -> None:
    if values != column.num_values:
        raise ValueError(
            f"the footer states {column.num_values:,} values of column {column.path_in_schema}, and {what} {values:,}"
        )


def _begins_with_a_row(file: Any, page: _Page, codec: str, highest: int) -> bool:
    if not page.readable:
        return False
    file.seek(page.begins)
    levels = file.read(page.packed)
    return begins_with_a_row(unpacked(levels, codec, page.unpacked) if page.first_version else levels, highest)


def _longest(path: Path, number: int, column: Any, dictionary: int) -> int:
    """Return at least the bytes of the longest value in a column's dictionary; ``dictionary``: the bytes of all."""
    import pyarrow.compute
    import pyarrow.parquet

    name = column.path_in_schema
    if column.physical_type != "BYTE_ARRAY":
        return dictionary if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _NUMBER
    if "." in name:  # nested in another value
        return dictionary
    with pyarrow.parquet.ParquetFile(path, read_dictionary=[name]) as file:
        lengths = [
            pyarrow.compute.max(pyarrow.compute.binary_length(batch.column(0).dictionary)).as_py()
            for batch in islice(file.iter_batches(1, row_groups=[number], columns=[name]), 1)
        ]
    return max((length or 0 for length in lengths), default=0)


def _pages(file: Any, column: Any) -> Iterator[_Page]:
    starts = [each for each in (column.dictionary_page_offset, column.data_page_offset) if each]
    at = min(starts, default=0)
    end = at + column.total_compressed_size
    if not 0 <= at <= end <= os.fstat(file.fileno()).st_size:
        raise ValueError(f"the footer says that column {column.path_in_schema} is outside of the file")
    while at < end:
        file.seek(at)
        header = _header(file)
        inner = header.get(_OF_DATA) or header.get(_OF_DATA_2) or {}
        values, packed, size = inner.get(_VALUES, 0), header.get(_PACKED, -1), header.get(_UNPACKED, -1)
        if min(values, packed, size) < 0:
            raise ValueError("the header of a page has an invalid size")
        begins, first_version = file.tell(), _OF_DATA in header
        readable = not first_version or inner.get(_OF_LEVELS) == _RUNS
        yield _Page(header.get(_KIND) == _DICTIONARY, size, values, begins, packed, first_version,
                    readable)  # fmt: skip
        at = begins + packed


def _header(file: Any) -> dict[int, Any]:
    try:
        return read_struct(file, _FIELDS)
    except ValueError as error:
        raise ValueError(f"the header of a page: {error}") from error
    except EOFError as error:
        raise EOFError(f"the header of a page: {error}") from error
