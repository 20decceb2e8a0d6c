"""Values of any schema of a registry as JSON text, with a registry in memory."""

from __future__ import annotations

import datetime
import io
import json
import struct
from decimal import Decimal
from typing import Any
from uuid import uuid4

import fastavro
import pytest
from google.protobuf.message_factory import GetMessageClass

from kafka_eos.codecs import Registry
from kafka_eos.codecs.protobuf.descriptor_pools import load_schema
from kafka_eos.codecs.registered_text import RegisteredTexts
from kafka_eos.codecs.registry.registry_client import Reference, RegisteredSchema

LINE: Any = {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "long"}]}
ORDER: Any = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": "Line"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
PROTO = """
syntax = "proto3";
package shop;
message Other { string name = 1; }
message Order { int64 order_id = 1; int32 n = 2; repeated string tags = 3; }
"""


@pytest.fixture
def registry() -> Registry:
    """One in memory, which only this test has."""
    return Registry(f"mock://{uuid4()}")


def registered(registry: Registry, kind: str, text: str, *references: Reference) -> bytes:
    """Register a schema under a subject of its own, and return the prefix of its values."""
    return struct.pack(">bI", 0, registry.register(uuid4().hex, RegisteredSchema(kind, text, references)))


def test_avro_with_types_of_another_subject(registry: Registry) -> None:
    registry.register("line", RegisteredSchema("AVRO", json.dumps(LINE)))
    prefix = registered(registry, "AVRO", json.dumps(ORDER), Reference("Line", "line", 1))
    order = {
        "id": 9007199254740993,
        "price": Decimal("12.50"),
        "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "lines": [{"n": 1}],
        "note": None,
    }
    names: Any = {}
    fastavro.parse_schema(LINE, named_schemas=names)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER, named_schemas=names), order)
    texts = RegisteredTexts(registry)

    expected = '{"id":9007199254740993,"price":"12.50","at":"2026-01-02T00:00:00Z","lines":[{"n":1}],"note":null}'
    assert [expected] * 2 == [texts.read(prefix + out.getvalue()) for _ in range(2)]
    assert texts.read(prefix + out.getvalue()[:-1]) is None, "it is cut off"
    assert texts.read(prefix + out.getvalue() + b"!") is None, "it is too long"


def test_protobuf_of_any_message_of_a_file(registry: Registry) -> None:
    message = GetMessageClass(load_schema(PROTO, {}).message_types_by_name["Order"])
    prefix = registered(registry, "PROTOBUF", PROTO)
    texts, second = RegisteredTexts(registry), b"\x02\x02"  # one index: the second message
    data = message(order_id=9007199254740993, tags=["a"]).SerializeToString()

    found = texts.read(prefix + second + data)

    assert found is not None
    assert json.loads(found) == {"order_id": "9007199254740993", "n": 0, "tags": ["a"]}
    assert texts.read(prefix + b"\x02\x08" + data) is None, "the file has no fifth message"
    assert texts.read(prefix + second + b"\xff") is None


def test_json_is_the_text_behind_the_prefix(registry: Registry) -> None:
    prefix = registered(registry, "JSON", '{"type": "object"}')

    assert RegisteredTexts(registry).read(prefix + b'{"id": 1.0}') == '{"id": 1.0}'


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"id": 1}', '{"id": 1}'),
        (b"", ""),
        (b"\0\0", "\0\0"),
        (b"\xe9", None),
        (b"\0\0\0\x03\xe7{}", None),
        (b"\0\xff\xff\xff\xff{}", None),
    ],
    ids=["text", "empty", "too short for an id", "no UTF-8", "an unknown id", "no id"],
)
def test_bytes_without_a_schema_are_text_or_nothing(registry: Registry, data: bytes, text: str | None) -> None:
    assert RegisteredTexts(registry).read(data) == text
