"""Schemas of others that a few bytes would turn into more than memory, stack or patience can take are refused."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from pydantic import BaseModel

from kafka_eos.codecs import AvroCodec
from kafka_eos.codecs.json_schema.differences import SchemaSide, differences
from kafka_eos.codecs.json_schema.draft_07 import draft_07


class Order(BaseModel):
    name: str


def doubled(levels: int, leaf: Any) -> Any:
    """Records that hold the one below twice."""
    schema = leaf
    for level in range(levels):
        again = schema["name"] if isinstance(schema, dict) else schema
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": again}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


def order_with(schema: Any) -> Any:
    fields = [{"name": "name", "type": "string"}, {"name": "more", "type": schema}]
    return {"type": "record", "name": "Order", "fields": fields}


EMPTY = {"type": "record", "name": "Empty", "fields": []}
WIDE = {"type": "record", "name": "Wide", "fields": [{"name": f"f{n}", "type": "null"} for n in range(200)]}


@pytest.mark.parametrize("leaf", ["null", EMPTY], ids=["null", "a record"])
def test_avro_records_that_double_per_level_are_refused_at_once(leaf: Any) -> None:
    schema = order_with(doubled(40, leaf))
    assert len(json.dumps(schema)) < 4200

    with pytest.raises(ValueError, match=r"one byte of Order can become 2,199,023,255,55\d values, and at most 100"):
        AvroCodec(Order).foreign(schema, [])


@pytest.mark.parametrize(
    "schema",
    [["null", WIDE], {"type": "map", "values": WIDE}, {"type": "array", "items": ["int", WIDE]}],
    ids=["a union", "a map", "a list"],
)
def test_avro_values_that_a_byte_may_choose_are_counted(schema: Any) -> None:
    with pytest.raises(ValueError, match="can become 20"):
        AvroCodec(Order).foreign(order_with(schema), [])


def test_avro_records_that_double_per_level_are_read_if_each_value_takes_bytes() -> None:
    read = AvroCodec(Order).foreign(order_with(doubled(10, "int")), [])

    assert read(b"\x04ab" + bytes(1 << 10)) == Order(name="ab")


def test_an_avro_record_that_contains_itself_without_end_is_refused() -> None:
    endless = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": "Node"}]}

    with pytest.raises(ValueError, match="Node contains itself, so its values have no end"):
        AvroCodec(Order).foreign(order_with(endless), [])


def test_avro_records_that_are_nested_by_name_do_not_exhaust_the_stack() -> None:
    """None of them contains itself."""
    depth = 20_000
    fields: list[Any] = [{"name": "name", "type": "string"}]
    for level, before in enumerate(["int", *(f"L{n}" for n in range(depth - 1))]):
        one = {"type": "record", "name": f"L{level}", "fields": [{"name": "x", "type": ["null", before]}]}
        fields.append({"name": f"f{level}", "type": ["null", one]})
    read = AvroCodec(Order).foreign({"type": "record", "name": "Order", "fields": fields}, [])

    assert read(b"\x04ab" + bytes(depth)) == Order(name="ab")
    with pytest.raises(ValueError, match="recursion"):
        read(b"\x04ab" + bytes(depth - 1) + b"\x02" * (depth + 1))


def compared(schema: Any) -> list[str]:
    return differences(SchemaSide(draft_07(schema), {}), SchemaSide(draft_07(Order.model_json_schema()), {}))


def test_json_schemas_that_double_per_level_are_compared_at_once() -> None:
    names = [f"A{level}" for level in range(30)]
    definitions: dict[str, Any] = {
        name: {"allOf": [{"$ref": f"#/definitions/{below}"}] * 2} for name, below in pairwise(names)
    }
    definitions["A29"] = {"type": "integer"}

    found = compared(
        {"type": "object", "properties": {"name": {"$ref": "#/definitions/A0"}}, "definitions": definitions}
    )

    assert "name is integer there, string here" in found


def test_json_definitions_of_one_name_are_told_apart_at_once() -> None:
    schema = {"properties": {f"p{n}": {"definitions": {"a": {"const": n}}} for n in range(5000)}}

    made: Any = draft_07(schema)

    assert sorted(each["const"] for each in made["definitions"].values()) == [*range(5000)]


def test_json_schemas_whose_addresses_would_take_gigabytes_are_refused() -> None:
    long = {"properties": {"k" * 200_000: {"definitions": {f"a{n}": True for n in range(5000)}}}}

    with pytest.raises(ValueError, match="too long names for its size"):
        draft_07(long)


def test_alternatives_in_alternatives_are_shown_in_few_words() -> None:
    definitions: dict[str, Any] = {f"A{n}": {"anyOf": [{"$ref": f"#/definitions/A{n + 1}"}] * 100} for n in range(4)}
    definitions["A4"] = {"enum": [f"S{n}" for n in range(1000)]}

    (found,) = (line for line in compared({**definitions["A0"], "definitions": definitions}) if " is " in line)

    assert len(found) < 1100


def test_an_error_about_a_schema_with_megabytes_of_names_is_short() -> None:
    """It is stored with each record, and in logs."""

    class Tree(BaseModel):
        name: str

    symbols = {"type": "enum", "name": "E", "symbols": [f"S{n}" for n in range(50_000)]}
    schema = {"type": "record", "name": "Tree", "fields": [{"name": "name", "type": symbols}]}
    decode = AvroCodec(Tree).foreign(schema, [])

    with pytest.raises(ValueError, match="not a valid Tree") as caught:
        decode(b"\x02")

    assert len(str(caught.value)) < 5_000
