"""Codecs of windowed values: results, all elements of a window, and all panes of a key.

A result's key may be of any key type, which MessagePack cannot declare. Rule: the value inside has its own codec, and
evolves by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

import msgspec

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs.msgpack_codec import KeyCodec
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
class WindowedCodec(Codec[Any], Generic[T]):
    """Codec of a result: its key, its window, and its value in ``inner``, which is the codec of ``of``.

    Codecs of the same ``of`` are equal: streams of their values are of one type.
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
        return replace(self, inner=self.inner.reader_of(schema))


@dataclass(frozen=True, slots=True)
class ElementsCodec(Codec[Any], Generic[T]):
    """Codec of window elements with their sort keys; stored as "elements-…"."""

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

    def reader_of(self, schema: Json) -> ElementsCodec[T]:
        return ElementsCodec(self.inner.reader_of(schema))


@dataclass(frozen=True, slots=True)
class RowPanesCodec(Codec[Any], Generic[T]):
    """Codec of the panes of a count window; stored as "row-panes-…"."""

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

    def reader_of(self, schema: Json) -> RowPanesCodec[T]:
        return RowPanesCodec(self.inner.reader_of(schema))
