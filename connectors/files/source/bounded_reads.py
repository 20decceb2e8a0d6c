"""The bounds of one read of a file: the size of a part, and the bytes of all rows of a read.

Rule: at most ``largest`` bytes of a part are in memory before it is rejected, whatever it has when it is decompressed.
A read ends after ``bytes_per_file_read`` bytes, with fewer rows or none, so that neither memory nor the time until the
next barrier depends on what a file contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from kafka_eos.core.error_messages import UnfitValue
from kafka_eos.core.limits import LIMITS

READ_ENDS: Final = object()
"""An element between the rows of a file: the read ends here, and the next one continues behind it."""
_LEAST: Final = 64
"""Bytes that any part of a file counts for, because an empty line takes time, too."""


class PartTooLarge(UnfitValue):
    """A row, a block or pages are larger than ``largest_part`` allows, when they are decompressed."""

    def __init__(self, largest: int) -> None:
        super().__init__(f"the next part has more than {largest:,} bytes, the limit of largest_part=")


class ReadSize:
    """The bytes that the present read may still take."""

    def __init__(self) -> None:
        self._left = LIMITS.bytes_per_file_read

    def is_used_up(self, size: int) -> bool:
        """Count a part of the file of this size. Return whether the read is to end behind it."""
        self._left -= size + _LEAST
        if self._left > 0:
            return False
        self._left = LIMITS.bytes_per_file_read
        return True


def rows_from(first: int, rows: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows from number ``first`` on, and each ``READ_ENDS``."""
    for row in rows:
        if first and row is not READ_ENDS:
            first -= 1
        else:
            yield row
