"""Integers with seven bits per byte, the lowest first, as in Avro, Thrift and snappy (LEB128)."""

from __future__ import annotations

from collections.abc import Iterable


def unsigned(data: Iterable[int], wrong: str) -> int:
    """Return the integer that begins with the next byte; consume only its bytes.

    Raises ValueError with the text ``wrong`` if it is not terminated.
    """
    number = 0
    for shift, byte in zip(range(0, 70, 7), data, strict=False):
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
    raise ValueError(wrong)
