"""Kafka's wire format: numbers, text, arrays and tagged fields of the flexible versions of requests.

Pure. Rule: incomplete or invalid bytes raise MalformedMessage. Numbers are not interpreted: an unknown error code or
time can be read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeVar
from uuid import UUID

T = TypeVar("T")

NO_TAGS: Final = b"\0"
NO_ARRAY: Final = b"\0"
"""The encoding of a null array."""
NO_UUID: Final = bytes(16)
_MOST_BYTES_OF_A_VARINT: Final = 5


class MalformedMessage(ValueError):
    """A response that does not have the layout of its version."""


# ---------------------------------------------------------------- writing


def boolean(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def int8(value: int) -> bytes:
    return struct.pack(">b", value)


def int16(value: int) -> bytes:
    return struct.pack(">h", value)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def uvarint(value: int) -> bytes:
    done = bytearray()
    while value > 0x7F:
        done.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*done, value))


def blob(value: bytes | None) -> bytes:
    return uvarint(0) if value is None else uvarint(len(value) + 1) + value


def text(value: str | None) -> bytes:
    return blob(None if value is None else value.encode())


def array(items: Iterable[bytes] | None) -> bytes:
    found = None if items is None else list(items)
    return uvarint(0) if found is None else uvarint(len(found) + 1) + b"".join(found)


def old_text(value: str) -> bytes:
    """Return a text as versions that are not flexible encode it, and the headers of all versions."""
    raw = value.encode()
    return int16(len(raw)) + raw


# ---------------------------------------------------------------- reading


class MessageReader:
    """A reader of the fields of a message, in order."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def boolean(self) -> bool:
        return self.int8() != 0

    def int8(self) -> int:
        return self._number(">b", 1)

    def int16(self) -> int:
        return self._number(">h", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def int64(self) -> int:
        return self._number(">q", 8)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def uvarint(self) -> int:
        value = 0
        for place in range(_MOST_BYTES_OF_A_VARINT):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return value
        raise MalformedMessage("a length that does not end")

    def blob(self) -> bytes | None:
        length = self.uvarint()
        return None if length == 0 else self._take(length - 1)

    def text(self) -> str:
        value = self.text_or_none()
        if value is None:
            raise MalformedMessage("a text is missing")
        return value

    def text_or_none(self) -> str | None:
        raw = self.blob()
        return None if raw is None else _decoded(raw)

    def old_text(self) -> str:
        return _decoded(self._take(self.int16()))

    def array(self, item: Callable[[MessageReader], T]) -> tuple[T, ...]:
        """Return the items of an array; empty if it is null."""
        return self._items(self.uvarint() - 1, item)

    def old_array(self, item: Callable[[MessageReader], T]) -> tuple[T, ...]:
        return self._items(self.int32(), item)

    def tags(self) -> dict[int, MessageReader]:
        """Return the tagged fields that end each structure."""
        return {self.uvarint(): MessageReader(self._take(self.uvarint())) for _ in range(self.uvarint())}

    def skip(self, *fields: Callable[[MessageReader], object]) -> None:
        for field in fields:
            field(self)

    def rest(self) -> bytes:
        return self._take(len(self._data) - self._at)

    def end(self) -> None:
        if self._at != len(self._data):
            raise MalformedMessage(f"{len(self._data) - self._at} bytes more than it has")

    def _items(self, count: int, item: Callable[[MessageReader], T]) -> tuple[T, ...]:
        if count > len(self._data) - self._at:  # check the count first: each item takes at least one byte
            raise MalformedMessage(f"an array of {count} items in {len(self._data)} bytes")
        return tuple(item(self) for _ in range(count))

    def _number(self, form: str, size: int) -> int:
        value: int = struct.unpack(form, self._take(size))[0]
        return value

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise MalformedMessage(f"it ends after {len(self._data)} bytes")
        self._at += size
        return self._data[self._at - size : self._at]


def many(item: Callable[[MessageReader], object]) -> Callable[[MessageReader], object]:
    """Return a field parser for an array."""
    return lambda found: found.array(item)


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage("a text that is not UTF-8") from error
