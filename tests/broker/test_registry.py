"""What a Kafka sink asks a real schema registry before it starts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from kafka_eos.codecs import Registry, avro, json_schema, protobuf
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.core.errors import ConfigError
from tests import json_witness, protobuf_witness
from tests.avro_witness import record, told, written
from tests.broker.kafka_kit import job
from tests.registry_server import RegistryServer


class Line(msgspec.Struct):
    quantity: int


def test_a_sink_without_a_schema_is_refused_and_says_what_differs(
    bootstrap: str, topic: Callable[..., str], registry: RegistryServer
) -> None:
    name = topic()
    sink: KafkaSink[Line] = KafkaSink(name, value=avro(Line, registry=Registry(registry.url)))

    with pytest.raises(ConfigError, match=f"subject '{name}-value' .* The subject does not exist yet"):
        sink.check(job(bootstrap))
    written(registry.url, name, record("Line", quantity="int"), [{"quantity": 1}])
    with pytest.raises(ConfigError, match="In its newest version, 1, it differs: quantity is int there, long here"):
        KafkaSink(name, value=avro(Line, registry=Registry(registry.url))).check(job(bootstrap))
    KafkaSink(name, value=avro(Line, registry=Registry(registry.url), auto_register=True)).check(job(bootstrap))
    sink.check(job(bootstrap))  # now it is there


def test_protobuf_is_read_from_a_real_registry_and_written_with_what_it_has(registry: RegistryServer) -> None:
    """As a text of ours, and as the descriptor in base64 that Confluent's serializer registers."""
    text = protobuf_witness.proto3(
        'import "google/protobuf/timestamp.proto";',
        "message Other { int32 a = 1; }",
        "message Line { string article = 1; google.protobuf.Timestamp at = 2; map<string, int64> tags = 3; "
        "oneof one { Other other = 4; int32 number = 5; } optional int32 maybe = 6; }",
    )
    tp = protobuf_witness.classes(text)["Line"]
    value = tp(article="a", at={"seconds": 5}, tags={"x": 1}, number=0, maybe=0)
    asked = Registry(registry.url)

    for topic, by in (("proto-ours", "us"), ("proto-theirs", "them")):
        if by == "them":
            theirs = protobuf_witness.written(registry.url, topic, [value])
        lines = protobuf(tp, registry=asked, auto_register=by == "us").for_topic(topic, "value")
        lines.check()
        assert lines.decode(lines.encode(value)) == value
        assert protobuf_witness.told(tp, lines.encode(value)) == value
        if by == "them":
            assert lines.encode(value) == theirs[0]
        newest = asked.get_latest_version(f"{topic}-value")
        assert newest is not None
        assert newest.number == 1
        assert newest.schema.text.startswith("syntax") is (by == "us")
    narrower = protobuf_witness.classes(text.replace("int64", "int32"))["Line"]
    compared = protobuf(narrower, registry=asked).for_topic("proto-ours", "value").compare_schema(reading=True)
    assert compared.problems == ["tags.value is int64 there, int32 here"]


class Order(msgspec.Struct):
    user: str
    lines: list[Line] = []


def test_schemas_that_refer_to_others_are_registered_and_read_by_others(registry: RegistryServer) -> None:
    """By Confluent's deserializers, which ask the registry for what a schema refers to."""
    asked, value = Registry(registry.url), Order("ann", [Line(2), Line(3)])
    plain = {"user": "ann", "lines": [{"quantity": 2}, {"quantity": 3}]}
    in_avro, in_json = (
        language(Order, registry=asked, references={Line: f"parts-{name}-line"}, auto_register=True).for_topic(
            f"parts-{name}", "value"
        )
        for name, language in (("avro", avro), ("json", json_schema))
    )
    line = protobuf_witness.proto3("message Line { int32 quantity = 1; }", package="com.parts")
    text = protobuf_witness.proto3('import "line.proto";', "message Order { repeated com.parts.Line lines = 1; }")
    tp = protobuf_witness.classes(text, line=line)["Order"]
    in_protobuf = protobuf(tp, registry=asked, auto_register=True).for_topic("parts-protobuf", "value")

    for codec in (in_avro, in_json, in_protobuf):
        codec.check()
        codec.check()  # a later start
        assert codec.compare_schema(reading=True).problems == []

    assert told(registry.url, in_avro.encode(value)) == plain
    assert json_witness.told(registry.url, "parts-json", in_json.encode(value)) == plain
    assert in_avro.decode(in_avro.encode(value)) == in_json.decode(in_json.encode(value)) == value
    message = tp(lines=[{"quantity": 2}])
    assert protobuf_witness.told(tp, in_protobuf.encode(message)) == message
    assert in_protobuf.decode(in_protobuf.encode(message)) == message
    for name in ("avro", "json", "protobuf"):
        newest = asked.get_latest_version(f"parts-{name}-value")
        assert newest is not None
        assert newest.number == 1
        assert len(newest.schema.references) == 1


def test_json_is_read_from_a_real_registry_and_changes_as_it_allows(registry: RegistryServer) -> None:
    """Confluent's deserializer reads what we write, and compares it with its schema; and the other way round."""

    class Wider(Order):
        note: str = ""

    class Other(msgspec.Struct):
        user: int

    asked, value = Registry(registry.url), Order(user="ann", lines=[Line(2)])
    orders, wider = (
        json_schema(tp, registry=asked, auto_register=True).for_topic("json-ours", "value") for tp in (Order, Wider)
    )

    orders.check()
    assert json_witness.told(registry.url, "json-ours", orders.encode(value)) == {
        "user": "ann",
        "lines": [{"quantity": 2}],
    }
    SchemaRegistryClient({"url": registry.url}).set_compatibility("json-ours-value", level="BACKWARD")
    wider.check()  # a field with a default
    newest = Registry(registry.url).get_latest_version("json-ours-value")  # the client keeps what it was told before
    assert newest is not None
    assert newest.number == 2
    assert wider.decode(orders.encode(value)) == Wider(user="ann", lines=[Line(2)])
    assert orders.decode(wider.encode(Wider(user="bob", note="x"))) == Order(user="bob")
    with pytest.raises(ConfigError, match="subject 'json-ours-value' .* rejects the schema") as refused:
        json_schema(Other, registry=asked, auto_register=True).for_topic("json-ours", "value").check()
    said = str(refused.value)
    assert "In its newest version, 2, it differs: user" in said
    assert "The subject requires BACKWARD. Make the change compatible" in said

    theirs = {"title": "Order", "type": "object", "properties": {"user": {"type": "string"}, "x": {"type": "integer"}}}
    (data,) = json_witness.written(registry.url, "json-theirs", theirs, [{"user": "eve", "x": 1}])
    reading = json_schema(Order, registry=asked).for_topic("json-theirs", "value")
    assert reading.decode(data) == Order(user="eve")
    assert reading.compare_schema(reading=True).problems == ["user may be missing there, and must be here"]
