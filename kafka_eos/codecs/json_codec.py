"""JSON codec: what it writes comes back equal.

pydantic models use their own compiled validator and serializer (with aliases in both directions), everything else
(msgspec Structs, dataclasses, TypedDicts, builtins) msgspec.
Rule: a value is decoded again, unless its class proves that it comes back unchanged. The serializers write NaN as null,
bytes as text and the key 1 as "1", and do not check that a value is of its type. Such a value is rejected where it is
written, because readers would get another value. Without a declared type, or as a dict, a record is checked as one of
its own class. Other values without a declared type must come back equal and of the same type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from kafka_eos._util.bulk_calls import map_all
from kafka_eos.abc.codec import Codec
from kafka_eos.codecs.exact_classes import ColumnCheck, find_json_check
from kafka_eos.codecs.plain_models import PlainModel
from kafka_eos.codecs.returned_values import is_equal, unchanged
from kafka_eos.codecs.type_inspection import (
    derive_json_schema,
    expect_known,
    from_plain,
    get_instance_class,
    is_model,
    is_record,
    reason,
    to_plain,
    type_name,
)
from kafka_eos.codecs.undeclared_parts import UndeclaredParts
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_Lines = tuple[Callable[[Sequence[Any]], bytes], Callable[[bytes], list[Any]]]
_ATOMS = (str, int, bool)
_plain_json = msgspec.json.Encoder(enc_hook=vars).encode


class JsonCodec(Codec[T]):
    """Values of one type as JSON text. Raises PlanError if the type cannot be mapped."""

    name = "json"

    def __init__(self, tp: Any) -> None:
        self.type = tp
        self._class = get_instance_class(tp) or object
        self._atom = next((atom for atom in _ATOMS if tp is atom), None)
        """The class of values that are always read back unchanged."""
        self._lines: _Lines | None = None
        """Encoder and decoder of many objects, one per line."""
        self._plain = PlainModel.of(tp)
        self._are_exact: ColumnCheck | None = None
        if is_model(tp):
            self._encode, self._decode = _model_functions(tp)
        else:
            encoder, decoder = _msgspec_coders(tp)
            self._encode, self._decode = encoder.encode, decoder.decode
            if is_record(tp):
                self._lines = encoder.encode_lines, decoder.decode_lines
                self._are_exact = find_json_check(tp)
        expect_known(tp, "read and written as JSON")
        self._undeclared = UndeclaredParts.in_json(tp)

    @property
    def schema(self) -> Json:
        return derive_json_schema(self.type)

    def encode(self, value: T) -> bytes:
        cls: Any = type(value)
        if self.type in (Any, dict) and (is_model(cls) or is_record(cls)):
            return json_codec_of(cls).encode(value)
        data = self.write(value)
        if cls is not self._atom:
            self.expect_return(value, data)
        return data

    def write(self, value: T) -> bytes:
        """Return the value as JSON, unchecked: it may be the JSON of another value, see ``expect_return``."""
        if not isinstance(value, self._class):
            raise ValueError(f"expected {type_name(self.type)}, got {type(value).__name__}")
        try:
            return self._encode(value)
        except (TypeError, NotImplementedError, OverflowError, RecursionError) as error:
            raise ValueError(f"not JSON: {reason(error)}") from error

    def expect_return(self, value: T, data: bytes) -> None:
        """Raise ValueError unless the data decode to an equal value."""
        try:
            back = self._decode(data)
            equal = unchanged(back, value) if self.type is Any else self._is_equal(back, value)
        except (ValueError, TypeError, ArithmeticError, RecursionError, NotImplementedError) as error:
            raise ValueError(
                f"{value!r:.200} could not be read back from JSON as {type_name(self.type)}: {reason(error)}"
            ) from error
        if not equal:
            remedy = (
                "declare the type of the values, or map them to numbers, strings, lists, and dicts with string keys"
                if self.type is Any
                else "map it to a value that JSON has, or declare another type"
            )
            raise ValueError(f"{value!r:.200} would come back from JSON as {back!r:.200}: {remedy}")

    def _is_equal(self, back: Any, value: Any) -> bool:
        undeclared = self._undeclared
        return is_equal(back, value) and (
            undeclared is None or undeclared.are_plain([value]) or undeclared.are_unchanged(value, back)
        )

    def decode(self, data: bytes) -> T:
        try:
            return self._decode(data)  # type: ignore[no-any-return]
        except (ValueError, RecursionError, NotImplementedError) as error:
            raise ValueError(f"not a valid {type_name(self.type)}: {reason(error)}") from error

    def encode_batch(self, values: Sequence[T]) -> list[bytes] | None:
        """Encode all values in one call.

        Another one decodes them again, unless they are plain models or their classes prove that they come back
        unchanged (``exact_classes``).
        """
        try:
            if self._plain is not None:
                plain = self._plain.dump(values)
                return None if plain is None else list(map(_plain_json, plain))
            if self._lines is None:
                return None
            encode_lines, decode_lines = self._lines
            lines = encode_lines(values)
            equal = (self._are_exact is not None and self._are_exact(values)) or (
                decode_lines(lines) == [*values] and (self._undeclared is None or self._undeclared.are_plain([*values]))
            )
        except Exception:  # noqa: BLE001 - the row at fault is named when they are encoded one by one
            return None
        encoded = lines.split(b"\n")[:-1]
        return encoded if equal and len(encoded) == len(values) else None

    def decode_batch(self, data: Sequence[bytes]) -> list[T] | None:
        """Decode all values without a call of Python for each."""
        try:
            return map_all(self._decode, data)
        except Exception:  # noqa: BLE001 - the record at fault is named when they are decoded one by one
            return None

    def reader_of(self, schema: Json) -> JsonCodec[T]:
        """Return this codec, which reads every schema.

        JSON names its fields, so no resolution is needed: new fields need a default, dropped ones are ignored.
        """
        return self


@lru_cache(maxsize=256)
def json_codec_of(tp: Any) -> JsonCodec[Any]:
    """Return the codec of a type that is known only with a value. Raise ValueError if it cannot be read as JSON."""
    try:
        return JsonCodec(tp)
    except PlanError as error:
        raise ValueError(f"not JSON: {error}") from error


def _model_functions(model: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    to_json = model.__pydantic_serializer__.to_json
    return lambda value: to_json(value, by_alias=True, warnings=False), model.__pydantic_validator__.validate_json


def _msgspec_coders(tp: Any) -> tuple[msgspec.json.Encoder, msgspec.json.Decoder[Any]]:
    try:
        return msgspec.json.Encoder(enc_hook=to_plain), msgspec.json.Decoder(tp, dec_hook=from_plain)
    except TypeError as error:
        raise PlanError(f"type {type_name(tp)} cannot be mapped to JSON: {reason(error)}") from error
