"""Cache of decoders of the most recent schemas, by value prefix. Rule: memory is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_MOST: Final = 1000
"""Number of schemas; a topic has a few. The oldest are fetched again from the registry."""
_MOST_TEXT: Final = 16 << 20
"""Characters of all these schemas: a parsed one takes about ten times as many bytes. A single one may be larger."""


class DecoderCache:
    def __init__(self) -> None:
        self._kept: dict[bytes, Callable[[bytes], Any]] = {}
        self._text: dict[bytes, int] = {}
        self.get = self._kept.get
        """The decoder behind a prefix; None if it must be made."""

    def keep(self, prefix: bytes, decode: Callable[[bytes], Any], text: int) -> None:
        """Cache a decoder. ``text``: characters of the schema."""
        while self._kept and (len(self._kept) >= _MOST or sum(self._text.values()) + text > _MOST_TEXT):
            oldest = next(iter(self._kept))
            del self._kept[oldest], self._text[oldest]
        self._kept[prefix], self._text[prefix] = decode, text
