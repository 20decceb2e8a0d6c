"""Schemas that are written and refer to others: which subject has what, and that others read it."""

from __future__ import annotations

import io
import json
from typing import Any
from uuid import uuid4

import fastavro
import msgspec
import pytest
from pydantic import BaseModel

from kafka_eos.codecs import Registry, avro, json_schema, protobuf
from kafka_eos.codecs.avro.schema_derivation import avro_schema
from kafka_eos.codecs.avro.schema_references import split_by_subject
from kafka_eos.codecs.registry.registry_client import Reference, RegisteredSchema, SubjectVersion
from kafka_eos.core.errors import ConfigError, PlanError
from tests.protobuf_witness import classes, proto3


class Money(BaseModel):
    cents: int


class Line(BaseModel):
    article: str
    price: Money


class Order(BaseModel):
    user: str
    lines: list[Line] = []
    shipping: Money | None = None


ORDER = Order(user="ann", lines=[Line(article="a", price=Money(cents=5))], shipping=Money(cents=1))
SUBJECTS: dict[type, str] = {Line: "lines", Money: "money"}


class Twin(msgspec.Struct):
    left: Left
    right: Right


class Left(msgspec.Struct):
    money: Coin


class Right(msgspec.Struct):
    money: Coin


class Coin(msgspec.Struct):
    cents: int


class Chest(msgspec.Struct):
    box: Box


class Box(msgspec.Struct):
    purse: Purse


class Purse(msgspec.Struct):
    money: Coin
    box: Box | None = None


class Node(msgspec.Struct):
    name: str
    leaf: Leaf


class Leaf(msgspec.Struct):
    node: Node | None = None


@pytest.fixture
def registry() -> Registry:
    return Registry(f"mock://{uuid4()}")


def newest(registry: Registry, subject: str) -> SubjectVersion:
    found = registry.get_latest_version(subject)
    assert found is not None
    return found


def started(language: Any, tp: Any, registry: Registry, **options: Any) -> Any:
    """The codec of a job that has registered all that it needs."""
    codec = language(tp, registry=registry, auto_register=True, **options).for_topic("orders", "value")
    codec.check()
    return codec


def test_avro_names_types_of_other_subjects(registry: Registry) -> None:
    orders = started(avro, Order, registry, namespace="com.shop", references=SUBJECTS)
    data = orders.encode(ORDER)

    order, line, money = (newest(registry, subject).schema for subject in ("orders-value", "lines", "money"))
    assert order.references == (
        Reference("com.shop.Line", "lines", 1),
        Reference("com.shop.Money", "money", 1),
    )
    assert line.references == (Reference("com.shop.Money", "money", 1),)
    assert [field["type"] for field in json.loads(order.text)["fields"]] == [
        "string",
        {"type": "array", "items": "Line"},
        ["null", "Money"],
    ]
    names: dict[str, Any] = {}
    for each in (money, line):
        fastavro.parse_schema(json.loads(each.text), named_schemas=names)
    whole = fastavro.parse_schema(json.loads(order.text), named_schemas=names)
    read: Any = fastavro.schemaless_reader(io.BytesIO(data[5:]), whole, None)
    assert Order.model_validate(read) == ORDER
    assert orders.decode(data) == ORDER


def test_json_refers_to_documents_of_other_subjects(registry: Registry) -> None:
    orders = started(json_schema, Order, registry, references=SUBJECTS)
    data = orders.encode(ORDER)

    order, line = (newest(registry, subject).schema for subject in ("orders-value", "lines"))
    assert order.references == (Reference("Line.json", "lines", 1), Reference("Money.json", "money", 1))
    assert line.references == (Reference("Money.json", "money", 1),)
    assert json.loads(order.text)["properties"]["lines"]["items"] == {"$ref": "Line.json"}
    assert "definitions" not in json.loads(order.text)
    assert orders.decode(data) == ORDER


def test_protobuf_registers_the_files_that_are_imported(registry: Registry) -> None:
    money = proto3("message Money { int64 cents = 1; }", package="com.shop.money")
    line = proto3('import "money.proto";', "message Line { com.shop.money.Money price = 1; }")
    order = proto3('import "line.proto";', 'import "money.proto";', "message Order { repeated Line lines = 1; }")
    tp = classes(order, line=line, money=money)["Order"]
    value = tp(lines=[{"price": {"cents": 5}}])

    orders = started(protobuf, tp, registry, references={"money.proto": "money"})

    kept = newest(registry, "orders-value").schema
    assert kept.references == (Reference("line.proto", "line.proto", 1), Reference("money.proto", "money", 1))
    assert newest(registry, "line.proto").schema.references == (Reference("money.proto", "money", 1),)
    assert orders.decode(orders.encode(value)) == value
    with pytest.raises(PlanError, match=r"shop\.proto imports no such file"):
        protobuf(tp, registry=registry, references={"monye.proto": "money"})


