"""Numbers of seven bits a byte, the lowest first, as Avro, Thrift and snappy have them (LEB128)."""

from __future__ import annotations

from collections.abc import Iterable


def unsigned(data: Iterable[int], wrong: str) -> int:
    """The number that begins with the next byte; no more is taken than it has.

    ValueError with the text ``wrong`` if it does not end.
    """
    number = 0
    for shift, byte in zip(range(0, 70, 7), data, strict=False):
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
    raise ValueError(wrong)
