"""Avro in Confluent's wire format, with a registry in memory. What a real one answers is in ``test_answers``."""

from __future__ import annotations

import datetime
import enum
import io
import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, cast
from uuid import uuid4

import fastavro
import pytest
from pydantic import BaseModel, Field

from kafka_eos.abc.codec import Codec, RecordPart
from kafka_eos.codecs import Registry, avro
from kafka_eos.codecs.avro import foreign_schemas as foreign
from kafka_eos.codecs.registry.registry_client import Reference, RegisteredSchema
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.fault_attribution import ErrorRules, Fault
from tests.avro_witness import record


class Kind(enum.Enum):
    A = "A"
    B = "B"


class Only(BaseModel):
    id: int


class Item(BaseModel):
    quantity: int


class Price(BaseModel):
    amount: Annotated[Decimal, Field(max_digits=12, decimal_places=2)]
    before: Decimal | None = Field(default=None, max_digits=5, decimal_places=1)
    parts: list[Annotated[Decimal, Field(max_digits=12, decimal_places=2)]] = []


class Order(BaseModel):
    user: str
    at: datetime.datetime
    items: list[Item] = []
    kind: Kind = Kind.A
    note: Item | None = None


class Tree(BaseModel):
    children: list[Tree] = []


ORDER = Order(
    user="ann",
    at=datetime.datetime(2024, 1, 2, 3, 4, 5, 6000, tzinfo=datetime.UTC),
    items=[Item(quantity=1), Item(quantity=2)],
    kind=Kind.B,
    note=Item(quantity=3),
)


@pytest.fixture
def registry() -> Registry:
    """One in memory, which only this test has."""
    return Registry(f"mock://{uuid4()}")


def codec(tp: type[Any], registry: Registry, topic: str = "orders", **options: Any) -> Codec[Any]:
    """Of a job that has started, unless nothing is to be registered."""
    made: Any = avro(tp, registry=registry, **{"auto_register": True, **options}).for_topic(topic, "value")
    if options.get("auto_register", True) and registry.url.startswith("mock:"):
        made.check()
    return cast("Codec[Any]", made)


def registered(registry: Registry, schema: Any, *references: Reference, subject: str = "theirs") -> int:
    return registry.register(subject, RegisteredSchema("AVRO", json.dumps(schema), references))


def by_others(schema_id: int, schema: Any, value: Any, *named: Any) -> bytes:
    """The value as another program writes it."""
    names: dict[str, Any] = {}
    for each in named:
        fastavro.parse_schema(each, named_schemas=names)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=names), value)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


def test_a_value_comes_back(registry: Registry) -> None:
    orders = codec(Order, registry)

    assert orders.decode(orders.encode(ORDER)) == ORDER


def test_decimals_come_back(registry: Registry) -> None:
    price = Price(amount=Decimal("-9999999999.99"), before=Decimal("0.5"), parts=[Decimal("1.25"), Decimal("0")])
    prices = codec(Price, registry)

    assert prices.decode(prices.encode(price)) == price


@pytest.mark.parametrize("amount", ["1.234", "12345678901.00", "NaN", "Infinity"])
def test_a_decimal_that_does_not_fit_is_refused(registry: Registry, amount: str) -> None:
    prices = codec(Price, registry)

    with pytest.raises(ValueError, match="not a valid Price"):
        prices.encode(Price.model_construct(amount=Decimal(amount), before=None, parts=[]))


@pytest.mark.parametrize("length", [6, 1000, 1_000_000])
def test_a_decimal_with_more_digits_than_its_schema_is_refused_and_not_rounded(registry: Registry, length: int) -> None:
    prices = codec(Price, registry)
    header = prices.encode(Price(amount=Decimal(1)))[:5]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "bytes", b"\x11" * length)

    with pytest.raises(ValueError, match="more digits than the 12 of its schema"):
        prices.decode(header + out.getvalue() + b"\0\0")


