"""Structs in Thrift's compact protocol, as Parquet has them in its footers and page headers.

Rule: what is read here means the same to the reader that Thrift generates, else it is refused. That reader ignores the
element type of a list, cuts off large numbers, and merges a struct that occurs twice.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from kafka_eos.connectors._shared.varints import unsigned


class ThriftType:
    """The types of Thrift's compact protocol that Parquet uses: no sets and no maps."""

    TRUE, FALSE, BYTE, SHORT, INT, LONG, DOUBLE, BINARY, LIST = range(1, 10)
    STRUCT = 12


Fields: TypeAlias = Mapping[int, Any]
"""Known fields by number: a type, ``[type]`` for a list, or the fields of a struct. Others are skipped, and take no
memory."""

_DEEPEST: Final = 16
_BITS: Final = {ThriftType.SHORT: 16, ThriftType.INT: 32, ThriftType.LONG: 64}
_LONG_LIST: Final = 15
_LONGEST: Final = (1 << 31) - 1


def read_struct(file: Any, fields: Fields, depth: int = 0) -> dict[int, Any]:
    """Return the known fields of a struct by number: integers, lists, structs, and the length of a binary.

    Raises ValueError if it is not valid, has a known field twice or with another type, or is nested deeply. Raises
    EOFError if it is cut off.
    """
    found: dict[int, Any] = {}
    number = 0
    while (byte := _byte(file)) != 0:
        number = number + (byte >> 4) if byte >> 4 else _integer(file, ThriftType.SHORT)
        if number in found or not 0 < number < 1 << 15:
            raise ValueError(f"a field has number {number}, which is invalid or was taken before")
        value = _value(file, byte & 0x0F, fields.get(number), depth)
        if number in fields:
            found[number] = value
    return found


def _value(file: Any, kind: int, known: Any, depth: int) -> Any:
    """Return a value of the type ``kind``, or nothing useful if it is not ``known``."""
    if depth > _DEEPEST:
        raise ValueError("a struct is nested too deeply")
    expected = (
        ThriftType.STRUCT if isinstance(known, Mapping) else ThriftType.LIST if isinstance(known, list) else known
    )
    if expected not in (None, kind):
        raise ValueError(f"a field has type {kind} in place of {expected}")
    match kind:
        case ThriftType.SHORT | ThriftType.INT | ThriftType.LONG:
            return _integer(file, kind)
        case ThriftType.BYTE:
            return _byte(file)
        case ThriftType.TRUE | ThriftType.FALSE:
            return None  # the type is the value
        case ThriftType.DOUBLE:
            return [_byte(file) for _ in range(8)]
        case ThriftType.BINARY:
            length = _length(file)
            file.seek(length, os.SEEK_CUR)
            return length
        case ThriftType.LIST:
            return _list(file, known, depth)
        case ThriftType.STRUCT:
            return read_struct(file, known or {}, depth + 1)
        case _:
            raise ValueError(f"a field has type {kind}, which Parquet does not use")


def _list(file: Any, known: Any, depth: int) -> list[Any] | None:
    head = _byte(file)
    kind, length = head & 0x0F, head >> 4
    if length == _LONG_LIST:
        length = _length(file)
    if kind in (ThriftType.TRUE, ThriftType.FALSE):
        kind = ThriftType.BYTE  # in a list each takes one
    (of,) = known or (None,)
    values = (_value(file, kind, of, depth + 1) for _ in range(length))
    if known is not None:
        return [*values]
    deque(values, 0)
    return None


def _byte(file: Any) -> int:
    found = file.read(1)
    if not found:
        raise EOFError("it ends within a struct")
    return int(found[0])


def _length(file: Any) -> int:
    if (length := _unsigned(file)) > _LONGEST:
        raise ValueError("a text or a list is too long")
    return length


def _unsigned(file: Any) -> int:
    return unsigned(iter(lambda: _byte(file), None), "a number does not end")


def _integer(file: Any, kind: int) -> int:
    number = _unsigned(file)
    if number >> _BITS[kind]:
        raise ValueError("a number is too large for its type")
    return (number >> 1) ^ -(number & 1)
