"""Files of Protobuf as text: read as protoc reads them, and written so that the same file is read again."""

from __future__ import annotations

import base64
import math

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kafka_eos.codecs.protobuf.descriptor_pools import pooled, proto
from kafka_eos.codecs.protobuf.proto_parser import parse_proto
from kafka_eos.codecs.protobuf.proto_printer import print_proto
from kafka_eos.codecs.protobuf.reader_compatibility import differences, obstacles
from tests.golden.protobuf_files import PROTO2, PROTO2_BY_PROTOC, PROTO3, PROTO3_BY_PROTOC
from tests.protobuf_witness import classes


def described(data: str) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(base64.b64decode(data))


def resolved(file: FileDescriptorProto) -> FileDescriptorProto:
    """With the names of types as a pool finds them, and without what says nothing about values."""
    made = proto(pooled(file, {}))
    made.name = "shop.proto"
    made.ClearField("options")
    waiting = list(made.message_type)
    enums = list(made.enum_type)
    while waiting:
        message = waiting.pop()
        for name in ("reserved_range", "reserved_name"):
            message.ClearField(name)
        nested = sorted(message.nested_type, key=lambda each: each.name)
        del message.nested_type[:]
        message.nested_type.extend(nested)  # protoc has entries of maps behind what the file has
        waiting.extend(message.nested_type)
        enums.extend(message.enum_type)
        for field in message.field:
            for name in ("options", "json_name"):
                field.ClearField(name)
    for enum in enums:
        for name in ("reserved_range", "reserved_name"):
            enum.ClearField(name)
        for value in enum.value:
            value.ClearField("options")
    return made


@pytest.mark.parametrize(("text", "by_protoc"), [(PROTO3, PROTO3_BY_PROTOC), (PROTO2, PROTO2_BY_PROTOC)])
def test_a_text_is_read_as_protoc_reads_it(text: str, by_protoc: str) -> None:
    assert resolved(parse_proto(text, "shop.proto")) == resolved(described(by_protoc))


ODD = r"""
message Odd {
  message A {}
  optional Odd .
    A wrapped = 1;
  optional float nan = 2 [default = nan];
  optional float small = 3 [default = -.5e-3];
  optional int32 octal = 4 [default = -010];
  optional string text = 5 [default = "\303\251\?\x4g\u00e9" '\n"'];
  optional int32 hexadecimal = 7 [default = 0x1F];
  optional bytes data = 6 [default = "\x41B\303\"é"];
}
"""


def test_defaults_are_those_that_protoc_finds() -> None:
    odd, again = classes(ODD)["Odd"], classes(print_proto(parse_proto(ODD, "a.proto")))["Odd"]

    for tp in (odd, again):
        found = tp()
        assert math.isnan(found.nan)
        assert (round(found.small, 6), found.octal, found.hexadecimal) == (-0.0005, -8, 31)
        assert (found.text, found.data) == ('é?\x04gé\n"', b'AB\xc3"\xc3\xa9')
    assert differences(odd.DESCRIPTOR, again.DESCRIPTOR) == obstacles(odd.DESCRIPTOR, again.DESCRIPTOR) == []


@pytest.mark.parametrize("by_protoc", [PROTO3_BY_PROTOC, PROTO2_BY_PROTOC])
def test_a_file_that_is_written_is_the_same_when_it_is_read(by_protoc: str) -> None:
    file = described(by_protoc)

    assert resolved(parse_proto(print_proto(file), "shop.proto")) == resolved(file)


def test_what_a_file_means_for_others_is_in_its_text() -> None:
    text = print_proto(described(PROTO3_BY_PROTOC))

    for line in ('option java_package = "com.x";', "option java_multiple_files = true;", "reserved 20 to 30;",
                 'reserved "foo", "bar";', '[json_name = "when"]', "[packed = false]",
                 "C = 1 [deprecated = true];", "reserved 9 to 2147483647;"):  # fmt: skip
        assert line in text


