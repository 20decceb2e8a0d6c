"""MessagePack codec, the default for state; and the codec of keys, whose bytes are the identity of a key.

Rule: decoded state equals what was stored. ``encode`` decodes again, because a value that does not match its type, down
to its fields and elements, could not be read after a restart. Parts without a declared type, which MessagePack may
change, are compared (``undeclared_parts``). Times keep their offsets (``time_zones``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs.exact_classes import find_msgpack_check
from kafka_eos.codecs.returned_values import is_equal
from kafka_eos.codecs.time_zones import encode_offsets, expect_same_times, may_hold_times
from kafka_eos.codecs.type_inspection import (
    derive_json_schema,
    expect_known,
    from_plain,
    get_instance_class,
    reason,
    to_plain,
    type_name,
)
from kafka_eos.codecs.undeclared_parts import UndeclaredParts
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_ATOMS = (str, int, float, bool, bytes)


class MsgpackCodec(Codec[T]):
    """Values of one type as MessagePack; the same value always gives the same bytes.

    Raises PlanError for a bad type.
    """

    name = "msgpack"

    def __init__(self, tp: Any = Any) -> None:
        self.type = tp
        self._class = get_instance_class(tp) or object
        self._atom = next((atom for atom in _ATOMS if tp is atom), None)
        """The class of values that are surely read back as they are."""
        self._encode = msgspec.msgpack.Encoder(enc_hook=to_plain, order="deterministic").encode
        try:
            self._decode = msgspec.msgpack.Decoder(tp, dec_hook=from_plain).decode
        except TypeError as error:
            raise PlanError(f"type {type_name(tp)} cannot be stored: {reason(error)}") from error
        expect_known(tp, "stored")
        self._times = tp is not Any and may_hold_times(tp)
        self._undeclared = UndeclaredParts.in_msgpack(tp)
        self._are_exact = find_msgpack_check(tp)

    @property
    def schema(self) -> Json:
        return derive_json_schema(self.type)

    def encode(self, value: T) -> bytes:
        if not isinstance(value, self._class):
            raise ValueError(f"expected {type_name(self.type)}, got {type(value).__name__}")
        try:
            plain = encode_offsets(value) if self._times else value
            data = self._encode(plain)
        except (TypeError, NotImplementedError, OverflowError, RecursionError) as error:
            raise ValueError(f"cannot be stored: {reason(error)}") from error
        undeclared = self._undeclared
        if undeclared is not None and undeclared.are_plain([value]):
            undeclared = None
        if type(value) is self._atom or (self.type is Any and undeclared is None):
            return data
        try:
            back = self._decode(data)
        except (ValueError, RecursionError, NotImplementedError) as error:
            raise ValueError(
                f"{value!r:.200} could not be read back as {type_name(self.type)}: {reason(error)}"
            ) from error
        if self._times:
            expect_same_times(back, value, in_utc=plain is value)
        if undeclared is not None and not undeclared.are_unchanged(value, back):
            raise ValueError(f"{value!r:.200} would come back as {back!r:.200}: declare the type of its contents")
        if self.type is not Any and not is_equal(back, value):
            raise ValueError(f"{value!r:.200} would come back as {back!r:.200}: it is not of its declared type")
        return data

    def encode_batch(self, values: Sequence[T]) -> list[bytes] | None:
        """Encode the values if their classes prove that they come back unchanged (``exact_classes``)."""
        try:
            return [*map(self._encode, values)] if self._are_exact is not None and self._are_exact(values) else None
        except Exception:  # noqa: BLE001 - the value at fault is named when they are encoded one by one
            return None

    def decode(self, data: bytes) -> T:
        try:
            return self._decode(data)  # type: ignore[no-any-return]
        except (ValueError, RecursionError, NotImplementedError) as error:
            raise ValueError(f"not a valid {type_name(self.type)}: {reason(error)}") from error

    def reader_of(self, schema: Json) -> MsgpackCodec[T]:
        """Return this codec, which reads every schema.

        Fields are stored by name: new fields need a default, dropped ones are ignored.
        """
        return self


class KeyCodec(Codec[Any]):
    """Keys of keyed state: str, 64-bit int, bytes, and tuples of these. Equal keys have equal bytes.

    Other types are rejected because equal keys could differ in bytes (``1 == 1.0 == True``), and a key must have the
    same bytes in every process, in this release and all later ones.
    """

    name = "key"
    schema: Json = None
    types = frozenset((str, int, bytes))

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder().decode

    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"key {value!r}: {reason(error)}") from error

    def encode_batch(self, values: Sequence[Any]) -> list[bytes] | None:
        try:
            return [*map(self._encode, values)]
        except Exception:  # noqa: BLE001 - the key at fault is named when they are encoded one by one
            return None

    def decode(self, data: bytes) -> Any:
        return as_key(self._decode(data))

    def reader_of(self, schema: Json) -> KeyCodec:
        return self

    def check_key(self, key: Any) -> None:
        """Raise ValueError with the reason if ``key`` cannot be a key."""
        if type(key) is tuple:
            for part in key:
                self.check_key(part)
        elif type(key) not in self.types:
            raise ValueError(
                f"a key must be str, int, bytes or a tuple of these, not {type(key).__name__} ({key!r:.80})"
            )
        self.encode(key)


def as_key(decoded: Any) -> Any:
    """Convert a decoded key. MessagePack has no tuples; a key that is decoded as a list was one."""
    return tuple(map(as_key, decoded)) if isinstance(decoded, list) else decoded
