"""A value that may be missing, such as a version of a table's key that was deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kafka_eos.abc.codec import Codec
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_NONE, _SOME = b"\x00", b"\x01"


@dataclass(frozen=True, slots=True)
class OptionalCodec(Codec[Any], Generic[T]):
    """Codec of a value or None; stored as "maybe-…"."""

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
