"""Codecs of what windows make of values: their results, all values of one, and all panes of a key.

The key of a result may be of any type that a key has, which no type of MessagePack tells. Rule: a value inside is in
its own codec, and evolves by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

import msgspec

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs.msgpack_codec import KeyCodec
from kafka_eos.codecs.resolving_codec import reader_of
from kafka_eos.core.json_values import Json
from kafka_eos.core.windows import Window, Windowed

T = TypeVar("T")

_Place = tuple[int, int, int]
_KEY: Final = KeyCodec()
_encode = msgspec.msgpack.Encoder().encode
_result = msgspec.msgpack.Decoder(tuple[bytes, int, int, bytes]).decode
_elements = msgspec.msgpack.Decoder(list[tuple[tuple[int, int, int], bytes]]).decode
_panes = msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode


@dataclass(frozen=True, slots=True)
class WindowedCodec(Generic[T]):
    """A result: its key, its window, and its value in ``inner``, which is the codec of ``of``.

    Codecs of one ``of`` are equal: streams of their values are of one type.
    """

    inner: Codec[T] = field(compare=False)
    of: Any

    @property
    def name(self) -> str:
        return f"windowed-{self.inner.name}"

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: Windowed[Any, T]) -> bytes:
        if not isinstance(value, Windowed):
            raise ValueError(f"expected the result of a window, got {type(value).__name__}")
        window = value.window
        return _encode((_KEY.encode(value.key), window.start, window.end, self.inner.encode(value.value)))

    def decode(self, data: bytes) -> Windowed[Any, T]:
        key, start, end, value = _result(data)
        return Windowed(_KEY.decode(key), Window(start, end), self.inner.decode(value))

    def reader_of(self, schema: Json) -> WindowedCodec[T]:
        return replace(self, inner=reader_of(self.inner, schema))


@dataclass(frozen=True, slots=True)
class Elements(Generic[T]):
    """Values with their places in event time, each value in ``inner``."""

    inner: Codec[T]

    @property
    def name(self) -> str:
        return f"elements-{self.inner.name}"

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: Sequence[tuple[T, _Place]]) -> bytes:
        return _encode([(place, self.inner.encode(each)) for each, place in value])

    def decode(self, data: bytes) -> list[tuple[T, _Place]]:
        return [(self.inner.decode(each), place) for place, each in _elements(data)]

    def reader_of(self, schema: Json) -> Elements[T]:
        return Elements(reader_of(self.inner, schema))


@dataclass(frozen=True, slots=True)
class RowPanes(Generic[T]):
    """What the panes of one key hold, by the number of the row that each begins with; in ``inner``."""

    inner: Codec[T]

    @property
    def name(self) -> str:
        return f"row-panes-{self.inner.name}"

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: Mapping[int, T]) -> bytes:
        return _encode([(first, self.inner.encode(value[first])) for first in sorted(value)])

    def decode(self, data: bytes) -> dict[int, T]:
        return {first: self.inner.decode(held) for first, held in _panes(data)}

    def reader_of(self, schema: Json) -> RowPanes[T]:
        return RowPanes(reader_of(self.inner, schema))