@pytest.mark.parametrize("language", [avro, json_schema])
def test_without_auto_register_the_start_says_which_subjects_are_needed(registry: Registry, language: Any) -> None:
    strict = language(Order, registry=registry, references=SUBJECTS).for_topic("orders", "value")

    with pytest.raises(ConfigError, match=r"behind those that it refers to \(subjects money, lines\): \{"):
        strict.check()
    assert registry.subjects() == []
    started(language, Order, registry, references=SUBJECTS)
    strict.check()
    assert "; it refers to money, lines" in strict.describe()


@pytest.mark.parametrize("language", [avro, json_schema])
def test_what_others_have_registered_with_references_is_written_with_by_a_type_that_holds_all(
    registry: Registry, language: Any
) -> None:
    """And the other way round it is not found: nobody says where the parts are."""
    parts = started(language, Order, registry, references=SUBJECTS)
    whole = language(Order, registry=registry).for_topic("orders", "value")

    whole.check()

    assert whole.encode(ORDER) == parts.encode(ORDER)
    assert (whole.compare_schema(reading=False).problems, whole.compare_schema(reading=True).problems) == ([], [])


def test_a_schema_without_references_is_the_one_that_is_derived() -> None:
    for tp in (Order, Twin, Node):
        assert split_by_subject(avro_schema(tp), None, {}).text == json.dumps(avro_schema(tp))


@pytest.mark.parametrize(
    ("language", "tp", "references", "said"),
    [
        (avro, Order, {Coin: "coins"}, r"Order does not contain this type; it contains: (Line, Money|Money, Line)"),
        (avro, Order, {Order: "orders"}, "Order does not contain this type"),
        (avro, Twin, {Left: "l", Right: "r"}, "Left and Right both contain Coin: give it a subject too"),
        (avro, Node, {Leaf: "leaf"}, "Node and Leaf contain each other"),
        (json_schema, Order, {Coin: "coins"}, "Order does not contain this type"),
        (json_schema, Order, {Line: ""}, "the subject must be a string that is not empty"),
    ],
)
def test_references_that_cannot_be_are_refused(
    registry: Registry, language: Any, tp: Any, references: Any, said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        language(tp, registry=registry, references=references)


def test_types_that_both_parts_hold_may_have_subjects_too(registry: Registry) -> None:
    twins = started(avro, Twin, registry, references={Left: "l", Right: "r", Coin: "coins"})
    value = Twin(Left(Coin(1)), Right(Coin(2)))

    assert twins.decode(twins.encode(value)) == value
    assert [each.name for each in newest(registry, "orders-value").schema.references] == ["Left", "Right"]


def test_a_part_has_all_definitions_below_it_and_refers_to_what_any_of_them_needs(registry: Registry) -> None:
    """A chest has a box, which has a purse, which has coins of another subject and may have a box."""
    started(json_schema, Chest, registry, references={Coin: "coin"})
    chest = newest(registry, "orders-value").schema
    assert json.loads(chest.text)["definitions"].keys() == {"Box", "Purse"}
    assert chest.references == (Reference("Coin.json", "coin", 1),)

    parts = split_by_subject(avro_schema(Chest), None, {"Coin": "coin"})
    (box,) = json.loads(parts.text)["fields"]
    (purse,) = box["type"]["fields"]
    assert [field["type"] for field in purse["type"]["fields"]] == ["Coin", ["null", "Box"]]
    assert [(need.name, need.subject) for need in parts.needs] == [("Coin", "coin")]


def test_json_of_types_that_hold_each_other(registry: Registry) -> None:
    """The definition of the whole stands in the part, too."""
    nodes = started(json_schema, Node, registry, references={Leaf: "leaf"})
    value = Node("a", Leaf(Node("b", Leaf())))

    assert nodes.decode(nodes.encode(value)) == value
    assert nodes.compare_schema(reading=True).problems == []
    assert nodes.compare_schema(reading=False).differences == []


def test_definitions_of_a_part_are_its_own(registry: Registry) -> None:
    """Two documents may call different things alike."""
    registry.register("line", RegisteredSchema("JSON", json.dumps({
        "type": "object", "properties": {"article": {"type": "string"}, "price": {"$ref": "#/definitions/Money"}},
        "required": ["article", "price"],
        "definitions": {"Money": {"type": "object", "properties": {"cents": {"type": "integer"}},
                                  "required": ["cents"]}},
    })))  # fmt: skip
    registry.register("orders-value", RegisteredSchema("JSON", json.dumps({
        "type": "object", "properties": {"user": {"type": "string"},
                                         "lines": {"type": "array", "items": {"$ref": "Line.json"}}},
        "required": ["user"],
        "definitions": {"Money": {"type": "string"}},
    }), (Reference("Line.json", "line", 1),)))  # fmt: skip
    orders = json_schema(Order, registry=registry).for_topic("orders", "value")

    assert orders.compare_schema(reading=True).problems == []
