"""Codecs of a value with more around it: one that may be missing, and the entry of a key with its number of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, itemgetter
from struct import Struct as ByteFormat
from typing import Any, Generic, TypeVar

from kafka_eos.abc.codec import Codec
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_NONE, _SOME = b"\x00", b"\x01"
_WIDTH = 8
_COUNT = ByteFormat(">Q")


@dataclass(frozen=True, slots=True)
class OptionalCodec(Codec[Any], Generic[T]):
    """Codec of a value or None, such as a version of a table's key that was deleted; stored as "maybe-…"."""

    inner: Codec[T]

    @property
    def name(self) -> str:
        return f"maybe-{self.inner.name}"

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: T | None) -> bytes:
        return _NONE if value is None else _SOME + self.inner.encode(value)

    def decode(self, data: bytes) -> T | None:
        if data[:1] not in (_NONE, _SOME):
            raise ValueError(f"an entry begins with 0 or 1, not with {data[:1]!r}")
        return None if data[:1] == _NONE else self.inner.decode(data[1:])

    def reader_of(self, schema: Json) -> OptionalCodec[T]:
        return OptionalCodec(self.inner.reader_of(schema))


class CountedCodec(Codec[Any], Generic[T]):
    """Codec of a value with its update count, the stored entry of a key in keyed operators; stored as "counted-…".

    Both are one entry, so that a crash can never separate the number from the value.
    """

    name: str = ""

    def __init__(self, inner: Codec[T]) -> None:
        self.inner = inner
        self.name = f"counted-{inner.name}"

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: tuple[int, T]) -> bytes:
        return value[0].to_bytes(_WIDTH, "big") + self.inner.encode(value[1])

    def encode_batch(self, values: Sequence[tuple[int, T]]) -> list[bytes] | None:
        inner = self.inner.encode_batch([*map(itemgetter(1), values)])
        return None if inner is None else [*map(add, map(_COUNT.pack, map(itemgetter(0), values)), inner)]

    def decode(self, data: bytes) -> tuple[int, T]:
        if len(data) < _WIDTH:
            raise ValueError(f"an entry has at least {_WIDTH} bytes, got {len(data)}")
        return int.from_bytes(data[:_WIDTH], "big"), self.inner.decode(data[_WIDTH:])

    @staticmethod
    def uncounted(data: bytes) -> bytes:
        """Return the same entry without an update count."""
        return bytes(_WIDTH) + data[_WIDTH:]

    def reader_of(self, schema: Json) -> CountedCodec[T]:
        return CountedCodec(self.inner.reader_of(schema))
