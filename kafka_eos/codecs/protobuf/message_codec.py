"""Protobuf codec: messages of generated classes, without a header.

Rule: equal messages have equal bytes, because they may be state. A message is decoded with its class alone.
``reader_of`` and the registry's codec compare the writer's schema beforehand, because Protobuf decodes any bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError, EncodeError

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs.batch_functions import BatchEncoder
from kafka_eos.codecs.protobuf.descriptor_pools import pooled, to_descriptor_set
from kafka_eos.codecs.protobuf.reader_compatibility import obstacles
from kafka_eos.codecs.type_inspection import is_message, reason, type_name
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


class ProtobufCodec(Codec[T]):
    """Messages of one generated class. Raises PlanError for any other type."""

    name = "protobuf"

    def __init__(self, tp: Any) -> None:
        if not is_message(tp):
            raise PlanError(f"{type_name(tp)} is no class that protoc has generated from a message")
        self.type = tp
        self._descriptor = tp.DESCRIPTOR
        self._decode: Callable[[bytes], T] = create_decoder(tp)
        self._encode = MessageEncoder(tp)

    @property
    def schema(self) -> Json:
        """Return the message name, and its file with all imports, as a ``FileDescriptorSet`` in base64."""
        files = base64.b64encode(
            to_descriptor_set(self._descriptor.file).SerializeToString(deterministic=True)
        ).decode()
        return {"message": self._descriptor.full_name, "files": files}

    def encode(self, value: T) -> bytes:
        return self._encode(value)

    def decode(self, data: bytes) -> T:
        return self._decode(data)

    def reader_of(self, schema: Json) -> ProtobufCodec[T]:
        """Return itself, if all data written with ``schema`` can be read; else raise ConfigError with the reasons."""
        if wrong := obstacles(_stored(schema), self._descriptor):
            raise ConfigError(f"what is stored cannot be read as {type_name(self.type)}: {'; '.join(wrong)}")
        return self


def create_decoder(tp: Any) -> Callable[[bytes], Any]:
    """Return a decoder of messages of a class. Raises ValueError."""
    parse, name = tp.FromString, type_name(tp)

    def decode(data: bytes) -> Any:
        try:
            return parse(data)
        except (DecodeError, ValueError) as error:
            raise ValueError(f"not a valid {name}: {reason(error)}") from error

    def whole(data: bytes) -> Any:
        message = decode(data)
        if not message.IsInitialized():
            raise ValueError(f"not a valid {name}: {', '.join(message.FindInitializationErrors())} is required")
        return message

    return whole if _any_field(tp.DESCRIPTOR, lambda field: field.is_required) else decode


def batch_reading(tp: Any) -> Callable[[bytes, Sequence[bytes]], list[Any] | None]:
    """Return a decoder of many messages of a class, each behind its prefix.

    It returns None if one must be decoded alone.
    """
    parse = tp.FromString
    complete = not _any_field(tp.DESCRIPTOR, lambda field: field.is_required)

    def decode(before: bytes, data: Sequence[bytes]) -> list[Any] | None:
        bodies = [each.removeprefix(before) for each in data]
        if sum(map(len, data)) - sum(map(len, bodies)) != len(before) * len(data):
            return None  # the prefix differs
        try:
            return list(map(parse, bodies))
        except (DecodeError, ValueError):
            return None  # decoding one by one reports which value is invalid, and why

    return decode if complete else lambda before, data: None


class MessageEncoder(BatchEncoder):
    """Encodes messages of a class, each behind a prefix. Raises ValueError."""

    def __init__(self, tp: Any, before: bytes = b"") -> None:
        self._type, self._before = tp, before
        # Sorting doubles the time, and only maps have no fixed order.
        sort = _any_field(tp.DESCRIPTOR, _is_map)
        self._serialize = partial(tp.SerializeToString, deterministic=True) if sort else tp.SerializeToString

    def __call__(self, value: Any) -> bytes:
        if type(value) is not self._type:
            raise ValueError(f"expected {type_name(self._type)}, got {type(value).__name__}")
        try:
            return self._before + self._serialize(value)  # type: ignore[no-any-return]
        except (EncodeError, ValueError) as error:
            raise ValueError(f"not a valid {type_name(self._type)}: {reason(error)}") from error

    def batch(self, values: Sequence[Any]) -> list[bytes] | None:
        if set(map(type, values)) != {self._type}:
            return None
        try:
            before = self._before
            return [before + written for written in map(self._serialize, values)]
        except (EncodeError, ValueError):
            return None  # encoding one by one reports which value is invalid, and why


def _stored(schema: Json) -> Any:
    """Return the ``Descriptor`` of the message in a stored schema."""
    try:
        found: Any = schema
        files = FileDescriptorSet.FromString(base64.b64decode(found["files"])).file
        *before, last = files
        file = pooled(last, {each.name: each for each in before})
        return file.pool.FindMessageTypeByName(found["message"])
    except (TypeError, KeyError, ValueError, DecodeError) as error:
        raise ConfigError(f"the stored Protobuf schema is not usable: {reason(error)}") from error


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _any_field(message: Any, wanted: Callable[[Any], bool]) -> bool:
    """Return whether a field of the message, or of one within it, satisfies ``wanted``."""
    waiting, seen = [message], {message.full_name}
    while waiting:
        for field in waiting.pop().fields:
            if wanted(field):
                return True
            inner = field.message_type
            if inner is not None and inner.full_name not in seen:
                seen.add(inner.full_name)
                waiting.append(inner)
    return False
