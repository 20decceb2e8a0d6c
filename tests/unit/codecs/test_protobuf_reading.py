"""Which changes of a message can be read, each with values that show it: none becomes another one without a word."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from kafka_eos.codecs.protobuf.reader_compatibility import differences, obstacles
from tests.protobuf_witness import classes, proto3

ENUM = "enum E { A = 0; B = 1; C = 2; }"
FITTING = [
    # the writer's field, the reader's, a value, what is read
    ("int32 a = 1;", "int64 a = 1;", {"a": -5}, {"a": "-5"}),
    ("uint32 a = 1;", "int64 a = 1;", {"a": 4294967295}, {"a": "4294967295"}),
    ("sint32 a = 1;", "sint64 a = 1;", {"a": -5}, {"a": "-5"}),
    ("bool a = 1;", "int32 a = 1;", {"a": True}, {"a": 1}),
    ("E a = 1;", "int32 a = 1;", {"a": 2}, {"a": 2}),
    ("int32 a = 1;", "E a = 1;", {"a": 2}, {"a": "C"}),
    ("string a = 1;", "bytes a = 1;", {"a": "x"}, {"a": "eA=="}),
    ("int32 a = 1;", "int32 b = 1;", {"a": 5}, {"b": 5}),
    ("int32 a = 1; int32 b = 2;", "int32 a = 1;", {"a": 5, "b": 6}, {"a": 5}),
    ("int32 a = 1;", "int32 a = 1; int32 b = 2;", {"a": 5}, {"a": 5}),
    ("int32 a = 1;", "optional int32 a = 1;", {"a": 5}, {"a": 5}),
    ("optional int32 a = 1;", "int32 a = 1;", {"a": 5}, {"a": 5}),
    ("M a = 1;", "repeated M a = 1;", {"a": {"n": 5}}, {"a": [{"n": 5}]}),
    ("repeated int32 a = 1 [packed = false];", "repeated int64 a = 1;", {"a": [5, 6]}, {"a": ["5", "6"]}),
    ("map<string, int32> a = 1;", "map<string, int64> a = 1;", {"a": {"x": 5}}, {"a": {"x": "5"}}),
    ("oneof x { int32 a = 1; int32 b = 2; }", "int32 a = 1; int32 b = 2;", {"b": 5}, {"b": 5}),
    ("oneof x { int32 a = 1; int32 b = 2; }", "oneof y { int32 a = 1; int32 b = 2; }", {"b": 5}, {"b": 5}),
    ("int32 a = 1;", "oneof x { int32 a = 1; int32 b = 2; }", {"a": 5}, {"a": 5}),
]
REFUSED = [
    ("int64 a = 1;", "int32 a = 1;", "a is int64 there, int32 here"),
    ("int32 a = 1;", "uint64 a = 1;", "a is int32 there, uint64 here"),
    ("int32 a = 1;", "sint32 a = 1;", "a is int32 there, sint32 here"),
    ("fixed32 a = 1;", "sfixed32 a = 1;", "a is fixed32 there, sfixed32 here"),
    ("int64 a = 1;", "string a = 1;", "a is int64 there, string here"),
    ("float a = 1;", "double a = 1;", "a is float there, double here"),
    ("int64 a = 1;", "E a = 1;", "a is int64 there, enum com.shop.E here"),
    ("bytes a = 1;", "string a = 1;", "a is bytes there, string here"),
    ("M a = 1;", "bytes a = 1;", "a is message com.shop.M there, bytes here"),
    ("repeated int32 a = 1;", "int32 a = 1;", "a is repeated int32 there, int32 here: the last one alone"),
    ("int32 a = 1;", "repeated int32 a = 1;", "a is int32 there, repeated int32 here: a with its default"),
    (
        "map<string, int32> a = 1;",
        "repeated M a = 1;",
        "a is map of string to int32 there, repeated message com.shop.M",
    ),
    ("map<string, int64> a = 1;", "map<string, int32> a = 1;", "a.value is int64 there, int32 here"),
    ("int32 a = 1; int32 b = 2;", "oneof x { int32 a = 1; int32 b = 2; }", "x has one of a, b here, which can be set"),
    ("O a = 1;", "M a = 1;", "a.n is string there, int32 here"),
]
PROTO2 = [
    ("optional int32 a = 1;", "optional int32 a = 1 [default = 7];", "a is 0 there if it is not set, 7 here"),
    ("optional int32 a = 1;", "required int32 a = 1;", "a is required here, and not there"),
    ("", "required int32 a = 1;", "a (required int32, 1) is only here, and required"),
    ("optional E a = 1;", "optional F a = 1;", "a can be C there, which is not known here"),
    ("required int32 a = 1;", "required int32 a = 1;", ""),
    ("required int32 a = 1;", "optional int32 a = 1;", ""),
    ("optional F a = 1;", "optional E a = 1;", ""),
]
TYPES = "message M { int32 n = 1; } message O { string n = 1; }"


def messages(writer: str, reader: str) -> tuple[Any, Any]:
    made = [proto3(TYPES, ENUM, "message Order {", fields, "}") for fields in (writer, reader)]
    return classes(made[0])["Order"], classes(made[1])["Order"]


@pytest.mark.parametrize(("writer", "reader", "value", "read"), FITTING, ids=lambda v: v if isinstance(v, str) else "")
def test_a_change_that_loses_nothing_is_read(writer: str, reader: str, value: Any, read: Any) -> None:
    theirs, ours = messages(writer, reader)

    assert obstacles(theirs.DESCRIPTOR, ours.DESCRIPTOR) == []
    found = ours.FromString(theirs(**value).SerializeToString())
    assert MessageToDict(found) == read


@pytest.mark.parametrize(("writer", "reader", "said"), REFUSED)
def test_a_change_that_may_lose_something_is_told(writer: str, reader: str, said: str) -> None:
    theirs, ours = messages(writer, reader)

    (line,) = obstacles(theirs.DESCRIPTOR, ours.DESCRIPTOR)
    assert line.startswith(said)
    assert differences(theirs.DESCRIPTOR, ours.DESCRIPTOR)


@pytest.mark.parametrize(("writer", "reader", "said"), PROTO2)
def test_what_only_proto2_has_is_compared(writer: str, reader: str, said: str) -> None:
    enums = "enum E { A = 0; B = 1; C = 2; } enum F { X = 0; Y = 1; }"
    theirs, ours = (
        classes(f'syntax = "proto2"; {enums} message Order {{ {fields} }}')["Order"] for fields in (writer, reader)
    )
    assert obstacles(theirs.DESCRIPTOR, ours.DESCRIPTOR) == ([said] if said else [])


DIFFERENT = [
    "", "int32 a = 1;", "int32 b = 1;", "int32 a = 2;", "int32 a = 1; int32 b = 2;", "sint32 a = 1;",
    "optional int32 a = 1;", "repeated int32 a = 1;", "oneof x { int32 a = 1; }", "oneof y { int32 a = 1; }",
    "map<string, int32> a = 1;", "map<string, int64> a = 1;", "map<int32, int32> a = 1;",
    "M a = 1;", "O a = 1;", "repeated M a = 1;", "E a = 1;", "F a = 1;", "repeated E a = 1;",
]  # fmt: skip


def test_messages_are_the_same_or_differ() -> None:
    enums = "enum E { A = 0; B = 1; } enum F { X = 0; Y = 1; }"
    for one, other in itertools.product(DIFFERENT, DIFFERENT):
        there, here = (classes(proto3(TYPES, enums, "message Order {", fields, "}"))["Order"].DESCRIPTOR
                       for fields in (one, other))  # fmt: skip

        assert (differences(there, here) == []) == (one == other), (one, other)
        assert one != other or obstacles(there, here) == []


@pytest.mark.parametrize(
    ("writer", "reader", "said"),
    [
        ("int32 a = 1;", "", ["a (int32, 1) is only there"]),
        ("", "M b = 2;", ["b (message com.shop.M, 2) is only here"]),
        ("int32 a = 1;", "int32 b = 1;", ["b is called a there"]),
        ("oneof x { int32 a = 1; }", "int32 a = 1;", ["a is in x there, in no oneof here"]),
        ("int32 a = 1;", "oneof x { int32 a = 1; }", ["a is in no oneof there, in x here"]),
        ("int32 a = 1;", "optional int32 a = 1;", ["a is int32 there, optional int32 here"]),
        ("M a = 1; M b = 2;", "M a = 1; O b = 2;",
         ["b is message com.shop.M there, message com.shop.O here", "b is called com.shop.M there, com.shop.O here",
          "b.n is int32 there, string here"]),
    ],
)  # fmt: skip
def test_a_difference_is_told_with_both_sides(writer: str, reader: str, said: list[str]) -> None:
    theirs, ours = messages(writer, reader)

    assert differences(theirs.DESCRIPTOR, ours.DESCRIPTOR) == said


def test_messages_that_hold_themselves_are_compared_once() -> None:
    deep = "message Order { repeated Order children = 1; %s n = 2; }"
    theirs, ours = (classes(proto3(deep % tp))["Order"] for tp in ("int64", "string"))

    assert obstacles(theirs.DESCRIPTOR, ours.DESCRIPTOR) == ["n is int64 there, string here"]
    assert differences(theirs.DESCRIPTOR, ours.DESCRIPTOR) == ["n is int64 there, string here"]


def test_enums_differ_by_their_values() -> None:
    made = [classes(proto3(f"enum E {{ A = 0; {more} }}", "message Order { E e = 1; }"))["Order"]
            for more in ("B = 1;", "B = 2; C = 1;")]  # fmt: skip

    assert differences(made[0].DESCRIPTOR, made[1].DESCRIPTOR) == ["e has B = 1 there, B = 2, C = 1 here"]
