"""Detection of Parquet pages that begin in the middle of a row, by their first repetition level.

Pure. Rule: if it cannot be determined, the answer is that the page does not begin with a row.
"""

from __future__ import annotations

from typing import Final

from kafka_eos.connectors._shared.varints import unsigned

_CODECS: Final = ("SNAPPY", "GZIP", "ZSTD", "BROTLI")
"""Supported codecs. LZ4 is missing: it has two variants, and files do not state which."""
_LENGTH: Final = 4
"""Bytes of the length of the levels in version 1 pages."""


def begins_with_a_row(levels: bytes, highest: int) -> bool:
    """Return whether a page begins with a row.

    ``levels``: the repetition levels as runs; the beginning is enough. ``highest``: the maximum repetition level.
    """
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
    """Return the levels of a version 1 page and the bytes after them; b"" if the codec is not supported."""
    import pyarrow

    if codec == "UNCOMPRESSED":
        return page[_LENGTH:]
    if codec not in _CODECS:
        return b""
    return bytes(pyarrow.decompress(page, size, codec.lower(), asbytes=True))[_LENGTH:]
