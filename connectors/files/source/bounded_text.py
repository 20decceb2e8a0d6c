"""Rows of text with a length limit, and the error for rows and blocks that exceed the user's limit.

Rule: at most that many bytes of a row are in memory before it is rejected. A compressed line of a few kilobytes may
have gigabytes when it is decompressed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from kafka_eos.core.error_messages import UnfitValue


class PartTooLarge(UnfitValue):
    """A row, a block or pages are larger than ``largest_part`` allows, when they are decompressed."""

    def __init__(self, largest: int) -> None:
        super().__init__(f"the next part has more than {largest:,} bytes, the limit of largest_part=")


def lines(file: Any, largest: int) -> Iterator[Any]:
    """Yield the lines, with their newlines."""
    for line in iter(partial(file.readline, largest + 1), file.read(0)):
        if len(line) > largest:
            raise PartTooLarge(largest)
        yield line


def csv_rows(file: Any, largest: int) -> Iterator[Sequence[str]]:
    """Yield the rows of CSV that are not empty. A row may have several lines; its characters count as bytes."""
    taken = 0

    def counted() -> Iterator[str]:
        nonlocal taken
        for line in lines(file, largest):
            taken += len(line)
            if taken > largest:
                raise PartTooLarge(largest)
            yield line

    for row in csv.reader(counted(), strict=True):
        taken = 0
        if row:
            yield row
