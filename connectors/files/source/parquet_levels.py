"""Does a page of Parquet begin with a row, or in the middle of one? The first repetition level in it says so.

Pure. Rule: what cannot be told is no.
"""

from __future__ import annotations

from typing import Final

from kafka_eos.connectors.files.varints import unsigned

_CODECS: Final = ("SNAPPY", "GZIP", "ZSTD", "BROTLI")
"""Of LZ4 there are two forms, and files do not say which."""
_LENGTH: Final = 4
"""Bytes in which pages of the first version say how long their levels are."""


def begins_with_a_row(levels: bytes, highest: int) -> bool:
    """``levels``: of repetition, as runs; the beginning is enough. ``highest``: the largest there may be."""
    at = iter(levels)
    try:
        run = unsigned(at, "the levels of a page do not begin with a number")
        first = next(at)
    except (ValueError, StopIteration):
        return False
    if run & 1:  # packed: the first one has the lowest bits
        first &= (1 << highest.bit_length()) - 1
    return first == 0


def unpacked(page: bytes, codec: str, size: int) -> bytes:
    """The levels of a page of the first version, and what comes behind; nothing if nobody can tell."""
    import pyarrow

    if codec == "UNCOMPRESSED":
        return page[_LENGTH:]
    if codec not in _CODECS:
        return b""
    return bytes(pyarrow.decompress(page, size, codec.lower(), asbytes=True))[_LENGTH:]
