"""Parquet files that are opened and read with the checks that pyarrow leaves out.

Rule: a file that contradicts itself raises a ValueError or an OSError without a number, never fewer rows. pyarrow alone
returns the rows of a page that has fewer than the footer states, verifies no checksums, and ends the process when it
describes an encrypted column.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

_TRAILER = 8
"""Bytes at the end of a file: the length of the footer, and the name of the format."""
_LENGTH = 4


class OpenFile(Protocol):
    """A file that is open for reading, on disk or in a store."""

    def read(self, size: int = ..., /) -> bytes: ...

    def seek(self, offset: int, whence: int = ..., /) -> int: ...


@contextmanager
def open_parquet(source: Path | OpenFile, *, int96_unit: str = "us") -> Iterator[pq.ParquetFile]:
    """Open a file. Raise ValueError if it is encrypted, or if its footer contradicts itself.

    ``source``: a path, or an open file, which stays open.
    ``int96_unit``: the unit of Spark's 96-bit times. They may be after 2262, which nanoseconds cannot represent.
    """
    with pq.ParquetFile(source, coerce_int96_timestamp_unit=int96_unit, page_checksum_verification=True) as file:
        stated = file.metadata
        if _footer_length(source) != stated.serialized_size:  # a signature follows the metadata
            raise ValueError("it has encrypted columns, which are not supported: write it without encryption")
        groups = sum(stated.row_group(number).num_rows for number in range(stated.num_row_groups))
        if groups != stated.num_rows:
            raise ValueError(f"its footer states {stated.num_rows:,} rows, but its row groups contain {groups:,}")
        yield file


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


def _footer_length(source: Path | OpenFile) -> int:
    with open(source, "rb") if isinstance(source, Path) else nullcontext(source) as file:
        file.seek(-_TRAILER, os.SEEK_END)
        return int.from_bytes(file.read(_LENGTH), "little")
