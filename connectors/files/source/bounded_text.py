"""Rows of text with a length limit.

Rule: blank lines belong to the row behind them, so that a file of nothing else is refused, too. A compressed line, and
a million blank lines, may have a few kilobytes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from typing import Any

from kafka_eos.connectors.files.source.bounded_reads import READ_ENDS, PartTooLarge, ReadSize


def text_lines(file: Any, largest: int) -> Iterator[Any]:
    """Yield the lines that are not blank, with their newlines, and ``READ_ENDS``."""
    size, blank = ReadSize(), 0
    for line in _lines(file, largest):
        blank = blank + len(line) if line.isspace() else 0
        if blank > largest:
            raise PartTooLarge(largest)
        if not blank:
            yield line
        if size.is_used_up(len(line)):
            yield READ_ENDS


def csv_rows(file: Any, largest: int) -> Iterator[Any]:
    """Yield the rows of CSV that are not empty, and ``READ_ENDS``.

    A row may have several lines; its characters count as bytes.
    """
    size, taken = ReadSize(), 0

    def counted() -> Iterator[str]:
        nonlocal taken
        for line in _lines(file, largest):
            taken += len(line)
            if taken > largest:
                raise PartTooLarge(largest)
            yield line

    for row in csv.reader(counted(), strict=True):
        used_up = size.is_used_up(taken if row else 0)
        if row:
            taken = 0
            yield row
        if used_up:
            yield READ_ENDS


def _lines(file: Any, largest: int) -> Iterator[Any]:
    for line in iter(partial(file.readline, largest + 1), file.read(0)):
        if len(line) > largest:
            raise PartTooLarge(largest)
        yield line