@pytest.mark.parametrize(
    "invalid",
    [
        {"precision": 10**9, "scale": 0},
        {"precision": 64, "scale": 127},
        {"precision": "9"},
        {"precision": 0},
        {"precision": 9, "scale": -1},
        {},
    ],
    ids=str,
)
def test_an_invalid_decimal_is_ignored_as_the_specification_asks(registry: Registry, invalid: dict[str, Any]) -> None:
    """Connect registers ``decimal(64,127)`` for a NUMBER of Oracle. Its values are bytes, also of a field that is not
    read."""
    schema = record("R", id="long", amount={"type": "bytes", "logicalType": "decimal", **invalid})
    data = struct.pack(">bI", 0, registered(registry, schema)) + b"\2\4ab"

    class Amount(BaseModel):
        amount: Annotated[Decimal, Field(max_digits=9, decimal_places=2)]

    assert codec(Only, registry).decode(data) == Only(id=1)
    with pytest.raises(ValueError, match=r"amount is bytes there, decimal\(9, 2\) here"):
        codec(Amount, registry).decode(data)


@pytest.mark.parametrize(
    ("tp", "default"), [("long", "x"), (["null", "string"], "x"), ({"type": "array", "items": "int"}, "[]")], ids=str
)
def test_an_invalid_default_of_a_writer_does_not_matter(registry: Registry, tp: Any, default: Any) -> None:
    schema_id = registered(registry, record("R", id="long", more=(tp, default)))

    assert codec(Only, registry).decode(struct.pack(">bI", 0, schema_id) + b"\2\0") == Only(id=1)


def test_a_decimal_without_digits_has_no_schema(registry: Registry) -> None:
    class Bare(BaseModel):
        amount: Decimal

    with pytest.raises(PlanError, match=r"Bare\.amount: declare the digits of the Decimal"):
        avro(Bare, registry=registry)


def test_what_was_registered_before_is_found_without_registering(registry: Registry) -> None:
    written = codec(Order, registry).encode(ORDER)

    assert codec(Order, registry, auto_register=False).encode(ORDER) == written


def test_nothing_is_registered_unless_asked_for(registry: Registry) -> None:
    strict = codec(Order, registry, auto_register=False)

    with pytest.raises(
        ConfigError,
        match=r"subject 'orders-value' .* does not have the schema of Order. The subject does not exist.*auto_reg",
    ):
        strict.encode(ORDER)


def test_only_the_check_at_the_start_registers(registry: Registry) -> None:
    """The audit encodes too, maybe with a pipeline that nobody has started yet."""
    edited: Any = avro(Order, registry=registry, auto_register=True).for_topic("orders", "value")

    with pytest.raises(ConfigError, match="does not have the schema of Order"):
        edited.encode(ORDER)
    assert registry.get_latest_version("orders-value") is None

    (notice,) = edited.check()
    assert f"{registry.url} is in the memory of each process" in notice
    assert registry.get_latest_version("orders-value") is not None
    assert edited.decode(edited.encode(ORDER)) == ORDER


def test_the_newest_version_is_compared_with_what_would_be_written(registry: Registry) -> None:
    """One line for each difference, with its path."""
    line = record("com.theirs.Line", quantity="int", colour="string")
    theirs = record(
        "Order",
        user=["null", "string"],
        at={"type": "long", "logicalType": "timestamp-millis"},
        items={"type": "array", "items": line},
        kind=({"type": "enum", "name": "Kind", "symbols": ["A"]}, "A"),
        shop="string",
    )
    registered(registry, record("Older"), subject="orders-value")
    registered(registry, theirs, subject="orders-value")

    with pytest.raises(ConfigError) as refused:
        codec(Order, registry, auto_register=False).encode(ORDER)

    _, _, said = str(refused.value).partition("In its newest version, 2, it differs: ")
    assert said.partition(". Register it")[0].split("; ") == [
        "user is null | string there, string here",
        "at is timestamp-millis there, timestamp-micros here",
        "items[] is called com.theirs.Line there, Item here",
        "items[].quantity is int there, long here",
        "items[].colour (string) is only there",
        "items has no default there, the default [] here",
        "kind is enum Kind of A there, enum Kind of A, B here",
        "shop (string) is only there",
        "note (null | record Item) is only here",
    ]


def test_what_differs_in_its_documentation_alone_is_told(registry: Registry) -> None:
    registered(registry, {**record("Item", quantity="long"), "doc": "theirs"}, subject="orders-value")

    with pytest.raises(ConfigError, match="it differs: in documentation or properties alone"):
        codec(Item, registry, auto_register=False).encode(Item(quantity=1))


