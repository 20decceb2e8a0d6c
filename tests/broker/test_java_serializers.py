"""What we write Java's own serializers read, and the other way round: Apicurio's for Kafka, and Protobuf's library."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from py4j.protocol import Py4JJavaError
from pydantic import BaseModel, Field

from kafka_eos.codecs import Registry, avro, json_schema, protobuf
from tests import protobuf_witness
from tests.avro_witness import record
from tests.java_serdes import JavaSerdes, java_serdes
from tests.registry_server import RegistryServer

pytestmark = pytest.mark.xdist_group("java-serdes")  # one JVM for all of them
PREFIX = 5
"""Bytes before the value: a zero and the id of its schema."""


@pytest.fixture(scope="module")
def java() -> Iterator[JavaSerdes]:
    with java_serdes() as serdes:
        yield serdes


class Kind(enum.Enum):
    RETAIL = "RETAIL"
    TRADE = "TRADE"


class Line(BaseModel):
    quantity: int
    price: Annotated[Decimal, Field(max_digits=12, decimal_places=2)]


class Order(BaseModel):
    id: UUID
    at: datetime
    day: date
    kind: Kind
    lines: list[Line]
    tags: dict[str, int]
    note: str | None = None
    picture: bytes = b""
    weight: float = 1.5


ORDER = Order(
    id=UUID(int=5),
    at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    day=date(2026, 1, 2),
    kind=Kind.TRADE,
    lines=[Line(quantity=-3, price=Decimal("12.50"))],
    tags={"x": -1},
    note="é",
)
IN_AVRO = {
    "id": str(UUID(int=5)),
    "at": 1767323045678901,
    "day": 20455,
    "kind": "TRADE",
    "lines": [{"quantity": -3, "price": "\x04\xe2"}],
    "tags": {"x": -1},
    "note": {"string": "é"},
    "picture": "",
    "weight": 1.5,
}


def test_avro(java: JavaSerdes, registry: RegistryServer) -> None:
    """Logical types, an enum, a union and nested records, byte by byte."""
    ours = avro(Order, registry=Registry(registry.url), auto_register=True).for_topic("java-ours", "value")
    ours.check()

    assert java.avro_told(registry.url, "java-ours", ours.encode(ORDER)) == IN_AVRO

    schema: Any = ours.schema
    (data,) = java.avro_written(registry.url, "java-theirs", schema, [IN_AVRO])
    theirs = avro(Order, registry=Registry(registry.url)).for_topic("java-theirs", "value")
    assert theirs.decode(data) == ORDER
    assert data == theirs.encode(ORDER), "they registered what we would have, and it has one id"


def test_a_record_of_java_with_other_fields_is_read(java: JavaSerdes, registry: RegistryServer) -> None:
    """In another order, one of ours is missing, and one is theirs alone."""
    schema = record("com.shop.Sale", source="string", price="int", user="string")
    (data,) = java.avro_written(registry.url, "java-other", schema, [{"source": "web", "price": 3, "user": "ann"}])

    class Sale(msgspec.Struct):
        user: str
        price: float
        note: str = "none"

    sales = avro(Sale, registry=Registry(registry.url)).for_topic("java-other", "value")
    assert sales.decode(data) == Sale(user="ann", price=3.0)


class Sold(msgspec.Struct):
    user: str
    price: int


def test_avro_with_the_id_of_its_schema_in_a_header(java: JavaSerdes, registry: RegistryServer) -> None:
    schema = record("Sold", user="string", price="long")
    data, headers = java.avro_with_headers(registry.url, "java-headers", schema, {"user": "ann", "price": 3})
    sold: Any = avro(Sold, registry=Registry(registry.url), id_in="apicurio-header").for_topic("java-headers", "value")

    assert sold.decode_with(data, headers) == Sold("ann", 3)
    assert sold.encode(Sold("ann", 3)) == data
    assert {*sold.headers()} <= {*headers}
    told = java.avro_told_by_headers(registry.url, "java-headers", sold.encode(Sold("eve", 4)), sold.headers())
    assert json.loads(told) == {"user": "eve", "price": 4}


class Basket(msgspec.Struct):
    user: str
    numbers: list[int] = []


class Price(msgspec.Struct):
    cents: int


class Priced(msgspec.Struct):
    user: str
    price: Price


def test_avro_that_refers_to_another_schema_is_read_by_java(java: JavaSerdes, registry: RegistryServer) -> None:
    """It asks the registry for the other one."""
    made: Any = avro(
        Priced, registry=Registry(registry.url), references={Price: "java-parts-price"}, auto_register=True
    )
    codec = made.for_topic("java-parts", "value")
    codec.check()

    told = java.avro_told(registry.url, "java-parts", codec.encode(Priced("ann", Price(3))))

    assert told == {"user": "ann", "price": {"cents": 3}}


def test_json_schema(java: JavaSerdes, registry: RegistryServer) -> None:
    """Java compares each value with the schema that we have registered, when it reads and when it writes."""
    baskets = json_schema(Basket, registry=Registry(registry.url), auto_register=True).for_topic("java-json", "value")
    baskets.check()

    told = java.json_told(registry.url, "java-json", baskets.encode(Basket("ann", [1])))
    assert told == {"user": "ann", "numbers": [1]}
    data = java.json_written(registry.url, "java-json", {"user": "eve"})
    assert baskets.decode(data) == Basket("eve")
    with pytest.raises(Py4JJavaError):
        java.json_written(registry.url, "java-json", {"user": 5})


def test_protobuf(java: JavaSerdes, registry: RegistryServer) -> None:
    text = protobuf_witness.proto3(
        'import "google/protobuf/timestamp.proto";',
        "message Other { int32 a = 1; }",
        "message Line { string article = 1; google.protobuf.Timestamp at = 2; map<string, int64> tags = 3; "
        "oneof one { Other other = 4; sint32 number = 5; } optional int32 maybe = 6; repeated double sizes = 7; }",
    )
    tp = protobuf_witness.classes(text)["Line"]
    files = [_file(timestamp_pb2.DESCRIPTOR), _file(tp.DESCRIPTOR.file)]
    value = tp(article="a", at={"seconds": 5}, tags={"x": 1}, number=-2, maybe=0, sizes=[0.5, 2])
    in_json = {
        "article": "a",
        "at": "1970-01-01T00:00:05Z",
        "tags": {"x": "1"},
        "number": -2,
        "maybe": 0,
        "sizes": [0.5, 2.0],
    }
    lines = protobuf(tp, registry=Registry(registry.url), auto_register=True).for_topic("java-proto", "value")
    lines.check()

    data = lines.encode(value)
    prefix = PREFIX + len(SECOND_MESSAGE)
    assert data[PREFIX:prefix] == SECOND_MESSAGE
    assert java.protobuf_told(files, "Line", data[prefix:]) == in_json
    assert lines.decode(data[:prefix] + java.protobuf_written(files, "Line", in_json)) == value


SECOND_MESSAGE = b"\x02\x02"
"""Which message of its file it is, as Confluent's format has it: a path of one step, number 1; both in zigzag."""


def _file(descriptor: Any) -> FileDescriptorProto:
    file = FileDescriptorProto()
    descriptor.CopyToProto(file)
    return file
