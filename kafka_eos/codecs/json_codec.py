"""JSON codec: it checks the type when it decodes, and the class of the value when it encodes.

pydantic models use their own compiled validator and serializer (with aliases in both directions), everything else
(msgspec Structs, dataclasses, TypedDicts, builtins) msgspec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from kafka_eos.codecs.type_inspection import (
    derive_json_schema,
    expect_known,
    from_plain,
    get_instance_class,
    is_model,
    reason,
    to_plain,
    type_name,
)
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


class JsonCodec(Generic[T]):
    """Values of one type as JSON text. Raises PlanError if the type cannot be mapped."""

    name = "json"

    def __init__(self, tp: Any) -> None:
        self.type = tp
        self._class = get_instance_class(tp) or object
        self._encode, self._decode = _model_functions(tp) if is_model(tp) else _msgspec_functions(tp)
        expect_known(tp, "read and written as JSON")

    @property
    def schema(self) -> Json:
        return derive_json_schema(self.type)

    def encode(self, value: T) -> bytes:
        if not isinstance(value, self._class):
            raise ValueError(f"expected {type_name(self.type)}, got {type(value).__name__}")
        try:
            return self._encode(value)
        except (TypeError, NotImplementedError, OverflowError, RecursionError) as error:
            raise ValueError(f"not JSON: {reason(error)}") from error

    def decode(self, data: bytes) -> T:
        try:
            return self._decode(data)  # type: ignore[no-any-return]
        except (ValueError, RecursionError, NotImplementedError) as error:
            raise ValueError(f"not a valid {type_name(self.type)}: {reason(error)}") from error

    def reader_of(self, schema: Json) -> JsonCodec[T]:
        """Return this codec, which reads every schema.

        JSON names its fields, so no resolution is needed: new fields need a default, dropped ones are ignored.
        """
        return self


def _model_functions(model: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    to_json = model.__pydantic_serializer__.to_json
    return lambda value: to_json(value, by_alias=True), model.__pydantic_validator__.validate_json


def _msgspec_functions(tp: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    try:
        return msgspec.json.Encoder(enc_hook=to_plain).encode, msgspec.json.Decoder(tp, dec_hook=from_plain).decode
    except TypeError as error:
        raise PlanError(f"type {type_name(tp)} cannot be mapped to JSON: {reason(error)}") from error
