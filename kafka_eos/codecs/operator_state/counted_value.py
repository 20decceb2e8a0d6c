"""The stored entry of a key in keyed operators: its number of outputs, and the user's value.

Both are one entry, so that a crash can never separate the number from the value.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from kafka_eos.abc.codec import Codec
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_WIDTH = 8


class CountedCodec(Codec[Any], Generic[T]):
    """Codec of a value with its update count; stored as "counted-…"."""

    name: str = ""

    def __init__(self, inner: Codec[T]) -> None:
        self.inner = inner
        self.name = f"counted-{inner.name}"

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: tuple[int, T]) -> bytes:
        return value[0].to_bytes(_WIDTH, "big") + self.inner.encode(value[1])

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
