"""What is in a record that was refused, for people: the beginning of its key, value and headers.

Rule: as much as a page can show and no more, however large the record is; and bytes of strangers are shown as text only
where they are text, with what a screen would take for a command escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

_KEY: Final = 200
_VALUE: Final = 2000
_HEADERS: Final = 20
_MESSAGE: Final = 2000


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The first bytes of something, and how many it has."""

    start: bytes
    size: int

    @classmethod
    def of(cls, data: bytes | None, most: int) -> Excerpt | None:
        return None if data is None else cls(data[:most], len(data))

    @property
    def left_out(self) -> int:
        """Bytes that are not shown."""
        return self.size - len(self.start)

    @property
    def text(self) -> str | None:
        """Those bytes as text; None if they are none. What may end in the middle of a character loses its part."""
        try:
            return self.start.decode()
        except UnicodeDecodeError as error:
            cut = self.left_out > 0 and error.reason == "unexpected end of data"
            return self.start[: error.start].decode() if cut else None


@dataclass(frozen=True, slots=True)
class Inside:
    """Of a record: its time, as records have it, key, value and the first headers; and all of what refused it said."""

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
    ) -> Inside:
        shown = tuple((name[:_KEY], Excerpt.of(each, _KEY)) for name, each in islice(headers, _HEADERS))
        return cls(timestamp, Excerpt.of(key, _KEY), Excerpt.of(value, _VALUE), shown, error[:_MESSAGE])


def printable(text: str, keep: str = "") -> str:
    """Text whose other characters are escaped, as ``\\x1b``, but those of ``keep``."""
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )
