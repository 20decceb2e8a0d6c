"""Comparison of two Protobuf messages: their differences, and why one cannot be read as the other.

Pure. Protobuf identifies fields by number. It silently skips a field that does not fit, or decodes it as another value.
Rule: values of one message are read as another only if each common field has the same meaning in both, for every value.
Any other field is reported here, before data is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

from kafka_eos.codecs.comparison_lines import collect_lines

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
"""For each type, the types as which it can be read without a change of value.

Protobuf also accepts narrower numbers, and truncates values that are too large.
"""


def differences(there: Message, here: Message) -> list[str]:
    """Return the differences of fields by number; none if values are encoded alike."""
    return collect_lines(_differences(there, here, "", set()))


def obstacles(writer: Message, reader: Message) -> list[str]:
    """Return the incompatibilities; none if every value of ``writer`` can be read as ``reader``."""
    if writer.name != reader.name:
        return [f"it is a {writer.full_name}, not a {reader.full_name}"]
    return collect_lines(_obstacles(writer, reader, "", set()))


def _both(
    writer: Message, reader: Message, at: str, met: set[tuple[str, str]]
) -> Iterator[tuple[str, Field | None, Field | None]]:
    """Yield each field of either message, with its path.

    A pair of messages is visited once, because types may be recursive.
    """
    if (both := (writer.full_name, reader.full_name)) in met:
        return
    met.add(both)
    for number in {**writer.fields_by_number, **reader.fields_by_number}:
        written, declared = writer.fields_by_number.get(number), reader.fields_by_number.get(number)
        name = (written if declared is None else declared).name
        yield f"{at}.{name}" if at else name, written, declared


def _differences(there: Message, here: Message, at: str, met: set[tuple[str, str]]) -> Iterator[str]:
    if there.full_name != here.full_name:
        yield f"{at or 'the message'} is called {there.full_name} there, {here.full_name} here"
    for path, written, declared in _both(there, here, at, met):
        if declared is None:
            yield f"{path} ({_number(written)}) is only there"
        elif written is None:
            yield f"{path} ({_number(declared)}) is only here"
        else:
            if written.name != declared.name:
                yield f"{path} is called {written.name} there"
            if (written_type := _type(written)) != (declared_type := _type(declared)):
                yield f"{path} is {written_type} there, {declared_type} here"
            elif _oneof(written) != _oneof(declared):
                yield f"{path} is in {_oneof(written) or 'no oneof'} there, in {_oneof(declared) or 'no oneof'} here"
            if written.message_type is not None and declared.message_type is not None:
                yield from _differences(written.message_type, declared.message_type, path, met)
            elif written.enum_type is not None and declared.enum_type is not None:
                yield from _symbols(written.enum_type, declared.enum_type, path)


def _symbols(there: Any, here: Any, at: str) -> Iterator[str]:
    written = {value.name: value.number for value in there.values}
    declared = {value.name: value.number for value in here.values}
    if written != declared:
        only = [f"{name} = {number}" for name, number in written.items() if declared.get(name) != number]
        more = [f"{name} = {number}" for name, number in declared.items() if written.get(name) != number]
        yield f"{at} has {', '.join(only) or 'no more'} there, {', '.join(more) or 'no more'} here"


def _obstacles(writer: Message, reader: Message, at: str, met: set[tuple[str, str]]) -> Iterator[str]:
    if (writer.full_name, reader.full_name) not in met:
        yield from _oneofs(writer, reader, at)
    for path, written, declared in _both(writer, reader, at, met):
        if declared is None:
            continue
        if written is None:
            if declared.is_required:
                yield f"{path} ({_number(declared)}) is only here, and required"
        elif (why := _unlike(written, declared)) is not None:
            yield f"{path} {why}"
        elif declared.message_type is not None:
            yield from _obstacles(written.message_type, declared.message_type, path, met)


def _unlike(written: Field, declared: Field) -> str | None:
    """Return why one field cannot be read as the other, without comparing fields of their messages; None if it can."""
    written_type, declared_type = _NAMES[written.type], _NAMES[declared.type]
    fits = (
        written_type == declared_type
        or declared_type in _READ_AS.get(written_type, ())
        or (_open_enum(declared) and written_type == "int32")
    )
    if not fits or _is_map(written) != _is_map(declared):
        return f"is {_type(written)} there, {_type(declared)} here"
    if written.is_repeated and not declared.is_repeated:
        return f"is {_type(written)} there, {_type(declared)} here: the last one alone would be read"
    if declared.is_repeated and not written.is_repeated and not written.has_presence:
        return f"is {_type(written)} there, {_type(declared)} here: {written.name} with its default would be no value"
    if declared.is_required and not written.is_required:
        return "is required here, and not there"
    if (
        written_type == declared_type
        and written_type != "message"
        and not declared.is_repeated
        and repr(written.default_value) != repr(declared.default_value)  # nan is not equal to itself
    ):
        return f"is {written.default_value!r} there if it is not set, {declared.default_value!r} here"
    if written_type == declared_type == "enum" and declared.enum_type.is_closed:
        known = declared.enum_type.values_by_number
        if more := [value.name for value in written.enum_type.values if value.number not in known]:
            return f"can be {', '.join(more)} there, which is not known here"
    return None


def _oneofs(writer: Message, reader: Message, at: str) -> Iterator[str]:
    """Yield oneofs of the reader whose fields the writer may set together: only the last of them would be read."""
    for oneof in reader.oneofs:
        written = [writer.fields_by_number[f.number] for f in oneof.fields if f.number in writer.fields_by_number]
        if len(written) > 1 and len({_oneof(field) or field.name for field in written}) > 1:
            names = ", ".join(field.name for field in written)
            yield f"{f'{at}.' if at else ''}{oneof.name} has one of {names} here, which can be set together there"


def _open_enum(field: Field) -> bool:
    return field.enum_type is not None and not field.enum_type.is_closed


def _is_map(field: Field) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _oneof(field: Field) -> str:
    """Return the name of a field's oneof; empty for the implicit one of an ``optional`` field."""
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