@pytest.mark.parametrize(
    ("subject", "wanted"),
    [
        ("topic", "orders-value"),
        ("record", "com.shop.Order"),
        ("topic-record", "orders-com.shop.Order"),
        (lambda topic, part, name: f"{part}/{topic}/{name}", "value/orders/com.shop.Order"),
    ],
)
def test_the_subject_is_called_as_the_user_says(registry: Registry, subject: Any, wanted: str) -> None:
    made: Any = codec(Order, registry, subject=subject, namespace="com.shop")

    assert made.subject == wanted


def test_keys_have_subjects_of_their_own(registry: Registry) -> None:
    part: RecordPart = "key"

    made: Any = avro(Order, registry=registry).for_topic("orders", part)

    assert made.subject == "orders-key"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"subject": "topics"}, ConfigError, 'use "topic", "record", "topic-record" or a function'),
        ({"namespace": "com..shop"}, PlanError, "namespace='com..shop'"),
    ],
)
def test_wrong_options_are_refused(registry: Registry, options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        avro(Order, registry=registry, **options)


def test_what_another_team_calls_otherwise_is_read_by_the_names_of_its_fields(registry: Registry) -> None:
    """Other names of records and enums, other order, fields of their own, and milliseconds for microseconds."""
    item = record("com.theirs.Line", colour="string", quantity="int")
    theirs = record(
        "com.theirs.OrderPlaced",
        extra=["null", item],
        kind={"type": "enum", "name": "com.theirs.Sort", "symbols": ["A", "B", "C"]},
        note=["null", "com.theirs.Line"],
        items={"type": "array", "items": "com.theirs.Line"},
        at={"type": "long", "logicalType": "timestamp-millis"},
        user="string",
    )
    lines = [{"colour": "red", "quantity": each.quantity} for each in ORDER.items]
    value = {"extra": lines[0], "kind": "B", "note": {"colour": "", "quantity": 3}, "items": lines, "at": ORDER.at,
             "user": "ann"}  # fmt: skip

    data = by_others(registered(registry, theirs), theirs, value)

    assert codec(Order, registry).decode(data) == ORDER


def test_schemas_that_refer_to_others_are_read(registry: Registry) -> None:
    """Two subjects deep."""
    number = {"type": "fixed", "name": "com.theirs.Number", "size": 2}
    line = record("com.theirs.Line", number="com.theirs.Number", quantity="long")
    order = record("com.theirs.Placed", user="string", at={"type": "long", "logicalType": "timestamp-micros"},
                   note="com.theirs.Line")  # fmt: skip
    registered(registry, number, subject="number")
    registered(registry, line, Reference("com.theirs.Number", "number", 1), subject="line")
    schema_id = registered(registry, order, Reference("com.theirs.Line", "line", 1))

    data = by_others(schema_id, order, {"user": "ann", "at": ORDER.at, "note": {"number": b"ab", "quantity": 3}},
                     number, line)  # fmt: skip

    assert codec(Order, registry).decode(data) == Order(user="ann", at=ORDER.at, note=Item(quantity=3))


def test_each_record_is_read_by_the_schema_that_it_was_written_with(registry: Registry) -> None:
    """A topic whose writer changes in mid-stream."""
    old = record("Line", quantity="int")
    new = record("Line", quantity="long", colour=("string", "red"))
    first, second = registered(registry, old), registered(registry, new)
    rows = [by_others(first, old, {"quantity": 1}), by_others(second, new, {"quantity": 2, "colour": "blue"})]

    lines = codec(Item, registry)

    assert [lines.decode(data).quantity for data in [*rows, *rows]] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda good: b"", "begins with nothing"),
        (lambda good: b"\0\0\0", "begins with 00 00 00"),
        (lambda good: b'{"user": "ann"}', "begins with 7b 22 75 73 65"),
        (lambda good: b"\1" + good[1:], "begins with 01"),
        (lambda good: b"\0\0\0\x12\x67" + good[5:], "has no schema 4711"),
        (lambda good: good[:-1], "not a valid Order"),
        (lambda good: good + b"\0", "1 bytes too many"),
        (lambda good: good[:5] + b"\xff" * 20, "not a valid Order"),
    ],
)
def test_a_bad_record_is_its_own_fault(registry: Registry, data: Callable[[bytes], bytes], said: str) -> None:
    orders = codec(Order, registry)
    good = orders.encode(ORDER)

    with pytest.raises(ValueError, match=said) as raised:
        orders.decode(data(good))
    assert ErrorRules().classify(raised.value) is Fault.RECORD


