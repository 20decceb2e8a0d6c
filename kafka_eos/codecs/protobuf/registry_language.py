"""Protobuf with a schema registry: the implementation of ``protobuf(Order, registry=registry)``.

Each record begins with the message indexes of its type in the writer's file. Rule: names of messages must match,
without their packages, and so must numbers of fields: the bytes alone do not distinguish a refund from an order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from google.protobuf.json_format import Error, MessageToJson
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from kafka_eos.codecs.batch_functions import BatchDecoder
from kafka_eos.codecs.protobuf.descriptor_pools import imported, load_schema, to_descriptor_set
from kafka_eos.codecs.protobuf.message_codec import MessageEncoder, ProtobufCodec, batch_reading
from kafka_eos.codecs.protobuf.proto_printer import print_proto
from kafka_eos.codecs.protobuf.reader_compatibility import differences, obstacles
from kafka_eos.codecs.registry.registry_client import RegisteredSchema, Registry
from kafka_eos.codecs.registry.schema_references import fetch_references
from kafka_eos.codecs.registry.schema_registration import SchemaDependency, UnregisteredSchema
from kafka_eos.codecs.type_inspection import type_name
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_FIRST = b"\0"
"""The short form of the message indexes of a file's first message, the usual case."""
_DEEPEST = 64
"""Maximum nesting of messages in message indexes."""


class ProtobufLanguage(Generic[T]):
    """The schema language of Protobuf; see ``wire_format.SchemaLanguage``."""

    schema_type, label = "PROTOBUF", "Protobuf"

    def __init__(self, tp: type[T], references: Mapping[str, str]) -> None:
        codec: ProtobufCodec[T] = ProtobufCodec(tp)
        self.type, self._decode = tp, codec.decode
        self._message = message = tp.DESCRIPTOR  # type: ignore[attr-defined]
        self.schema: Json = codec.schema
        self.record = str(message.full_name)
        self.message_indexes = _written_place(_place(message))
        try:
            self.write_schema = _draft(message.file, references)
        except ValueError as error:
            raise PlanError(f"{type_name(tp)}: {error}") from None
        if more := references.keys() - {each.name for each in to_descriptor_set(message.file).file[:-1]}:
            raise PlanError(f"references={{{sorted(more)[0]!r}: …}}: {message.file.name} imports no such file")

    def encoder(self, before: bytes) -> Callable[[T], bytes]:
        return MessageEncoder(self.type, before)

    def decoder(self, writer: RegisteredSchema, registry: Registry) -> Callable[[bytes], T]:
        return _FileDecoder(_file(writer, registry), self.type, self._decode)

    def list_differences(self, other: RegisteredSchema, registry: Registry) -> list[str]:
        found = self._counterpart(_file(other, registry))
        return [f"{self._message.full_name} is only here"] if found is None else differences(found, self._message)

    def find_incompatibilities(self, writer: RegisteredSchema, registry: Registry) -> list[str]:
        found = self._counterpart(_file(writer, registry))
        return [f"it has no message {self._message.name}"] if found is None else obstacles(found, self._message)

    def is_equivalent(self, other: RegisteredSchema, registry: Registry) -> bool:
        """Return whether both have the same bytes.

        Registries store comments too, and not all find equivalent schemas.
        """
        found = self._counterpart(_file(other, registry))
        return found is not None and not differences(found, self._message) and _place(found) == _place(self._message)

    def _counterpart(self, file: Any) -> Any:
        """Return the message of the same name in another file, in any package; None if there is none."""
        path = _names(self._message)
        found = file.message_types_by_name.get(path[0])
        for name in path[1:]:
            found = None if found is None else found.nested_types_by_name.get(name)
        return found


class _FileDecoder(BatchDecoder, Generic[T]):
    """Decodes messages of one registered file.

    The library decodes a message in a fraction of a microsecond, about the time of one Python call.
    """

    def __init__(self, file: Any, tp: type[T], read: Callable[[bytes], T]) -> None:
        self._file = file
        self._type = tp
        self._read = read
        self._batch = batch_reading(tp)
        self._known: set[bytes] = set()
        """Places of messages that can be read."""

    def __call__(self, data: bytes) -> T:
        if data[:1] in self._known:  # the indexes of a file's first message are this byte alone
            return self._read(data[1:])
        place, begin = _read_place(data)
        if data[:begin] not in self._known:
            candidates = _messages_at(self._file, place)
            message = candidates[0] if len(candidates) == 1 else _match(candidates, data[begin:], place)
            if wrong := obstacles(message, self._type.DESCRIPTOR):  # type: ignore[attr-defined]
                raise ValueError(f"not a {type_name(self._type)}: {'; '.join(wrong)}")
            if len(candidates) == 1:
                self._known.add(_written_place(place))
        return self._read(data[begin:])

    def batch(self, before: bytes, data: Sequence[bytes]) -> list[T] | None:
        for place in self._known:
            if data[0].startswith(before + place):
                return self._batch(before + place, data)
        return None


