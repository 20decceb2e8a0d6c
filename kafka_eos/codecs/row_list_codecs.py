"""Codecs of whole lists, for rows that move between subtasks: one call per batch, not per value.

Rule: decoded values equal the encoded ones. A value that does not match its type, down to its fields, would stop the
subtask that receives it. So ``encode`` decodes again, unless the classes of the values prove that they come back
unchanged (``exact_classes``). Values and parts without a declared type are accepted only if MessagePack returns them
unchanged (``undeclared_parts``). This check costs more than the encoding, unless they consist of builtins that
MessagePack has. So a fast pipeline declares its other types. Times keep their offsets (``time_zones``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from kafka_eos._util.bulk_calls import map_all
from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.codecs.avro.avro_codec import AvroCodec
from kafka_eos.codecs.exact_classes import find_msgpack_check
from kafka_eos.codecs.plain_models import PlainModel
from kafka_eos.codecs.returned_values import is_equal
from kafka_eos.codecs.time_zones import encode_offsets, expect_same_times, may_hold_times
from kafka_eos.codecs.type_inspection import (
    derive_json_schema,
    from_plain,
    get_instance_class,
    reason,
    to_plain,
    type_name,
)
from kafka_eos.codecs.undeclared_parts import UndeclaredParts
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


class MsgpackListCodec(ListCodec[T]):
    """List codec: values of one type as one MessagePack array. Raises PlanError for a type that cannot be mapped."""

    name = "msgpack-list"

    def __init__(self, tp: Any = Any) -> None:
        self.type = tp
        self._class = get_instance_class(tp)
        self._encode = msgspec.msgpack.Encoder(enc_hook=to_plain).encode
        try:
            self._decode = msgspec.msgpack.Decoder(list[tp], dec_hook=from_plain).decode
        except TypeError as error:
            raise PlanError(f"type {type_name(tp)} cannot change subtasks: {reason(error)}") from error
        self._times = tp is not Any and may_hold_times(tp)
        self._undeclared = UndeclaredParts.in_msgpack(tp)
        self._are_exact = find_msgpack_check(tp)

    @property
    def schema(self) -> Json:
        return derive_json_schema(self.type)

    def encode(self, values: Sequence[T]) -> bytes:
        exact = self._are_exact is not None and self._are_exact(values)
        if not (exact or self._class is None) and not all(issubclass(tp, self._class) for tp in {*map(type, values)}):
            found = ", ".join(sorted({type(value).__name__ for value in values}))
            raise ValueError(f"expected {type_name(self.type)}, got {found}")
        try:
            plain = encode_offsets(values) if self._times else values
            data = self._encode(plain)
        except (TypeError, NotImplementedError, OverflowError, RecursionError) as error:
            raise ValueError(f"cannot change subtasks: {reason(error)}") from error
        if exact:
            return data
        if self.type is not Any:
            self._expect_equal(values, data, in_utc=plain is values)
        if self._undeclared is not None and not self._undeclared.are_plain([*values]):
            for back, value in zip(self._decode(data), values, strict=True):
                if not self._undeclared.are_unchanged(value, back):
                    remedy = (
                        "declare the type (values=...) where the stream changes subtasks"
                        if self.type is Any
                        else "declare the type of its contents"
                    )
                    raise ValueError(f"{value!r:.200} would arrive as {back!r:.200}: {remedy}")
        return data

    def _expect_equal(self, values: Sequence[T], data: bytes, *, in_utc: bool) -> None:
        """Raise ValueError unless the data decode to equal values."""
        try:
            decoded = self._decode(data)
        except (ValueError, RecursionError, NotImplementedError) as error:
            raise ValueError(f"cannot change subtasks as {type_name(self.type)}: {reason(error)}") from error
        if self._times:
            expect_same_times(decoded, values, in_utc=in_utc)
        with suppress(ArithmeticError):  # a signaling NaN
            if decoded == [*values]:
                return
        for back, value in zip(decoded, values, strict=True):
            if not is_equal(back, value):
                raise ValueError(f"{value!r:.200} would arrive as {back!r:.200}: it is not of its declared type")

    def decode(self, data: bytes) -> list[T]:
        return self._decode(data)

    def reader_of(self, schema: Json) -> MsgpackListCodec[T]:
        """Return itself, as ``MsgpackCodec`` does: fields go by name; new ones need a default, dropped ones are
        ignored.

        Raises ConfigError without a declared type: a typed value would be decoded as a dict or as text.
        """
        if self.type is Any:
            raise ConfigError("no type is declared: declare it with values=...")
        return self


class PerValueListCodec(ListCodec[T]):
    """List codec that encodes each value with a codec of single values."""

    name: str = ""

    def __init__(self, codec: Codec[T]) -> None:
        self._codec = codec
        self._plain = PlainModel.of(codec.type) if isinstance(codec, AvroCodec) else None
        self.name = f"{codec.name}-each"

    @property
    def schema(self) -> Json:
        return self._codec.schema

    def encode(self, values: Sequence[T]) -> bytes:
        return msgspec.msgpack.encode(map_all(self._codec.encode, values))

    def expect_encodable(self, values: Sequence[T]) -> None:
        if self._plain is None or self._plain.dump(values) is None:
            self.encode(values)

    def decode(self, data: bytes) -> list[T]:
        return map_all(self._codec.decode, msgspec.msgpack.decode(data, type=list[bytes]))

    def reader_of(self, schema: Json) -> PerValueListCodec[T]:
        return PerValueListCodec(self._codec.reader_of(schema))
