"""Plain values on their way to Avro: what is equal after decoding is taken, and anything else is refused."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from types import MappingProxyType
from typing import Any

import pytest

from kafka_eos.codecs.avro.value_conversion import build_preparer
from tests.avro_witness import record


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.Enum):
    RED = "red"


class Shade(enum.StrEnum):
    DARK = "dark"


COLOUR = {"type": "enum", "name": "Colour", "symbols": ["red", "blue"]}
PART = record("Part", colour=COLOUR, size="double")
UTC = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
LOCAL = datetime.datetime(2026, 1, 31, 12)


def test_a_field_that_is_left_out_has_its_default_and_the_others_are_prepared() -> None:
    prepare = build_preparer(record("Three", a="double", b="double", c="double"))

    for missing in "abc":
        plain = {name: 1 for name in "abc" if name != missing}
        found = prepare(plain)
        assert found == dict.fromkeys(plain, 1.0)
        assert {type(value) for value in found.values()} == {float}
        assert {type(value) for value in plain.values()} == {int}
    assert prepare({}) == {}
    assert prepare(MappingProxyType({"b": 2})) == {"b": 2.0}


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_the_field_that_does_not_fit_is_named_wherever_it_stands(name: str) -> None:
    prepare = build_preparer(record("Three", a="long", b="long", c="long"))

    with pytest.raises(ValueError, match=f"^{name}: a str is not a valid long: 'x'$"):
        prepare({"a": 1, "b": 2, "c": 3} | {name: "x"})


def test_a_field_that_the_schema_lacks_is_refused_but_for_those_that_stand_beside() -> None:
    schema = record("One", a="long")

    with pytest.raises(ValueError, match="^no field for b, x, z$"):
        build_preparer(schema)({"z": 1, "a": 1, "x": 2, "b": 3})
    with pytest.raises(ValueError, match="^no field for b$"):
        build_preparer(schema, frozenset({"type"}))({"a": 1, "type": "x", "b": 3})
    assert build_preparer(schema, frozenset({"type"}))({"a": 1, "type": "x"}) == {"a": 1, "type": "x"}
    nothing_alike: list[Any] = [[], None, "a", 1]
    for wrong in nothing_alike:
        with pytest.raises(ValueError, match="is not a valid One"):
            build_preparer(schema)(wrong)


def test_types_are_known_by_their_names_within_themselves_and_after() -> None:
    token = {"type": "fixed", "name": "Token", "size": 2}
    schema = record("Node", part=PART, again="Part", colour="Colour", token=token, other="Token", next=["null", "Node"])
    whole: dict[str, Any] = {"part": {"colour": Colour.RED, "size": 1}, "again": {"colour": Colour.RED, "size": 2},
             "colour": Colour.RED, "token": bytearray(b"ab"), "other": bytearray(b"cd")}  # fmt: skip
    wanted: dict[str, Any] = {"part": {"colour": "red", "size": 1.0}, "again": {"colour": "red", "size": 2.0},
              "colour": "red", "token": b"ab", "other": b"cd"}  # fmt: skip

    found = build_preparer(schema)({**whole, "next": {**whole, "next": None}})

    assert found == {**wanted, "next": {**wanted, "next": None}}
    assert type(found["other"]) is type(found["next"]["other"]) is bytes


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_each_element_and_each_entry_counts(wrong: int) -> None:
    listed = build_preparer({"type": "array", "items": COLOUR})
    mapped = build_preparer({"type": "map", "values": COLOUR})
    values: list[Any] = ["red", Colour.RED, "blue"]

    assert listed(values) == ["red", "red", "blue"]
    assert mapped(dict(zip("abc", values, strict=True))) == {"a": "red", "b": "red", "c": "blue"}
    values[wrong] = "green"
    with pytest.raises(ValueError, match="a str is not a valid enum of red, blue: 'green'"):
        listed(values)
    with pytest.raises(ValueError, match="a str is not a valid enum of red, blue: 'green'"):
        mapped(dict(zip("abc", values, strict=True)))
    with pytest.raises(ValueError, match="a dict is not a valid map"):
        mapped(dict.fromkeys(("a", "b", "c"), "red") | {7: "red"})
    with pytest.raises(ValueError, match="a str is not a valid array"):
        listed("red")
    with pytest.raises(ValueError, match="a list is not a valid map"):
        mapped(["red"])


def test_a_value_of_a_union_comes_with_the_first_arm_that_takes_it() -> None:
    prepare = build_preparer(["null", "long", "double", COLOUR, PART, {"type": "array", "items": "long"}])
    part = {"colour": Colour.RED, "size": 1}

    assert prepare(None) is None
    assert [prepare(value) for value in (1, 1.5, Colour.RED, part, [1])] == [
        ("long", 1), ("double", 1.5), ("Colour", "red"), ("Part", {"colour": "red", "size": 1.0}), ("array", [1])
    ]  # fmt: skip
    with pytest.raises(ValueError, match="a bytes is not a valid union of long, double, Colour, Part, array: b'x'"):
        prepare(b"x")
    with pytest.raises(ValueError, match="a NoneType is not a valid union of long, string"):
        build_preparer(["long", "string"])(None)


def test_a_union_of_one_type_and_none_needs_no_arm() -> None:
    assert [build_preparer(["null", "double"])(value) for value in (None, 1)] == [None, 1.0]
    assert build_preparer(["double", "null"])(None) is None
    with pytest.raises(ValueError, match="a NoneType is not a valid double"):
        build_preparer(["double"])(None)


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ("int", [-(1 << 31), (1 << 31) - 1, Level.LOW], [-(1 << 31) - 1, 1 << 31, True, 1.0]),
        ("long", [1 << 40], [False, 1.5, "1"]),
        ("boolean", [True], [1, "true"]),
        ("float", [1.5, 1], [1e39, True]),
        ("double", [1e300, 1], [True, (1 << 53) + 1, "1"]),
        ("string", ["a", Shade.DARK], [b"a", 1, None, Colour.RED]),
        ("bytes", [b"a", bytearray(b"a")], ["a"]),
        ("null", [None], [0]),
        ({"type": "int", "logicalType": "date"}, [UTC.date()], [UTC, 1]),
        ({"type": "string", "logicalType": "uuid"}, [uuid.UUID(int=1)], [str(uuid.UUID(int=1))]),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, [decimal.Decimal("1")], [1, 1.0]),
        ({"type": "long", "logicalType": "timestamp-micros"}, [UTC.replace(microsecond=1)], [LOCAL, 1]),
        ({"type": "long", "logicalType": "timestamp-millis"}, [UTC.replace(microsecond=1000)],
         [LOCAL, UTC.replace(microsecond=1001)]),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, [LOCAL.replace(microsecond=1)], [UTC]),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, [LOCAL],
         [UTC, LOCAL.replace(microsecond=1001)]),
        ({"type": "long", "logicalType": "time-micros"}, [datetime.time(1, microsecond=1)], [UTC.timetz()]),
        ({"type": "int", "logicalType": "time-millis"}, [datetime.time(1)],
         [UTC.timetz(), datetime.time(1, microsecond=1001)]),
        ({"type": "long", "logicalType": "no-such-type"}, [1], ["1"]),
        ({"type": {"type": "string"}}, ["a"], [1]),
    ],
    ids=str,
)  # fmt: skip
def test_what_each_type_takes_and_refuses(schema: Any, taken: list[Any], refused: list[Any]) -> None:
    prepare = build_preparer(schema)

    for value in taken:
        assert prepare(value) == (value.value if isinstance(value, enum.Enum) else value)
    for value in refused:
        with pytest.raises((ValueError, OverflowError)):
            prepare(value)
