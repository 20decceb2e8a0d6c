"""Ids of schemas in headers of records, beside Confluent's own serializers; Java's are in ``broker``."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry import header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kafka_eos.codecs import Registry, StrCodec, avro, json_schema, protobuf
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.connectors.kafka.source.fetched_records import MessageRecords
from kafka_eos.connectors.kafka.source.message_decoder import record_decoder, value_decoder
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.records import Batch, Headers, Record
from kafka_eos.testing.list_source import ListOrigin
from tests import protobuf_witness


class Line(msgspec.Struct):
    quantity: int


class Note(msgspec.Struct):
    """Confluent's deserializer takes no value of five bytes or fewer."""

    text: str


CLASSES = protobuf_witness.classes(
    protobuf_witness.proto3("message Other { int32 a = 1; }", "message Amount { int32 quantity = 1; }")
)
AMOUNT = CLASSES["Amount"]
IN_BYTES = b"\x06"
"""A line of three, in Avro."""


@pytest.fixture
def registry() -> Registry:
    """One in memory, which only this test has."""
    return Registry(f"mock://{uuid4()}")


def codec(make: Any, tp: Any, registry: Registry, **options: Any) -> Any:
    """Of a job that has started."""
    made = make(tp, registry=registry, auto_register=True, **options).for_topic("orders", "value")
    made.check()
    return made


@pytest.mark.parametrize("id_in", ["header", "apicurio-header"])
@pytest.mark.parametrize(("make", "data"), [(avro, IN_BYTES), (json_schema, b'{"quantity":3}')])
def test_a_value_comes_back_with_its_headers(registry: Registry, make: Any, data: bytes, id_in: str) -> None:
    value = Line(3)
    lines = codec(make, Line, registry, id_in=id_in)

    assert lines.encode(value) == data
    assert lines.decode_with(data, [("x", None), *lines.headers()]) == value
    assert lines.decode(data) == value
    before = codec(make, Line, registry)
    assert lines.decode_with(before.encode(value), ()) == value, "no header: what stands before the value counts"


def test_headers_have_confluents_names_or_apicurios(registry: Registry) -> None:
    assert codec(avro, Line, registry, id_in="header").headers() == (("__value_schema_id", b"\0\0\0\0\1"),)
    key = avro(Line, registry=registry, subject="record", auto_register=True, id_in="apicurio-header")
    of_key: Any = key.for_topic("orders", "key")
    of_key.check()
    assert of_key.headers() == (
        ("apicurio.key.contentId", b"\0\0\0\0\0\0\0\2"),
        ("apicurio.key.encoding", b"BINARY"),
    )
    assert codec(json_schema, Line, registry, id_in="apicurio-header").headers() == (
        ("apicurio.value.contentId", b"\0\0\0\0\0\0\0\3"),
    )


def test_confluents_serializers_read_what_we_write_and_the_other_way_round(registry: Registry) -> None:
    """Theirs names the schema by a globally unique id."""
    notes, amounts = (codec(make, tp, registry, id_in="header") for make, tp in ((avro, Note), (protobuf, AMOUNT)))
    client: Any = registry._client
    schema = json.dumps(notes.schema)
    theirs = {
        notes: (
            AvroSerializer(client, schema, conf={"schema.id.serializer": header_schema_id_serializer}),
            Note("a long one"),
        ),
        amounts: (
            ProtobufSerializer(
                AMOUNT,
                client,
                {"use.deprecated.format": False, "schema.id.serializer": header_schema_id_serializer},
            ),
            AMOUNT(quantity=3),
        ),
    }

    for ours, (serialize, value) in theirs.items():
        headers: list[Any] = []
        data = serialize(_plain(value), SerializationContext("orders", MessageField.VALUE, headers))
        assert headers[0][1][:1] == b"\1"
        assert data == ours.encode(value)
        assert ours.decode_with(data, headers) == value
    ours_in = SerializationContext("orders", MessageField.VALUE, list(notes.headers()))
    assert AvroDeserializer(client)(notes.encode(Note("a long one")), ours_in) == {"text": "a long one"}
    ours_in = SerializationContext("orders", MessageField.VALUE, list(amounts.headers()))
    told = ProtobufDeserializer(AMOUNT, {"use.deprecated.format": False})
    assert told(amounts.encode(AMOUNT(quantity=3)), ours_in) == AMOUNT(quantity=3)


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, Note) else value


