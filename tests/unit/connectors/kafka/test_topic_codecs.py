"""Formats of a registry over several topics: each topic has a schema of its own, also one that comes later."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.codec import SchemaComparison
from kafka_eos.codecs import Registry, avro
from kafka_eos.codecs.registry.registry_client import RegisteredSchema
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.core.records import RawRecord, Record
from kafka_eos.plan.explain import explain
from kafka_eos.testing import MemorySink


class Order(msgspec.Struct):
    user: str
    amount: int = 0


class Narrow(msgspec.Struct):
    user: str


class Other(msgspec.Struct):
    user: int


@pytest.fixture
def registry() -> Registry:
    return Registry(f"mock://{uuid4()}")


def written(registry: Registry, tp: Any, topic: str, value: Any, part: Any = "value") -> bytes:
    """As a job of another team writes it."""
    codec: Any = avro(tp, registry=registry, auto_register=True).for_topic(topic, part)
    codec.check()
    return bytes(codec.encode(value))


def raw(topic: str, value: bytes, key: bytes | None = None) -> RawRecord:
    return RawRecord(topic, 0, 0, -1, key, value, ())


def read(source: KafkaSource[Any], *raws: RawRecord) -> list[Any]:
    def refuse(raw: RawRecord, error: Exception) -> None:
        raise error

    return [value for each in raws for value in source.decode("in", [each], refuse).values]


@pytest.mark.parametrize("topics", [["eu", "us"], re.compile("..")], ids=["list", "pattern"])
def test_records_of_each_topic_are_read_with_the_schema_that_they_were_written_with(
    registry: Registry, topics: Any
) -> None:
    source = KafkaSource(topics, value=avro(Order, registry=registry))
    eu = raw("eu", written(registry, Order, "eu", Order("ann", 3)))
    us = raw("us", written(registry, Narrow, "us", Narrow("bob")))

    assert source.value_type is Order
    assert read(source, eu, us, eu) == [Order("ann", 3), Order("bob"), Order("ann", 3)]


def test_keys_have_schemas_of_each_topic_too(registry: Registry) -> None:
    source = KafkaSource.records(re.compile(".."), key=avro(Narrow, registry=registry), value=str)
    key = written(registry, Narrow, "eu", Narrow("ann"), "key")

    assert read(source, raw("eu", b"text", key)) == [Record(Narrow("ann"), "text", (), None)]
    assert [*source.codecs()] == ["key of each topic", "value"]


def test_a_list_names_the_subject_of_each_topic(registry: Registry) -> None:
    pipeline = Pipeline("orders")
    source = KafkaSource(["eu", "us"], value=avro(Order, registry=registry))
    pipeline.source(source, name="orders").sink(MemorySink(), name="out")

    _, _, shown = explain(pipeline.plan()).partition("\nschemas\n")

    assert shown.splitlines()[:3] == [
        "  orders -> out",
        f"    orders, value of eu: Avro Order, subject eu-value of {registry.url}",
        f"    orders, value of us: Avro Order, subject us-value of {registry.url}",
    ]
    assert source.describe()["value"] == f"Avro Order, subject <topic>-value of {registry.url}"


def test_a_subject_that_is_the_same_for_all_topics_is_one_codec(registry: Registry) -> None:
    source = KafkaSource(["eu", "us"], value=avro(Order, registry=registry, subject="record"))

    assert {name: codec.describe() for name, codec in source.codecs().items()} == {  # type: ignore[union-attr]
        "value": f"Avro Order, subject Order of {registry.url}"
    }


def test_a_pattern_is_compared_with_the_subjects_of_all_topics_that_match(registry: Registry) -> None:
    orders = avro(Order, registry=registry)
    source = KafkaSource(re.compile("orders-.+"), value=orders, exclude=["orders-test"])
    codec: Any = source.codecs()["value of each topic"]
    nothing = codec.compare_schema(reading=True)
    for tp, topic in ((Narrow, "orders-eu"), (Other, "orders-us"), (Other, "orders-test"), (Other, "others")):
        written(registry, tp, topic, tp(1 if tp is Other else "ann"))
    written(registry, Other, "orders-key", Other(1), "key")

    found: SchemaComparison = codec.compare_schema(reading=True)

    assert not nothing.is_there
    assert not nothing.problems
    assert found.counterpart == "; ".join(
        f"version 1 of subject orders-{place}-value of {registry.url}" for place in ("eu", "us")
    )
    assert found.problems == ["orders-us: user is long there, string here"]
    assert "orders-eu: amount (long) is only here" in found.differences
    notices = codec.check_reading()
    assert len([notice for notice in notices if "Records that are written with it will be refused" in notice]) == 1


def test_the_topics_of_a_registry_are_those_of_its_subjects_of_this_part(registry: Registry) -> None:
    for subject in ("eu-value", "us-west-value", "eu-key", "-value", "value", "Order"):
        registry.register(subject, RegisteredSchema("AVRO", '"string"'))

    assert avro(Order, registry=registry).topics("value") == ["eu", "us-west"]
    assert avro(Order, registry=registry).topics("key") == ["eu"]