def test_a_record_that_is_cut_off_in_a_field_that_is_not_read_is_refused(registry: Registry) -> None:
    theirs = record("Line", quantity="int", colour="string")
    data = by_others(registered(registry, theirs), theirs, {"quantity": 1, "colour": "dark red"})

    with pytest.raises(ValueError, match="it is cut off"):
        codec(Item, registry).decode(data[:-1])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (record("Line", colour="string"), "not a valid Item"),
        ({"type": "array", "items": "null"}, "arrays of null are not read"),
        (record("L", many={"type": "array", "items": record("Empty")}, quantity="int"), "arrays of Empty are not read"),
        (record("L", many={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "arrays of F"),
        (record("Line", quantity="no.such.Type"), "not a usable Avro schema"),
    ],
)
def test_a_schema_that_does_not_fit_is_the_records_fault(registry: Registry, schema: Any, said: str) -> None:
    data = struct.pack(">bI", 0, registered(registry, schema)) + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" * 10

    with pytest.raises(ValueError, match=said) as raised:
        codec(Item, registry).decode(data)
    assert ErrorRules().classify(raised.value) is Fault.RECORD


def test_values_that_are_nested_too_deeply_are_refused(registry: Registry) -> None:
    """The reader in C would overrun the stack of the process."""
    trees = codec(Tree, registry)
    shallow = Tree(children=[Tree(children=[Tree()])])
    header = trees.encode(shallow)[:5]

    assert trees.decode(trees.encode(shallow)) == shallow
    with pytest.raises(ValueError, match="not a valid Tree"):
        trees.decode(header + b"\2" * 200_000 + b"\0" * 200_001)


def test_a_schema_of_another_kind_is_refused(registry: Registry) -> None:
    schema_id = registry.register("other", RegisteredSchema("JSON", '{"type": "object"}'))

    with pytest.raises(ValueError, match=f"schema {schema_id} is one of kind JSON, not AVRO"):
        codec(Order, registry).decode(struct.pack(">bI", 0, schema_id) + b"{}")


def test_no_login_is_shown() -> None:
    secrets = {"basic.auth.user.info": "ann:hidden1", "proxy": "http://bob:hidden2@proxy:1", "ssl.ca.location": None}
    in_config = Registry("http://registry:8081", config=secrets)
    in_url = Registry("http://ann:hidden3@registry:8081,http://ann:hidden4@other:8081")
    source = KafkaSource("orders", value=avro(Order, registry=in_url))

    shown = f"{in_config!r} {in_url!r} {in_url.url} {source!r} {source.describe()}"

    assert "hidden" not in shown
    assert in_url.url == "http://registry:8081,http://other:8081"


def test_a_setting_that_the_client_does_not_know_is_refused() -> None:
    """Its value is not shown: it may be a secret under a mistyped name."""
    with pytest.raises(ConfigError, match="Unrecognized properties: basic.auth.userinfo$"):
        Registry("http://registry:8081", config={"basic.auth.userinfo": "ann:hidden"})


def test_sources_and_sinks_tell_where_their_schemas_come_from(registry: Registry) -> None:
    orders = avro(Order, registry=registry)

    source = KafkaSource.records("orders", key=avro(Item, registry=registry), value=orders)
    sink = KafkaSink("orders", value=orders, key=lambda order: order.user)

    assert source.describe()["key"] == f"Avro Item, subject orders-key of {registry.url}"
    assert sink.describe()["value"] == f"Avro Order, subject orders-value of {registry.url}"
    assert "value" not in KafkaSink("orders", value=Order).describe()


def test_a_union_of_thousands_of_records_is_looked_through_once(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 20,000 took longer than a worker is given."""
    looked_at, kind = [0], foreign._kind

    def counted(*arguments: Any) -> Any:
        looked_at[0] += 1
        return kind(*arguments)

    monkeypatch.setattr(foreign, "_kind", counted)
    theirs = record("Line", quantity=["long", *(record(f"R{number}") for number in range(1000))])

    data = by_others(registered(registry, theirs), theirs, {"quantity": 3})

    assert codec(Item, registry).decode(data) == Item(quantity=3)
    assert looked_at[0] < 10_000