@pytest.mark.parametrize(
    ("id_in", "headers", "why"),
    [
        ("header", [("__value_schema_id", b"\0\0\0\0\5")], "has no schema 5"),
        ("header", [("__value_schema_id", b"")], "header __value_schema_id is empty, not a schema id"),
        ("header", [("__value_schema_id", b"\0\0\0")], "is 00 00 00, not a schema id"),
        (
            "header",
            [("__value_schema_id", b"\1" + b"x" * 16)],
            "has no schema 78787878-7878-7878-7878-787878787878",
        ),
        ("header", [("__value_schema_id", b"\1x")], "is 01 78, not a schema id"),
        ("header", [("__value_schema_id", b"\0\0\0\0\1\2")], "is 00 00 00 00 01 02, not a schema id"),
        ("header", [("__value_schema_id", b"\1" + b"x" * 17)], "not a schema id"),
        ("header", [("__key_schema_id", b"\0\0\0\0\1")], "begins with 06"),
        ("apicurio-header", [("apicurio.value.contentId", b"\0\0\0\1")], "is 00 00 00 01, not an id of eight bytes"),
        ("apicurio-header", [("apicurio.value.contentId", b"\1" + b"\0" * 7)], "not an id of eight bytes"),
        ("apicurio-header", [("apicurio.value.globalId", b"\0" * 8)], "apicurio.registry.use-id=contentId"),
        ("apicurio-header", [("apicurio.value.encoding", b"JSON")], "only b'BINARY' can be read"),
        ("apicurio-header", [], "begins with 06"),
    ],
)
def test_a_record_whose_headers_name_no_schema_is_refused(
    registry: Registry, id_in: str, headers: Headers, why: str
) -> None:
    lines = codec(avro, Line, registry, id_in=id_in)

    with pytest.raises(ValueError, match=why):
        lines.decode_with(IN_BYTES, headers)


def test_what_cannot_be_is_refused_where_it_is_written(registry: Registry) -> None:
    wrong: Any = "headers"
    with pytest.raises(ConfigError, match="id_in='headers': use"):
        avro(Line, registry=registry, id_in=wrong)
    with pytest.raises(ConfigError, match='Apicurio keeps more in its headers than an id; use id_in="prefix"'):
        protobuf(AMOUNT, registry=registry, id_in="apicurio-header")
    with pytest.raises(ConfigError, match="without a registry"):
        protobuf(AMOUNT, id_in="header")  # type: ignore[call-overload]


def message(value: bytes | None, headers: Headers, key: bytes | None = None) -> Message:
    return Message("orders", 0, 0, key, value, list(headers), timestamp=(1, 5))


def fetched(*messages: Message) -> MessageRecords:
    return MessageRecords("orders", messages)


def test_a_source_reads_values_with_their_headers(registry: Registry) -> None:
    lines = codec(avro, Line, registry, id_in="header")
    given = (("a", b"1"), *lines.headers())

    raws, decode = value_decoder(lines)(fetched(message(IN_BYTES, given)))
    assert [decode(raw) for raw in raws] == [Line(3)]
    raws, decode = record_decoder(StrCodec(), lines)(
        fetched(message(IN_BYTES, given, b"k"), message(None, given, b"k"))
    )
    assert [decode(raw) for raw in raws] == [Record("k", Line(3), given, 5), Record("k", None, given, 5)]
    raws, decode = value_decoder(lines)(fetched(message(None, given)))
    with pytest.raises(ValueError, match="tombstone"):
        decode(raws[0])


def test_a_sink_adds_them_to_those_of_the_user(registry: Registry) -> None:
    lines: Any = avro(Line, registry=registry, id_in="header", auto_register=True)
    values, keys = (lines.for_topic("orders", part) for part in ("value", "key"))
    values.check()
    keys.check()
    needed = [*keys.headers(), *values.headers()]

    def records(sink: KafkaSink[Any], value: Any) -> list[tuple[Any, Any, Any]]:
        batch = Batch([value], range(1), ListOrigin("in", "list", 0, 0, [value]))
        _, written = sink.written(batch, "out", lambda batch, index, error: pytest.fail(str(error)))
        return [(record.key, record.value, list(record.headers)) for record in written]

    plain: KafkaSink[Line] = KafkaSink("orders", value=lines, key=lambda line: line, key_codec=lines)
    assert records(plain, Line(3)) == [(IN_BYTES, IN_BYTES, needed)]
    named: KafkaSink[Line] = KafkaSink("orders", value=lines, headers=lambda line: [("a", b"1")])
    assert records(named, Line(3)) == [(None, IN_BYTES, [("a", b"1"), *values.headers()])]
    whole = KafkaSink.records("orders", key=lines, value=lines)
    assert records(whole, Record(Line(3), Line(3), (("a", b"1"),))) == [(IN_BYTES, IN_BYTES, [("a", b"1"), *needed])]
