"""Printer of .proto text, from the descriptor of generated code: registries store the text.

Rule: parsed again, the text yields an equivalent file with respect to values. Comments, services and custom options are
omitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

_SCALARS: Final = {
    value.number: value.name.removeprefix("TYPE_").lower()
    for value in FieldDescriptorProto.DESCRIPTOR.enum_types_by_name["Type"].values
}
_LABELS: Final = {
    FieldDescriptorProto.LABEL_REQUIRED: "required ",
    FieldDescriptorProto.LABEL_REPEATED: "repeated ",
    FieldDescriptorProto.LABEL_OPTIONAL: "optional ",
}


def print_proto(file: FileDescriptorProto, imported: Iterable[FileDescriptorProto] = ()) -> str:
    """Print a file as .proto text. ``imported``: files whose names it may use."""
    return "\n".join(_ProtoPrinter(file, imported).lines()) + "\n"


class _ProtoPrinter:
    def __init__(self, file: FileDescriptorProto, imported: Iterable[FileDescriptorProto]) -> None:
        self._file = file
        self._known = {
            name
            for each in (file, *imported)
            for name in (*_packages(each.package), *_types(each.package, each.message_type, each.enum_type))
        }
        if file.syntax not in ("", "proto2", "proto3"):
            raise ValueError(f'{file.name} uses an edition, which is not supported: use syntax = "proto3" or "proto2"')
        if file.extension:
            raise ValueError(f"{file.name} defines extensions, which are not supported")

    def lines(self) -> Iterator[str]:
        file = self._file
        yield f'syntax = "{file.syntax or "proto2"}";'
        if file.package:
            yield f"package {file.package};"
        if file.dependency:
            yield ""
        for number, name in enumerate(file.dependency):
            yield f"import {'public ' if number in file.public_dependency else ''}{json.dumps(name)};"
        if options := list(_options(file)):
            yield ""
            yield from (f"option {option};" for option in options)
        for message in file.message_type:
            yield ""
            yield from self._message(message, file.package)
        for enum in file.enum_type:
            yield ""
            yield from _enum(enum)

    def _message(self, message: DescriptorProto, outer: str) -> Iterator[str]:
        full = f"{outer}.{message.name}".lstrip(".")
        if message.extension or message.extension_range:
            raise ValueError(f"{full} has extensions, which are not supported")
        entries = {each.name: each for each in message.nested_type if each.options.map_entry}
        yield f"message {message.name} {{"
        yield from (f"  option {option};" for option in _options(message))
        yield from _indented(_reserved(message, end=1))
        for nested in message.nested_type:
            if not nested.options.map_entry:
                yield from _indented(self._message(nested, full))
        for enum in message.enum_type:
            yield from _indented(_enum(enum))
        opened: set[int] = set()
        for field in message.field:
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield f"  {self._label(field, entries)}{self._field(field, full, entries)}"
            elif field.oneof_index not in opened:
                opened.add(field.oneof_index)
                yield f"  oneof {message.oneof_decl[field.oneof_index].name} {{"
                together = (
                    f for f in message.field if f.HasField("oneof_index") and f.oneof_index == field.oneof_index
                )
                yield from (f"    {self._field(each, full, entries)}" for each in together)
                yield "  }"
        yield "}"

    def _label(self, field: FieldDescriptorProto, entries: Any) -> str:
        if self._entry(field, entries) is not None:
            return ""
        if field.label == FieldDescriptorProto.LABEL_OPTIONAL and self._file.syntax == "proto3":
            return "optional " if field.proto3_optional else ""
        return _LABELS[field.label]

    def _entry(self, field: FieldDescriptorProto, entries: Any) -> DescriptorProto | None:
        found: DescriptorProto | None = entries.get(field.type_name.rpartition(".")[2])
        return found if field.label == FieldDescriptorProto.LABEL_REPEATED else None

    def _field(self, field: FieldDescriptorProto, scope: str, entries: Any) -> str:
        entry = self._entry(field, entries)
        tp = self._type(field, scope)
        if entry is not None:
            inner = f"{scope}.{entry.name}"
            tp = f"map<{', '.join(self._type(part, inner) for part in entry.field)}>"
        options = list(_options(field))
        if field.HasField("default_value"):
            options.append(f"default = {_default(field)}")
        if field.json_name and field.json_name != _json_name(field.name):
            options.append(f"json_name = {json.dumps(field.json_name)}")
        more = f" [{', '.join(options)}]" if options else ""
        return f"{tp} {field.name} = {field.number}{more};"

    def _type(self, field: FieldDescriptorProto, scope: str) -> str:
        if field.type == FieldDescriptorProto.TYPE_GROUP:
            raise ValueError(f"{scope}.{field.name} is a group, which is not supported")
        return _SCALARS[field.type] if not field.type_name else self._reference(field.type_name, scope)

    def _reference(self, name: str, scope: str) -> str:
        """Return the shortest name for use in ``scope``: names are resolved from the inside out."""
        full, package = name.lstrip("."), self._file.package
        short = full.removeprefix(f"{package}.") if package else full
        first = short.partition(".")[0]
        wanted = f"{package}.{first}".lstrip(".") if short != full else first
        for outer in _packages(scope)[::-1]:
            if (found := f"{outer}.{first}") in self._known and found != wanted:
                return f".{full}"
            if found == wanted:
                break
        return short


def _packages(package: str) -> list[str]:
    """Return the parents of a package and itself: ``a`` and ``a.b`` for ``a.b``."""
    parts = package.split(".") if package else []
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def _types(outer: str, messages: Any, enums: Any) -> Iterator[str]:
    for each in (*messages, *enums):
        full = f"{outer}.{each.name}".lstrip(".")
        yield full
        if isinstance(each, DescriptorProto):
            yield from _types(full, each.nested_type, each.enum_type)


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    yield from (f"  option {option};" for option in _options(enum))
    yield from _indented(_reserved(enum, end=0))
    for value in enum.value:
        options = ", ".join(_options(value))
        yield f"  {value.name} = {value.number}{f' [{options}]' if options else ''};"
    yield "}"


def _reserved(of: DescriptorProto | EnumDescriptorProto, end: int) -> Iterator[str]:
    """Yield reserved ranges. ``end``: by how much the end of a range exceeds its last number."""
    for reserved in of.reserved_range:
        first, last = reserved.start, reserved.end - end
        yield f"reserved {first};" if first == last else f"reserved {first} to {last};"
    if of.reserved_name:
        yield f"reserved {', '.join(map(json.dumps, of.reserved_name))};"


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _options(of: Any) -> Iterator[str]:
    """Yield Protobuf's own options with a word, number or text as value."""
    for field, value in of.options.ListFields():
        if field.is_extension or field.is_repeated or field.message_type is not None:
            continue
        if field.enum_type is not None:
            yield f"{field.name} = {field.enum_type.values_by_number[value].name}"
        else:
            yield f"{field.name} = {json.dumps(value, ensure_ascii=False)}"


def _default(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_STRING:
        return json.dumps(field.default_value, ensure_ascii=False)
    if field.type == FieldDescriptorProto.TYPE_BYTES:
        return f'"{field.default_value}"'  # escaped already
    return str(field.default_value)


def _json_name(name: str) -> str:
    """Return protoc's default JSON name."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
