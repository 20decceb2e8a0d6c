"""Formats of a registry: ``python -m benchmarks.schemas``. What they cost beside the bare libraries that they stand on.

One record with a time, an enum and a list of records, in memory, without Kafka:

    registry        ``avro(…)``, ``protobuf(…)``, ``json_schema(…)``: the id looked up, the
                    writer's schema resolved, the value checked
    bare            the library, one call, for one schema that is known beforehand: fastavro with pydantic; protobuf;
                    pydantic

Both take turns; figures are the least CPU time of a turn, in µs a value: what disturbs a turn only adds.
"""

from __future__ import annotations

import argparse
import datetime
import enum
import io
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import fastavro
from pydantic import BaseModel

from kafka_eos.schemas import AvroCodec, Registry, avro, json_schema, protobuf
from kafka_eos.schemas.languages.protobuf.files import opened
from kafka_eos.schemas.registries.format import RegistryFormat


class Kind(enum.Enum):
    NEW = "NEW"
    PAID = "PAID"


class Line(BaseModel):
    article: str
    quantity: int


class Order(BaseModel):
    user: str
    placed: datetime.datetime
    kind: Kind
    lines: list[Line]


ORDER = Order(
    user="ann",
    placed=datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
    kind=Kind.PAID,
    lines=[Line(article="a-1", quantity=1), Line(article="b-2", quantity=2)],
)


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  enum Kind { NEW = 0; PAID = 1; }
  message Line { string article = 1; int64 quantity = 2; }
  string user = 1;
  google.protobuf.Timestamp placed = 2;
  Kind kind = 3;
  repeated Line lines = 4;
}
"""
Both: TypeAlias = "tuple[Callable[[], Any], Callable[[], Any]]"
"""With the registry's codec, and bare."""


def contenders() -> Mapping[str, Both]:
    """By what is done."""
    return {**in_avro(), **in_protobuf(), **in_json()}


def registered(given: RegistryFormat[Any]) -> Any:
    """The codec of a job that has started."""
    codec = given.for_topic("orders", "value")
    codec.check()
    return codec


def in_avro() -> Mapping[str, Both]:
    codec = registered(avro(Order, registry=Registry("mock://avro"), auto_register=True))
    schema = fastavro.parse_schema(AvroCodec(Order).schema)  # type: ignore[arg-type]
    data = codec.encode(ORDER)
    body = data[5:]

    def encode() -> bytes:
        plain = ORDER.model_dump()
        plain["kind"] = plain["kind"].value
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, plain)
        return out.getvalue()

    def decode() -> Order:
        return Order.model_validate(fastavro.schemaless_reader(io.BytesIO(body), schema, None))

    assert (encode(), decode()) == (body, codec.decode(data))
    return {
        "avro encode": (lambda: codec.encode(ORDER), encode),
        "avro decode": (lambda: codec.decode(data), decode),
    }


def in_protobuf() -> Mapping[str, Both]:
    from google.protobuf.message_factory import GetMessageClass

    tp = GetMessageClass(opened(PROTO, {}).message_types_by_name["Order"])
    codec = registered(protobuf(tp, registry=Registry("mock://protobuf"), auto_register=True))
    order: Any = tp(user="ann", placed={"seconds": 1_704_153_600}, kind=1,
                    lines=[{"article": "a-1", "quantity": 1}, {"article": "b-2", "quantity": 2}])  # fmt: skip
    data = codec.encode(order)
    body = data[6:]
    encode, decode = order.SerializeToString, tp.FromString

    assert (encode(), decode(body)) == (body, codec.decode(data))
    return {
        "protobuf encode": (lambda: codec.encode(order), lambda: encode()),
        "protobuf decode": (lambda: codec.decode(data), lambda: decode(body)),
    }


def in_json() -> Mapping[str, Both]:
    codec = registered(json_schema(Order, registry=Registry("mock://json"), auto_register=True))
    data = codec.encode(ORDER)
    body = data[5:]

    def encode() -> bytes:
        return ORDER.model_dump_json().encode()

    def decode() -> Order:
        return Order.model_validate_json(body)

    assert (encode(), decode()) == (body, codec.decode(data))
    return {
        "json encode": (lambda: codec.encode(ORDER), encode),
        "json decode": (lambda: codec.decode(data), decode),
    }


def measure(values: int, turns: int) -> dict[str, tuple[float, float]]:
    """µs a value of each, by what is done."""
    found: dict[str, tuple[float, float]] = {}
    for what, both in contenders().items():
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(turns):
            for times, fn in zip(taken, both, strict=True):
                begun = time.process_time()
                for _ in range(values):
                    fn()
                times.append((time.process_time() - begun) / values * 1e6)
        found[what] = min(taken[0]), min(taken[1])
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schemas", description=__doc__)
    parser.add_argument("--values", type=int, default=5000, help="in each turn")
    parser.add_argument("--turns", type=int, default=15)
    given = parser.parse_args(arguments)
    for what, (registry, bare) in measure(given.values, given.turns).items():
        print(f"{what:16}  registry {registry:6.2f} µs  bare {bare:6.2f} µs  ratio {registry / bare:.2f}")


if __name__ == "__main__":
    main()
