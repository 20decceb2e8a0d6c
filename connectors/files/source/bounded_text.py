"""Rows of text with a length limit, and the errors for rows and blocks that exceed the user's limits.

Rule: at most that many bytes of a row are in memory before it is rejected. A compressed line of a few kilobytes may
have gigabytes when it is decompressed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any


class LimitExceeded(ValueError):
    """Reading would take more memory than the user allows."""


class RowTooLong(LimitExceeded):
    """A row is longer than longest_row allows."""

    def __init__(self, longest: int) -> None:
        super().__init__(f"the next row has more than {longest:,} bytes, which is what longest_row= allows")


class BlockTooLarge(LimitExceeded):
    """A block or page is larger than largest_block allows."""

    def __init__(self, largest: int) -> None:
        super().__init__(
            f"the next part has more than {largest:,} bytes when it is unpacked, which is what largest_block= allows"
        )


def lines(file: Any, longest: int) -> Iterator[Any]:
    """Yield the lines, with their newlines."""
    for line in iter(partial(file.readline, longest + 1), file.read(0)):
        if len(line) > longest:
            raise RowTooLong(longest)
        yield line


def csv_rows(file: Any, longest: int) -> Iterator[Sequence[str]]:
    """Yield the rows of CSV that are not empty. A row may have several lines; its characters count as bytes."""
    taken = 0

    def counted() -> Iterator[str]:
        nonlocal taken
        for line in lines(file, longest):
            taken += len(line)
            if taken > longest:
                raise RowTooLong(longest)
            yield line

    for row in csv.reader(counted(), strict=True):
        taken = 0
        if row:
            yield row
