"""Codecs of the state of patterns: rows that wait for the watermark, and partial matches.

Rule: a row that is in several partial matches of a key is stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from kafka_eos.abc.codec import Codec
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_Place = tuple[int, int, int]
_encode = msgspec.msgpack.Encoder().encode
_marked: Final = msgspec.msgpack.Decoder(list[tuple[tuple[int, int, int], int, bytes]]).decode
_partials: Final = msgspec.msgpack.Decoder(tuple[list[tuple[tuple[int, int, int], bytes]], list[list[int]]]).decode


@dataclass(frozen=True, slots=True)
class PatternRowsCodec(Codec[Any], Generic[T]):
    """Codec of buffered rows with the pattern stages they may match; stored as "marked-…"."""

    inner: Codec[T]

    @property
    def name(self) -> str:
        return f"marked-{self.inner.name}"

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: Sequence[tuple[T, _Place, int]]) -> bytes:
        return _encode([(place, bits, self.inner.encode(each)) for each, place, bits in value])

    def decode(self, data: bytes) -> list[tuple[T, _Place, int]]:
        return [(self.inner.decode(each), place, bits) for place, bits, each in _marked(data)]

    def reader_of(self, schema: Json) -> PatternRowsCodec[T]:
        return PatternRowsCodec(self.inner.reader_of(schema))


@dataclass(frozen=True, slots=True)
class PartialMatchesCodec(Codec[Any], Generic[T]):
    """Codec of partial matches, with ``inner`` for each value; stored as "partials-…"."""

    inner: Codec[T]

    @property
    def name(self) -> str:
        return f"partials-{self.inner.name}"

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: Sequence[Sequence[tuple[T, _Place]]]) -> bytes:
        numbers: dict[int, int] = {}
        rows: list[tuple[_Place, bytes]] = []
        for element in (element for partial in value for element in partial):
            if id(element) not in numbers:
                numbers[id(element)] = len(rows)
                rows.append((element[1], self.inner.encode(element[0])))
        return _encode((rows, [[numbers[id(element)] for element in partial] for partial in value]))

    def decode(self, data: bytes) -> list[tuple[tuple[T, Any], ...]]:
        rows, partials = _partials(data)
        elements = [(self.inner.decode(each), place) for place, each in rows]
        return [tuple(elements[number] for number in partial) for partial in partials]

    def reader_of(self, schema: Json) -> PartialMatchesCodec[T]:
        return PartialMatchesCodec(self.inner.reader_of(schema))
