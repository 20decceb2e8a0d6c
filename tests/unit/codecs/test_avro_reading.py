"""What is told of two Avro schemas is what the reader would do with their values."""

from __future__ import annotations

import datetime
import io
from typing import Any

import fastavro
import msgspec
import pytest
from pydantic import BaseModel

from kafka_eos.codecs.avro.avro_codec import AvroCodec
from kafka_eos.codecs.avro.foreign_schemas import parse_schema
from kafka_eos.codecs.avro.reader_compatibility import obstacles
from tests.avro_witness import record


class Line(BaseModel):
    quantity: int
    colour: str = "red"


class Order(BaseModel):
    user: str
    lines: list[Line] = []
    note: Line | None = None


class Rate(msgspec.Struct):
    rate: float


class Event(msgspec.Struct):
    at: datetime.datetime


LINE = record("com.theirs.Line", quantity="int", size="string")
ARRAY: Any = {"type": "array", "items": LINE}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
DATE = {"type": "int", "logicalType": "date"}
SOME = {"quantity": 1, "size": "L"}


@pytest.mark.parametrize(
    ("tp", "writer", "value", "told"),
    [
        (Line, LINE, SOME, []),
        (Line, record("L", quantity="long", colour="string"), {"quantity": 1, "colour": "blue"}, []),
        (Line, record("L", size="string"), {"size": "L"}, ["quantity (long) is only here, and has no default"]),
        (Line, record("L", quantity="double"), {"quantity": 1.5}, ["quantity is double there, long here"]),
        (Line, record("L", quantity=["null", "long"]), {"quantity": None}, ["quantity is null there, long here"]),
        (Order, record("O", user="string", lines=ARRAY), {"user": "a", "lines": [SOME]}, []),
        (Order, record("O", user="string", note=["null", LINE]), {"user": "a", "note": SOME}, []),
        (
            Order,
            record("O", user="string", lines={"type": "array", "items": record("L", size="string")}),
            {"user": "a", "lines": [{"size": "L"}]},
            ["lines[].quantity (long) is only here, and has no default"],
        ),
        (
            Order,
            record("O", user="string", lines={"type": "map", "values": LINE}),
            {"user": "a", "lines": {"a": SOME}},
            ["lines is map of record com.theirs.Line there, array of record Line here"],
        ),
        (Rate, record("R", rate="int"), {"rate": 1}, []),
        (Rate, record("R", rate="string"), {"rate": "1"}, ["rate is string there, double here"]),
        (Rate, record("R", rate=LINE), {"rate": SOME}, ["rate is record com.theirs.Line there, double here"]),
        (
            Order,
            record("O", user="string", lines="string"),
            {"user": "a", "lines": "b"},
            ["lines is string there, array of record Line here"],
        ),
        (Event, record("E", at=MILLIS), {"at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)}, []),
        (Event, record("E", at=DATE), {"at": datetime.date(2026, 1, 1)}, ["at is date there, timestamp-micros here"]),
    ],
)
def test_what_is_told_is_what_the_reader_refuses(tp: Any, writer: Any, value: Any, told: list[str]) -> None:
    codec: AvroCodec[Any] = AvroCodec(tp)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), value)

    assert obstacles(*parse_schema(writer), *parse_schema(codec.schema)) == told
    decode = codec.foreign(writer, [])
    if told:
        with pytest.raises(ValueError, match="not a valid"):
            decode(out.getvalue())
    else:
        decode(out.getvalue())


def test_symbols_and_decimals_that_some_values_may_have_are_told() -> None:
    kinds = {"type": "enum", "name": "Kind", "symbols": ["A"]}
    more = {**kinds, "symbols": ["A", "B", "C"]}
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    other = {**amount, "scale": 3}

    found = obstacles(
        *parse_schema(record("R", kind=more, amount=amount)), *parse_schema(record("R", kind=kinds, amount=other))
    )

    assert found == [
        "kind can be B, C there, which is not known here",
        "amount is decimal(9, 2) there, decimal(9, 3) here",
    ]


def test_a_schema_that_holds_itself_comes_to_an_end() -> None:
    tree = record("Tree", children={"type": "array", "items": "Tree"}, size="int")

    assert obstacles(*parse_schema(tree), *parse_schema(tree)) == []
