"""Excerpts of a rejected record for display: the beginning of its key, value and headers.

Rule: an excerpt is small enough for a page, however large the record is. Foreign bytes are shown as text only if they
are text, with control characters escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

_KEY: Final = 200
_VALUE: Final = 2000
_HEADERS: Final = 20
_MESSAGE: Final = 2000


class Excerpt(Struct, frozen=True):
    """The first bytes of a value, and its total size."""

    start: bytes
    size: int

    @classmethod
    def of(cls, data: bytes | None, most: int) -> Excerpt | None:
        return None if data is None else cls(data[:most], len(data))

    @property
    def left_out(self) -> int:
        """Return how many bytes are not shown."""
        return self.size - len(self.start)

    @property
    def text(self) -> str | None:
        """Return the bytes as text; None if they are not text. An incomplete character at the end is dropped."""
        try:
            return self.start.decode()
        except UnicodeDecodeError as error:
            cut = self.left_out > 0 and error.reason == "unexpected end of data"
            return self.start[: error.start].decode() if cut else None


class RecordExcerpt(Struct, frozen=True):
    """Excerpt of a rejected record: timestamp, key, value, first headers, and the error."""

    timestamp: int
    key: Excerpt | None
    value: Excerpt | None
    headers: tuple[tuple[str, Excerpt | None], ...]
    error: str

    @classmethod
    def of(
        cls,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        error: str,
    ) -> RecordExcerpt:
        shown = tuple((name[:_KEY], Excerpt.of(each, _KEY)) for name, each in islice(headers, _HEADERS))
        return cls(timestamp, Excerpt.of(key, _KEY), Excerpt.of(value, _VALUE), shown, error[:_MESSAGE])
