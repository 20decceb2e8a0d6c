"""How much of a row group of Parquet is unpacked at once, told from the headers of its pages.

Rule: pyarrow believes what a header says and takes memory for it. So headers are looked at first; pages are passed
over unread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from kafka_eos.connectors.files.bounded import TooLarge
from kafka_eos.connectors.files.varints import unsigned


class _Kind:
    """Types of Thrift's compact protocol, in which headers are written. A page has no sets nor maps."""

    TRUE, FALSE, BYTE, SHORT, INT, LONG, DOUBLE, BINARY, LIST = range(1, 10)
    STRUCT = 12


_DICTIONARY: Final = 2
_KIND, _UNPACKED, _PACKED, _OF_DATA, _OF_DATA_2 = 1, 2, 3, 5, 8
"""Fields of a header."""
_VALUES: Final = 1
_LEVELS: Final = 8
"""Bytes that a value takes at least in a column with lists, whatever it is."""
_NUMBER: Final = 16
"""Bytes of a number, at most."""
_DEEPEST: Final = 16
_SHARE: Final = 64
"""A dictionary that takes less than this part of what is allowed, if each row had all of it, is not looked at."""


@dataclass(frozen=True, slots=True)
class _Page:
    dictionary: bool
    unpacked: int
    values: int


def rows_at_once(path: Path, file: Any, number: int, largest: int, most: int) -> int:
    """How many rows of a row group may be made at once, ``most`` at most. ``file``: as pyarrow has opened ``path``.

    A value stands in a dictionary once, and may be that of each row. TooLarge if what must be unpacked for one of them
    is larger than ``largest``. ValueError if a header is damaged.
    """
    group, whole, longest = file.metadata.row_group(number), 0, 0
    with open(path, "rb") as headers:
        for index in range(group.num_columns):
            column, dictionary, data, values = group.column(index), 0, 0, 0
            for page in _pages(headers, column):
                if page.dictionary:
                    dictionary = max(dictionary, page.unpacked)
                else:
                    data, values = max(data, page.unpacked), max(values, page.values)
            lists = file.schema.column(index).max_repetition_level > 0
            whole += dictionary + max(data, values * _LEVELS if lists else 0)
            if whole > largest:
                raise TooLarge(largest)
            if dictionary * most > largest // _SHARE:
                longest += _longest(path, number, column, dictionary)
    return max(1, min(most, largest // max(1, longest)))


def _longest(path: Path, number: int, column: Any, dictionary: int) -> int:
    """The bytes of the longest value in a column's dictionary, or more; ``dictionary``: those of all."""
    import pyarrow.compute
    import pyarrow.parquet

    name = column.path_in_schema
    if column.physical_type != "BYTE_ARRAY":
        return dictionary if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _NUMBER
    if "." in name:  # within another value
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
    while at < end:
        file.seek(at)
        header = _struct(file, 0)
        packed, unpacked = header.get(_PACKED, -1), header.get(_UNPACKED, -1)
        if min(packed, unpacked) < 0:
            raise ValueError("the header of a page has a size that is none")
        inner = header.get(_OF_DATA) or header.get(_OF_DATA_2) or {}
        yield _Page(header.get(_KIND) == _DICTIONARY, unpacked, inner.get(_VALUES, 0))
        at = file.tell() + packed


def _struct(file: Any, depth: int) -> dict[int, Any]:
    """Integers, and structures of these, by the number of their field. Everything else is passed over."""
    if depth > _DEEPEST:
        raise ValueError("the header of a page is nested too deeply")
    made: dict[int, Any] = {}
    number = 0
    while (byte := _byte(file)) != 0:
        number = number + (byte >> 4) if byte >> 4 else _integer(file)
        made[number] = _value(file, byte & 0x0F, depth)
    return made


def _value(file: Any, kind: int, depth: int) -> Any:
    match kind:
        case _Kind.SHORT | _Kind.INT | _Kind.LONG:
            return _integer(file)
        case _Kind.BYTE:
            return _byte(file)
        case _Kind.TRUE | _Kind.FALSE:
            pass  # the type says it all
        case _Kind.DOUBLE:
            file.seek(8, os.SEEK_CUR)
        case _Kind.BINARY:
            file.seek(_unsigned(file), os.SEEK_CUR)
        case _Kind.LIST:
            head = _byte(file)
            count = head >> 4 if head >> 4 < 0x0F else _unsigned(file)
            for _ in range(count):
                _value(file, head & 0x0F, depth + 1)
        case _Kind.STRUCT:
            return _struct(file, depth + 1)
        case _:
            raise ValueError(f"the header of a page has a field of type {kind}")
    return None


def _byte(file: Any) -> int:
    found = file.read(1)
    if not found:
        raise EOFError("it ends within the header of a page")
    return int(found[0])


def _unsigned(file: Any) -> int:
    return unsigned(iter(lambda: _byte(file), None), "the header of a page has a number that does not end")


def _integer(file: Any) -> int:
    number = _unsigned(file)
    return (number >> 1) ^ -(number & 1)