def create_text_decoder(writer: RegisteredSchema, registry: Registry) -> Callable[[bytes], str]:
    """Return a decoder of the messages of a registered file to JSON text. Fields have the names of the file.

    As ProtoJSON requires, numbers of 64 bits are text. Raises ValueError, now or when called.
    """
    file = _file(writer, registry)

    def decode(data: bytes) -> str:
        place, begin = _read_place(data)
        candidates = _messages_at(file, place)
        message = candidates[0] if len(candidates) == 1 else _match(candidates, data[begin:], place)
        try:
            value = GetMessageClass(message).FromString(data[begin:])
            text: str = MessageToJson(
                value, indent=None, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        except (DecodeError, Error, TypeError) as error:
            raise ValueError(f"not a valid {message.full_name}: {error}") from error
        return text

    return decode


def _draft(file: Any, subjects: Mapping[str, str]) -> UnregisteredSchema:
    """Return a file with its imports, unregistered.

    Their subjects are their file names, unless the user gives others.
    """
    needs = tuple(
        SchemaDependency(each.name, subjects.get(each.name, each.name), _draft(each, subjects))
        for each in imported(file)
    )
    *others, own = to_descriptor_set(file).file
    return UnregisteredSchema("PROTOBUF", print_proto(own, others), needs)


def _file(schema: RegisteredSchema, registry: Registry) -> Any:
    return load_schema(schema.text, {name: each.text for name, each in fetch_references(schema, registry).items()})


def _names(message: Any) -> list[str]:
    """Return the names of the enclosing messages, and its own."""
    return [*(() if message.containing_type is None else _names(message.containing_type)), str(message.name)]


def _place(message: Any) -> tuple[int, ...]:
    """Return the message indexes in the file: the numbers of the enclosing messages, and its own."""
    outer = message.containing_type
    siblings = list(message.file.message_types_by_name.values()) if outer is None else _nested(outer)
    number = next(n for n, each in enumerate(siblings) if each.full_name == message.full_name)
    return (*(() if outer is None else _place(outer)), number)


def _nested(message: Any) -> list[Any]:
    """Return the nested messages that are in the .proto text: those of maps exist in the descriptor only."""
    return [each for each in message.nested_types if not each.GetOptions().map_entry]


def _messages_at(file: Any, place: Sequence[int]) -> list[Any]:
    """Return the messages that message indexes can mean: usually one.

    Confluent's serializer for Python counts the entries of maps among the nested messages, others do not. A registry
    keeps the order of messages, but not where the maps were, so each map may have been before a message or after it.
    """
    siblings = list(file.message_types_by_name.values())
    found = siblings[place[0] : place[0] + 1] if place[0] >= 0 else []
    for number in place[1:]:
        found = [nested for outer in found for nested in _nested_at(outer, number)]
    if not found:
        raise ValueError(f"its schema has no message at index {'.'.join(map(str, place))}")
    return found


def _nested_at(message: Any, number: int) -> list[Any]:
    nested = _nested(message)
    maps = len(message.nested_types) - len(nested)
    return nested[max(0, number - maps) : max(0, number + 1)]


def _match(candidates: Sequence[Any], data: bytes, place: Sequence[int]) -> Any:
    """Return the one candidate that has all fields of the data. Raises ValueError if several have, or none."""
    matching = [message for message in candidates if _has_all_fields(message, data)]
    if len(matching) == 1:
        return matching[0]
    names = " or ".join(message.full_name for message in matching or candidates)
    raise ValueError(
        f"its message indexes {'.'.join(map(str, place))} can mean {names}, and its fields "
        f"match {'more than one' if matching else 'none'} of them: Confluent's serializer for "
        "Python counts the entries of maps, others do not. Declare the message at the top "
        "level of its file"
    )


def _has_all_fields(message: Any, data: bytes) -> bool:
    try:
        value = GetMessageClass(message).FromString(data)
    except (DecodeError, ValueError):
        return False
    size = value.ByteSize()
    value.DiscardUnknownFields()
    return bool(value.ByteSize() == size and value.IsInitialized())


def _written_place(place: Sequence[int]) -> bytes:
    """Encode message indexes: their count, and each of them, as zigzag varints."""
    if tuple(place) == (0,):
        return _FIRST
    return b"".join(_varint(number << 1) for number in (len(place), *place))


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _read_place(data: bytes) -> tuple[tuple[int, ...], int]:
    """Decode message indexes; return them, and the offset of the message.

    Raises ValueError if they are incomplete or too deep.
    """
    if data[:1] == _FIRST:
        return (0,), 1
    count, at = _read_number(data, 0)
    if not 1 <= count <= _DEEPEST:
        raise ValueError(f"it begins with the indexes of a message nested {count} levels deep")
    place = []
    for _ in range(count):
        number, at = _read_number(data, at)
        place.append(number)
    return tuple(place), at


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 35:
        if at >= len(data):
            raise ValueError("it is cut off before its message")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError("it does not begin with the indexes of a message")