def test_names_are_as_short_as_they_can_be() -> None:
    """A message or a package of the same name, further inside, would be found first."""
    text = print_proto(described(PROTO3_BY_PROTOC))

    assert "repeated Order.Line lines = 7;" in text
    assert "optional .google.protobuf.Timestamp at_time = 2" in text


def test_what_says_nothing_about_values_is_skipped_wherever_it_stands() -> None:
    plain = parse_proto("message A { oneof x { int32 a = 1; } int32 b = 2; } enum E { V = 0; W = 1; }", "a.proto")
    full = """
        ; option (a.b) = { c: [1, 2] d { e: 1 } }; extend A { int32 z = 9; } service S { rpc Do (A) returns (A) {} }
        message A { ; option deprecated = true; reserved 5, 7 to 9; extensions 100 to 199;
          oneof x { ; option (y) = "z;"; int32 a = 1 [(c) = {d: "}"}, deprecated = true]; ; }
          int32 b = 2 [json_name = "x", (e) = [1, 2]]; extend A { int32 z = 9; } ; }
        ; enum E { ; option (x) = 1; V = 0 [(a) = {b: 1}]; reserved 3; reserved "X"; ; W = 1; } ;
    """

    assert parse_proto(full, "a.proto") == plain


def test_a_name_is_whole_where_a_package_of_an_import_would_be_found_first() -> None:
    """Seen from shop.v1, com.Order would be a name of shop.com."""
    file = FileDescriptorProto(name="c.proto", package="shop.v1", syntax="proto3", dependency=["a.proto", "b.proto"])
    file.message_type.add(name="Cart").field.add(name="order", number=1, label=1, type_name=".com.Order")
    com, shop = (FileDescriptorProto(name=f"{at}.proto", package=package) for at, package in
                 (("a", "com"), ("b", "shop.com")))  # fmt: skip

    assert " com.Order order = 1;" in print_proto(file, [com])
    for imported in ([com, shop], [shop, com]):
        assert " .com.Order order = 1;" in print_proto(file, imported)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("message", "line 1: it ends too early"),
        ('syntax = "proto3";\nmessage A { int32 a = 1 }', "line 2: expected ;, found }"),
        ('syntax = "proto3" message A {}', "line 1: expected ;, found message"),
        ("package a message A {}", "line 1: expected ;, found message"),
        ('import "b.proto" message A {}', "line 1: expected ;, found message"),
        ('syntax = "proto9";', "syntax 'proto9' is not known"),
        ("message A {\n repeated group G = 1 {} }", "line 2: groups are not read"),
        ("message A { int32 a = 99999999999; }", "line 1: Value out of range"),
        ("enum E { A = 0;\n B = 99999999999; }", "line 2: Value out of range"),
        ("message A { int32 a = x; }", "x is not a number"),
        ("enum E { A = 0 B = 1; }", "expected ;, found B"),
        ("enum E { option allow_alias = true A = 0; }", "expected ;, found A"),
        ("int32 a = 1;", "expected a message or an enum, found int32"),
        ("message 5 {}", "5 is not a name"),
        ("package $", "is not understood"),
        (r'message A { optional string a = 1 [default = "\ud800"]; }', "an escape that is not a character"),
        (r'message A { optional string a = 1 [default = "\303"]; }', "a string is not UTF-8"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_proto(text, "a.proto")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda file: setattr(file, "syntax", "editions"), "uses an edition"),
        (lambda file: file.extension.add(name="x"), "defines extensions"),
        (lambda file: file.message_type[0].extension_range.add(start=1, end=2), "com.shop.v1.Order has extensions"),
        (lambda file: setattr(file.message_type[0].field[0], "type", 10), "com.shop.v1.Order.id is a group"),
    ],
)
def test_what_cannot_be_written_is_refused(change: object, said: str) -> None:
    file = described(PROTO3_BY_PROTOC)
    change(file)  # type: ignore[operator]

    with pytest.raises(ValueError, match=said):
        print_proto(file)


@pytest.mark.parametrize("opened", ["message A {", "option a = {"], ids=["messages", "an option"])
def test_what_is_nested_without_end_is_refused(opened: str) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_proto(opened + "message A {" * 50_000, "a.proto")
