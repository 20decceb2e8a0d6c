"""Protobuf, alone or with a schema registry: what stands behind ``protobuf(Order, registry=registry)``.

Each record begins with the place of its message in the writer's file. Rule: names of messages count, without their
packages, and so do numbers of fields: nothing in the bytes tells a refund from an order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from kafka_eos.codecs.protobuf.descriptor_pools import imported, opened, together
from kafka_eos.codecs.protobuf.message_codec import ProtobufCodec, Writing, batch_reading
from kafka_eos.codecs.protobuf.proto_printer import as_text
from kafka_eos.codecs.protobuf.reader_compatibility import differences, obstacles
from kafka_eos.codecs.registry.registry_client import RegisteredSchema, Registry
from kafka_eos.codecs.registry.schema_references import below
from kafka_eos.codecs.registry.schema_registration import Draft, Need
from kafka_eos.codecs.type_inspection import type_name
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_FIRST = b"\0"
"""The place of a file's first message, as most are: a short form of it."""
_DEEPEST = 64
"""Messages within messages, in the place of one."""


class ProtobufLanguage(Generic[T]):
    """See ``wire_format.Language``."""

    kind, label = "PROTOBUF", "Protobuf"

    def __init__(self, tp: type[T], references: Mapping[str, str]) -> None:
        codec: ProtobufCodec[T] = ProtobufCodec(tp)
        self.type, self._decode = tp, codec.decode
        self._message = message = tp.DESCRIPTOR  # type: ignore[attr-defined]
        self.schema: Json = codec.schema
        self.record = str(message.full_name)
        self.place = _written_place(_place(message))
        try:
            self.written = _draft(message.file, references)
        except ValueError as error:
            raise PlanError(f"{type_name(tp)}: {error}") from None
        if more := references.keys() - {each.name for each in together(message.file).file[:-1]}:
            raise PlanError(f"references={{{sorted(more)[0]!r}: …}}: {message.file.name} imports no such file")

    def encoder(self, before: bytes) -> Callable[[T], bytes]:
        return Writing(self.type, before)

    def decoder(self, writer: RegisteredSchema, registry: Registry) -> Callable[[bytes], T]:
        return _Decoder(_file(writer, registry), self.type, self._decode)

    def differences(self, other: RegisteredSchema, registry: Registry) -> list[str]:
        found = self._counterpart(_file(other, registry))
        return [f"{self._message.full_name} is only here"] if found is None else differences(found, self._message)

    def obstacles(self, writer: RegisteredSchema, registry: Registry) -> list[str]:
        found = self._counterpart(_file(writer, registry))
        return [f"it has no message {self._message.name}"] if found is None else obstacles(found, self._message)

    def alike(self, other: RegisteredSchema, registry: Registry) -> bool:
        """Registries keep a text with its comments, and not all find it again by what it means."""
        found = self._counterpart(_file(other, registry))
        return found is not None and not differences(found, self._message) and _place(found) == _place(self._message)

    def _counterpart(self, file: Any) -> Any:
        """The message of the same name in another file, whatever its package; None if there is none."""
        path = _names(self._message)
        found = file.message_types_by_name.get(path[0])
        for name in path[1:]:
            found = None if found is None else found.nested_types_by_name.get(name)
        return found


class _Decoder(Generic[T]):
    """Of messages of one file. The library takes a fraction of a microsecond for one, as long as a call of Python does.

    See ``wire_format.BatchDecoder``.
    """

    def __init__(self, file: Any, tp: type[T], read: Callable[[bytes], T]) -> None:
        self._file, self._type, self._read = file, tp, read
        self._batch = batch_reading(tp)
        self._known: set[bytes] = set()
        """Places of messages that can be read."""

    def __call__(self, data: bytes) -> T:
        if data[:1] in self._known:  # the place of a first message is this byte alone
            return self._read(data[1:])
        place, begin = _read_place(data)
        if data[:begin] not in self._known:
            if wrong := obstacles(_message_at(self._file, place), self._type.DESCRIPTOR):  # type: ignore[attr-defined]
                raise ValueError(f"not a {type_name(self._type)}: {'; '.join(wrong)}")
            self._known.add(_written_place(place))
        return self._read(data[begin:])

    def batch(self, before: bytes, data: Sequence[bytes]) -> list[T] | None:
        for place in self._known:
            if data[0].startswith(before + place):
                return self._batch(before + place, data)
        return None


def _draft(file: Any, subjects: Mapping[str, str]) -> Draft:
    """A file, and those that it imports: their subjects are called like them, unless the user says otherwise."""
    needs = tuple(
        Need(each.name, subjects.get(each.name, each.name), _draft(each, subjects)) for each in imported(file)
    )
    *others, own = together(file).file
    return Draft("PROTOBUF", as_text(own, others), needs)


def _file(schema: RegisteredSchema, registry: Registry) -> Any:
    return opened(schema.text, {name: each.text for name, each in below(schema, registry).items()})


def _names(message: Any) -> list[str]:
    """Of the messages that it is in, and its own."""
    return [*(() if message.containing_type is None else _names(message.containing_type)), str(message.name)]


def _place(message: Any) -> tuple[int, ...]:
    """Where a message is in its file: the numbers of the messages that it is in, and its own."""
    outer = message.containing_type
    beside = list(message.file.message_types_by_name.values()) if outer is None else _nested(outer)
    number = next(n for n, each in enumerate(beside) if each.full_name == message.full_name)
    return (*(() if outer is None else _place(outer)), number)


def _nested(message: Any) -> list[Any]:
    """The messages within one that its text has: a map has one in the descriptor alone."""
    return [each for each in message.nested_types if not each.GetOptions().map_entry]


def _message_at(file: Any, place: Sequence[int]) -> Any:
    found, beside = None, list(file.message_types_by_name.values())
    for number in place:
        if not 0 <= number < len(beside):
            raise ValueError(f"its schema has no message in place {'.'.join(map(str, place))}")
        found = beside[number]
        beside = _nested(found)
    return found


def _written_place(place: Sequence[int]) -> bytes:
    """How many numbers, and each of them, as varints of zigzag."""
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
    """The place, and where the message begins. ValueError if it is cut off, or absurd."""
    if data[:1] == _FIRST:
        return (0,), 1
    count, at = _read_number(data, 0)
    if not 1 <= count <= _DEEPEST:
        raise ValueError(f"it begins with the place of a message that is {count} messages deep")
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
    raise ValueError("it does not begin with the place of a message")
