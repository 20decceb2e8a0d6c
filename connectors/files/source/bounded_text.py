"""Rows of text, none of them longer than the user says; and what is raised of them, and of larger parts of files.

Rule: no more than that of a row is in memory before it is refused. A compressed line of a few kilobytes may be
gigabytes long.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any


class NotAllowed(ValueError):
    """Something takes more memory than the user allows."""


class TooLong(NotAllowed):
    """A row is longer than allowed."""

    def __init__(self, longest: int) -> None:
        super().__init__(f"the next row has more than {longest:,} bytes, which is what longest_row= allows")


class TooLarge(NotAllowed):
    """A block or a page is larger than allowed, packed or unpacked."""

    def __init__(self, largest: int) -> None:
        super().__init__(
            f"the next part has more than {largest:,} bytes when it is unpacked, which is what largest_block= allows"
        )


def lines(file: Any, longest: int) -> Iterator[Any]:
    """With their newlines."""
    for line in iter(partial(file.readline, longest + 1), file.read(0)):
        if len(line) > longest:
            raise TooLong(longest)
        yield line


def csv_rows(file: Any, longest: int) -> Iterator[Sequence[str]]:
    """Rows of CSV that are not empty. A row may have several lines; its characters count as bytes."""
    taken = 0

    def counted() -> Iterator[str]:
        nonlocal taken
        for line in lines(file, longest):
            taken += len(line)
            if taken > longest:
                raise TooLong(longest)
            yield line

    for row in csv.reader(counted(), strict=True):
        taken = 0
        if row:
            yield row
