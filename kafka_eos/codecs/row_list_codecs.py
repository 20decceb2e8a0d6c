"""Codecs of whole lists, for rows that change subtasks: one call a batch, not a value.

Rule: what arrives is what was sent. Values without a declared type are only taken if MessagePack gives them back
unchanged; the check costs more than the encoding, so a pipeline that is to be fast declares its types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from kafka_eos._util.bulk_calls import all_of
from kafka_eos.abc.codec import Codec
from kafka_eos.codecs.msgpack_codec import unchanged
from kafka_eos.codecs.resolving_codec import reader_of
from kafka_eos.codecs.type_inspection import checked_class, from_plain, json_schema, reason, to_plain, type_name
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_ATOMS = frozenset((str, int, float, bool, bytes, type(None)))


class MsgpackList(Generic[T]):
    """Values of one type as one MessagePack array. PlanError for a type that cannot be mapped."""

    name = "msgpack-list"

    def __init__(self, tp: Any = Any) -> None:
        self.type = tp
        self._class = checked_class(tp)
        self._encode = msgspec.msgpack.Encoder(enc_hook=to_plain).encode
        try:
            self._decode = msgspec.msgpack.Decoder(list[tp], dec_hook=from_plain).decode
        except TypeError as error:
            raise PlanError(f"type {type_name(tp)} cannot change subtasks: {reason(error)}") from error

    @property
    def schema(self) -> Json:
        return json_schema(self.type)

    def encode(self, values: Sequence[T]) -> bytes:
        if self._class is not None and not all(issubclass(tp, self._class) for tp in set(map(type, values))):
            found = ", ".join(sorted({type(value).__name__ for value in values}))
            raise ValueError(f"expected {type_name(self.type)}, got {found}")
        try:
            data = self._encode(values)
        except (TypeError, NotImplementedError, OverflowError, RecursionError) as error:
            raise ValueError(f"cannot change subtasks: {reason(error)}") from error
        if self.type is Any and not _ATOMS.issuperset(map(type, values)):
            for back, value in zip(self._decode(data), values, strict=True):
                if not unchanged(back, value):
                    raise ValueError(
                        f"{value!r:.200} would arrive as {back!r:.200}: declare the type (values=...) where the "
                        "stream changes subtasks"
                    )
        return data

    def decode(self, data: bytes) -> list[T]:
        return self._decode(data)

    def reader_of(self, schema: Json) -> MsgpackList[T]:
        """As ``MsgpackCodec``: fields go by name; new ones need a default, dropped ones are ignored.

        ConfigError without a declared type: what had one would arrive as a dict or as text.
        """
        if self.type is Any:
            raise ConfigError("no type is declared: values=... says what it is")
        return self


class EachValue(Generic[T]):
    """Values one by one in a codec of single values, e.g. Avro for pydantic models."""

    def __init__(self, codec: Codec[T]) -> None:
        self._codec = codec
        self.name = f"{codec.name}-each"

    @property
    def schema(self) -> Json:
        return self._codec.schema

    def encode(self, values: Sequence[T]) -> bytes:
        return msgspec.msgpack.encode(all_of(self._codec.encode, values))

    def decode(self, data: bytes) -> list[T]:
        return all_of(self._codec.decode, msgspec.msgpack.decode(data, type=list[bytes]))

    def reader_of(self, schema: Json) -> EachValue[T]:
        return EachValue(reader_of(self._codec, schema))
