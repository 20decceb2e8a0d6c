"""Two messages of Protobuf beside each other, in lines for people: in what they differ, and why one cannot be read as
the other.

Pure. Protobuf finds fields by their numbers. What does not fit it passes over, or reads as something else, without a
word. Rule: values of one message are read as another only if each field that both have means the same in both, whatever
its value is; what would come back as another value is told here, before it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

Message: TypeAlias = Any
"""A ``Descriptor`` of a message."""
Field: TypeAlias = Any
"""A ``FieldDescriptor``."""

_NAMES: Final = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name
    for name in (
        "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32",
        "sfixed32", "sfixed64", "sint32", "sint64", "enum", "message", "group",
    )
}  # fmt: skip
_READ_AS: Final = {
    "int32": {"int64"},
    "uint32": {"uint64", "int64"},
    "sint32": {"sint64"},
    "bool": {"int32", "int64", "uint32", "uint64"},
    "enum": {"int32", "int64"},
    "string": {"bytes"},
}
"""What else a type may be read as, without any value becoming another one. (Protobuf takes narrower numbers, too, and
cuts off what is too large.)"""


def differences(there: Message, here: Message) -> list[str]:
    """Fields by number; none if values are written alike."""
    return list(_differences(there, here, "", set()))


def obstacles(writer: Message, reader: Message) -> list[str]:
    """None if every value of ``writer`` can be read as ``reader``."""
    if writer.name != reader.name:
        return [f"it is a {writer.full_name}, not a {reader.full_name}"]
    return list(_obstacles(writer, reader, "", set()))


def _both(
    writer: Message, reader: Message, at: str, met: set[tuple[str, str]]
) -> Iterator[tuple[str, Field | None, Field | None]]:
    """Each field of either, with its path; nothing of a pair that was met before: a message may hold itself."""
    if (both := (writer.full_name, reader.full_name)) in met:
        return
    met.add(both)
    for number in {**writer.fields_by_number, **reader.fields_by_number}:
        theirs, ours = writer.fields_by_number.get(number), reader.fields_by_number.get(number)
        name = (theirs if ours is None else ours).name
        yield f"{at}.{name}" if at else name, theirs, ours


def _differences(there: Message, here: Message, at: str, met: set[tuple[str, str]]) -> Iterator[str]:
    if there.full_name != here.full_name:
        yield f"{at or 'the message'} is called {there.full_name} there, {here.full_name} here"
    for path, theirs, ours in _both(there, here, at, met):
        if ours is None:
            yield f"{path} ({_number(theirs)}) is only there"
        elif theirs is None:
            yield f"{path} ({_number(ours)}) is only here"
        else:
            if theirs.name != ours.name:
                yield f"{path} is called {theirs.name} there"
            if (said := _type(theirs)) != (meant := _type(ours)):
                yield f"{path} is {said} there, {meant} here"
            elif _oneof(theirs) != _oneof(ours):
                yield f"{path} is in {_oneof(theirs) or 'no oneof'} there, in {_oneof(ours) or 'no oneof'} here"
            if theirs.message_type is not None and ours.message_type is not None:
                yield from _differences(theirs.message_type, ours.message_type, path, met)
            elif theirs.enum_type is not None and ours.enum_type is not None:
                yield from _symbols(theirs.enum_type, ours.enum_type, path)


def _symbols(there: Any, here: Any, at: str) -> Iterator[str]:
    theirs = {value.name: value.number for value in there.values}
    ours = {value.name: value.number for value in here.values}
    if theirs != ours:
        only = [f"{name} = {number}" for name, number in theirs.items() if ours.get(name) != number]
        more = [f"{name} = {number}" for name, number in ours.items() if theirs.get(name) != number]
        yield f"{at} has {', '.join(only) or 'no more'} there, {', '.join(more) or 'no more'} here"


def _obstacles(writer: Message, reader: Message, at: str, met: set[tuple[str, str]]) -> Iterator[str]:
    if (writer.full_name, reader.full_name) not in met:
        yield from _oneofs(writer, reader, at)
    for path, theirs, ours in _both(writer, reader, at, met):
        if ours is None:
            continue
        if theirs is None:
            if ours.is_required:
                yield f"{path} ({_number(ours)}) is only here, and required"
        elif (why := _unlike(theirs, ours)) is not None:
            yield f"{path} {why}"
        elif ours.message_type is not None:
            yield from _obstacles(theirs.message_type, ours.message_type, path, met)


def _unlike(theirs: Field, ours: Field) -> str | None:
    """Why one field cannot be read as the other, but for what their messages have in them."""
    said, meant = _NAMES[theirs.type], _NAMES[ours.type]
    fits = said == meant or meant in _READ_AS.get(said, ()) or (_open_enum(ours) and said == "int32")
    if not fits or _is_map(theirs) != _is_map(ours):
        return f"is {_type(theirs)} there, {_type(ours)} here"
    if theirs.is_repeated and not ours.is_repeated:
        return f"is {_type(theirs)} there, {_type(ours)} here: the last one alone would be read"
    if ours.is_repeated and not theirs.is_repeated and not theirs.has_presence:
        return f"is {_type(theirs)} there, {_type(ours)} here: {theirs.name} with its default would be no value"
    if ours.is_required and not theirs.is_required:
        return "is required here, and not there"
    if said == meant and said != "message" and not ours.is_repeated and theirs.default_value != ours.default_value:
        return f"is {theirs.default_value!r} there if it is not set, {ours.default_value!r} here"
    if said == meant == "enum" and ours.enum_type.is_closed:
        known = ours.enum_type.values_by_number
        if more := [value.name for value in theirs.enum_type.values if value.number not in known]:
            return f"can be {', '.join(more)} there, which is not known here"
    return None


def _oneofs(writer: Message, reader: Message, at: str) -> Iterator[str]:
    """Fields that exclude each other here must do so there: of two that are set, the last one alone would be read."""
    for oneof in reader.oneofs:
        theirs = [writer.fields_by_number[f.number] for f in oneof.fields if f.number in writer.fields_by_number]
        if len(theirs) > 1 and len({_oneof(field) or field.name for field in theirs}) > 1:
            names = ", ".join(field.name for field in theirs)
            yield f"{f'{at}.' if at else ''}{oneof.name} has one of {names} here, which can be set together there"


def _open_enum(field: Field) -> bool:
    return field.enum_type is not None and not field.enum_type.is_closed


def _is_map(field: Field) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _oneof(field: Field) -> str:
    """The name of the one that it is in, if it is more than a field with ``optional``."""
    oneof = field.containing_oneof
    return "" if oneof is None or (len(oneof.fields) == 1 and oneof.name == f"_{field.name}") else str(oneof.name)


def _number(field: Field) -> str:
    return f"{_type(field)}, {field.number}"


def _type(field: Field) -> str:
    if _is_map(field):
        key, value = (field.message_type.fields_by_number[number] for number in (1, 2))
        return f"map of {_type(key)} to {_type(value)}"
    named = field.message_type or field.enum_type
    name = _NAMES[field.type] if named is None else f"{_NAMES[field.type]} {named.full_name}"
    if field.is_repeated:
        return f"repeated {name}"
    if field.is_required:
        return f"required {name}"
    return f"optional {name}" if field.has_presence and named is None and not _oneof(field) else name
