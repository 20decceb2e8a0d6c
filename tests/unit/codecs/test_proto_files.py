"""Any file of Protobuf that is written as text is the same file when it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from google.protobuf import text_encoding
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.codecs.protobuf.descriptor_pools import pooled, proto
from kafka_eos.codecs.protobuf.proto_parser import parse_proto
from kafka_eos.codecs.protobuf.proto_printer import print_proto
from tests.examples import examples

F = FieldDescriptorProto
DEFAULTS: dict[int, st.SearchStrategy[str]] = {
    F.TYPE_STRING: st.text(max_size=3),
    F.TYPE_BYTES: st.binary(max_size=3).map(lambda data: text_encoding.CEscape(data, as_utf8=False)),
    F.TYPE_INT32: st.integers(-(2**31), 2**31 - 1).map(str),
    F.TYPE_DOUBLE: st.sampled_from(["inf", "-inf", "0.5", "-1e+30"]),
    F.TYPE_BOOL: st.sampled_from(["true", "false"]),
}
"""By the type of a field."""
KEYS = (F.TYPE_STRING, F.TYPE_INT32, F.TYPE_BOOL)
OWN = {"timestamp": "Timestamp", "duration": "Duration", "empty": "Empty"}


@dataclass
class Author:
    """Draws a file. Names are numbered, so that none is there twice."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    numbers: count[int] = field(default_factory=count)
    types: list[tuple[int, str]] = field(default_factory=list)
    """Messages and enums that fields may refer to."""

    def name(self, kind: str) -> str:
        return f"{kind}{next(self.numbers)}"

    def some(self, most: int) -> range:
        return range(self.draw(st.integers(0, most)))

    def file(self) -> FileDescriptorProto:
        package, syntax = (self.draw(st.sampled_from(each)) for each in (["", "a", "a.b"], ["proto2", "proto3"]))
        file = FileDescriptorProto(name="shop.proto", package=package, syntax=syntax)
        for name in self.draw(st.lists(st.sampled_from([*OWN]), unique=True)):
            file.dependency.append(f"google/protobuf/{name}.proto")
            self.types.append((F.TYPE_MESSAGE, f".google.protobuf.{OWN[name]}"))
        scope = f".{package}" if package else ""
        for _ in self.some(2):
            self.enum(file.enum_type.add(), scope)
        for _ in self.some(2):
            self.message(file.message_type.add(), scope, syntax == "proto3", 2)
        return file

    def enum(self, enum: EnumDescriptorProto, scope: str) -> None:
        enum.name = self.name("E")
        enum.options.allow_alias = True
        for number in (0, *self.draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)), 0):
            enum.value.add(name=self.name("V"), number=number)
        self.types.append((F.TYPE_ENUM, f"{scope}.{enum.name}"))

    def message(self, message: DescriptorProto, scope: str, new: bool, depth: int) -> None:
        message.name = self.name("M")
        inside = f"{scope}.{message.name}"
        self.types.append((F.TYPE_MESSAGE, inside))
        for _ in self.some(2 if depth else 0):
            self.message(message.nested_type.add(), inside, new, depth - 1)
        for _ in self.some(2):
            self.enum(message.enum_type.add(), inside)
        alone = list[FieldDescriptorProto]()
        for _ in self.some(5):
            kind = self.draw(st.sampled_from(["one", "optional", "repeated", "map", "oneof"]))
            if kind == "oneof":
                message.oneof_decl.add(name=self.name("o"))
                for _ in range(2):
                    self.typed(message.field.add(label=F.LABEL_OPTIONAL, oneof_index=len(message.oneof_decl) - 1))
            elif kind == "map":
                self.map(message, inside)
            else:
                made = message.field.add(label=F.LABEL_REPEATED if kind == "repeated" else F.LABEL_OPTIONAL)
                self.typed(made)
                if kind == "optional" and new:
                    made.proto3_optional = True
                    alone.append(made)
                elif kind == "optional" and self.draw(st.booleans()):
                    made.label = F.LABEL_REQUIRED
                elif kind == "one" and not new and made.type in DEFAULTS:
                    made.default_value = self.draw(DEFAULTS[made.type])
        for number, each in enumerate(message.field, 1):
            each.number = number
        for each in alone:
            each.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{each.name}")

    def typed(self, made: FieldDescriptorProto) -> None:
        made.name = made.name or self.name("f")
        made.type, name = self.draw(st.sampled_from([*((each, "") for each in DEFAULTS), *self.types]))
        if name:
            made.type_name = name

    def map(self, message: DescriptorProto, inside: str) -> None:
        made = message.field.add(name=self.name("f_x"), label=F.LABEL_REPEATED, type=F.TYPE_MESSAGE)
        entry = message.nested_type.add(name=f"FX{made.name[3:]}Entry")
        made.type_name = f"{inside}.{entry.name}"
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=self.draw(st.sampled_from(KEYS)))
        self.typed(entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL))


@st.composite
def files(draw: Any) -> FileDescriptorProto:
    return Author(draw).file()


def resolved(file: FileDescriptorProto) -> FileDescriptorProto:
    """With names of types as a pool finds them. Entries of maps are where they are among messages, in any order."""
    made = proto(pooled(file, {}))
    waiting = list(made.message_type)
    while waiting:
        message = waiting.pop()
        nested = sorted(message.nested_type, key=lambda each: each.name)
        del message.nested_type[:]
        message.nested_type.extend(nested)
        waiting.extend(message.nested_type)
    return made


@given(files())
@examples(20)
def test_a_file_that_is_written_is_the_same_when_it_is_read(file: FileDescriptorProto) -> None:
    text = print_proto(file)

    assert resolved(parse_proto(text, "shop.proto")) == resolved(file), text
