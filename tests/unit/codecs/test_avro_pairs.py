"""What is told of any two kinds of Avro schemas, against what fastavro reads of the values of one with the other."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pytest

from kafka_eos.codecs.avro import differences as compared
from kafka_eos.codecs.avro.foreign_schemas import parse_schema
from kafka_eos.codecs.avro.reader_compatibility import obstacles
from tests.avro_witness import record


def enum(*symbols: str, **default: str) -> Any:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **default}


def fixed(size: int) -> Any:
    return {"type": "fixed", "name": "F", "size": size}


def array(items: Any) -> Any:
    return {"type": "array", "items": items}


def values(held: Any) -> Any:
    return {"type": "map", "values": held}


def row(**fields: Any) -> Any:
    return record("R", **fields)


KINDS: list[tuple[Any, list[Any]]] = [
    ("null", [None]),
    ("boolean", [True]),
    ("int", [1]),
    ("long", [1]),
    ("float", [0.5]),
    ("double", [0.5]),
    ("string", ["A"]),
    ("bytes", [b"A"]),
    (enum("A"), ["A"]),
    (enum("B", "A"), ["A", "B"]),
    (enum("C", default="C"), ["C"]),
    (fixed(1), [b"a"]),
    (fixed(2), [b"ab"]),
    (array("int"), [[1]]),
    (array("string"), [["A"]]),
    (values("int"), [{"a": 1}]),
    (values("string"), [{"a": "A"}]),
    (row(a="int"), [{"a": 1}]),
    (row(a="string"), [{"a": "A"}]),
    (row(a="int", b=("int", 1)), [{"a": 1, "b": 2}]),
    (row(a="int", c="int"), [{"a": 1, "c": 2}]),
    (["null", "int"], [None, 1]),
    (["int", "null"], [None, 1]),
    (["null", "string", "double"], [None, "A", 0.5]),
    (["long", "string"], [1, "A"]),
]
"""Schemas with values that each of their parts has."""
AROUND: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda schema: schema, lambda value: value),
    (array, lambda value: [value]),
    (values, lambda value: {"k": value}),
    (lambda schema: record("Outer", x="int", y=schema, z="int"), lambda value: {"x": 1, "y": value, "z": 2}),
]


def is_read(writer: Any, reader: Any, value: Any) -> bool:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(writer))), value)
    out.seek(0)
    try:
        fastavro.schemaless_reader(out, fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    except Exception:  # noqa: BLE001 - fastavro has several
        return False
    return True


@pytest.mark.parametrize(("around", "holding"), AROUND, ids=["alone", "array", "map", "record"])
def test_what_cannot_be_read_is_told_and_nothing_else(around: Any, holding: Any) -> None:
    for (writer, written), (reader, _) in itertools.product(KINDS, KINDS):
        theirs, ours = around(writer), around(reader)
        told = obstacles(*parse_schema(theirs), *parse_schema(ours))
        assert (told == []) == all(is_read(theirs, ours, holding(each)) for each in written), (theirs, ours, told)


@pytest.mark.parametrize(("around", "_"), AROUND, ids=["alone", "array", "map", "record"])
def test_what_is_not_the_same_differs(around: Any, _: Any) -> None:
    """Of a schema that a type has: none has a fixed one."""
    of_types = [schema for schema, _ in KINDS if "fixed" not in repr(schema)]
    for (one, _), other in itertools.product(KINDS, of_types):
        told = compared.differences(*parse_schema(around(one)), *parse_schema(around(other)))
        assert (told == []) == (one == other), (one, other, told)


def test_a_logical_type_of_another_type_differs() -> None:
    there, here = ({"type": kind, "logicalType": "date"} for kind in ("long", "int"))

    assert compared.differences(there, {}, here, {}) == ["the schema is date in long there, in int here"]
