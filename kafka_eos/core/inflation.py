"""Inflation of compressed data up to a limit. Rule: a kilobyte may become a megabyte, so the caller states how
much it may become."""

from __future__ import annotations

import zlib
from typing import Final

ZLIB: Final = zlib.MAX_WBITS
RAW: Final = -zlib.MAX_WBITS
GZIP: Final = zlib.MAX_WBITS | 16


def inflate(data: bytes, most: int, form: int) -> bytes:
    """Inflate data in one of the forms above. Raises ValueError if they are damaged, or have more than ``most``
    bytes.
    """
    stream = zlib.decompressobj(form)
    try:
        found = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"it cannot be inflated: {error}") from error
    if len(found) > most:
        raise ValueError(f"it inflates to more than {most:,} bytes")
    if not stream.eof:
        raise ValueError("it cannot be inflated: it is cut off")
    return found
