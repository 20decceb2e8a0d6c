"""Formats of a registry: ``python -m benchmarks.schemas``. What they cost beside the bare libraries that they stand on.

Batches of one record with a time, an enum and a list of records, in memory, without Kafka. Both make the same values of
the same bytes, or the same bytes of the same values, as one poll of a source and one write of a sink do:

    registry        ``avro(…)``, ``protobuf(…)``, ``json_schema(…)``: the id looked up, the
                    writer's schema resolved, the value checked
    bare            the libraries in a loop, for one schema that is known beforehand, behind or before an id that nobody
                    looks at: fastavro with pydantic; protobuf; pydantic. What is written as JSON is compared with its
                    schema by both, with msgspec and jsonschema-rs; ``json encode, unchecked`` has pydantic alone

Both take turns; figures are the least CPU time of a turn, in µs a value: what disturbs a turn only adds.
"""

from __future__ import annotations

import argparse
import datetime
import enum
import io
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import fastavro
import jsonschema_rs
import msgspec
from pydantic import BaseModel

from kafka_eos.codecs import AvroCodec, Registry, avro, json_schema, protobuf
from kafka_eos.codecs.protobuf.descriptor_pools import load_schema
from kafka_eos.codecs.registry.registry_format import RegistryFormat
from kafka_eos.connectors._shared.row_errors import map_rows


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
BATCH: Final = 500
"""Records of a batch."""
Both: TypeAlias = "tuple[Callable[[], Any], Callable[[], Any]]"
"""A batch with the registry's codec, and bare."""


def contenders() -> Mapping[str, Both]:
    """By what is done."""
    return {**in_avro(), **in_protobuf(), **in_json()}


def registered(given: RegistryFormat[Any]) -> Any:
    """The codec of a job that has started."""
    codec = given.for_topic("orders", "value")
    codec.check()
    return codec


def both(codec: Any, value: Any, bare_encode: Callable[[Any], bytes], bare_decode: Callable[[bytes], Any],
         head: int = 5) -> tuple[Both, Both]:  # fmt: skip
    """What encodes, and what decodes, a batch of a value. ``head``: bytes before the value that the library writes."""
    first = codec.encode(value)
    values, datas, before = [value] * BATCH, [bytes(bytearray(first)) for _ in range(BATCH)], first[:head]
    assert bare_encode(value) == first[head:]
    assert bare_decode(first[head:]) == codec.decode(first)

    def encode() -> list[bytes]:
        made = codec.encode_batch(values)
        return map_rows(codec.encode, values) if made is None else made

    def decode() -> list[Any]:
        made = codec.decode_batch(datas)
        return map_rows(codec.decode, datas) if made is None else made

    return (
        (encode, lambda: [before + bare_encode(each) for each in values]),
        (decode, lambda: [bare_decode(data[head:]) for data in datas]),
    )


def in_avro() -> Mapping[str, Both]:
    codec = registered(avro(Order, registry=Registry("mock://avro"), auto_register=True))
    schema = fastavro.parse_schema(AvroCodec(Order).schema)  # type: ignore[arg-type]

    def encode(value: Order) -> bytes:
        plain = value.model_dump()
        plain["kind"] = plain["kind"].value
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, plain)
        return out.getvalue()

    def decode(body: bytes) -> Order:
        return Order.model_validate(fastavro.schemaless_reader(io.BytesIO(body), schema, None))

    encoding, decoding = both(codec, ORDER, encode, decode)
    return {"avro encode": encoding, "avro decode": decoding}


def in_protobuf() -> Mapping[str, Both]:
    from google.protobuf.message_factory import GetMessageClass

    tp: Any = GetMessageClass(load_schema(PROTO, {}).message_types_by_name["Order"])
    codec = registered(protobuf(tp, registry=Registry("mock://protobuf"), auto_register=True))
    order: Any = tp(user="ann", placed={"seconds": 1_704_153_600}, kind=1,
                    lines=[{"article": "a-1", "quantity": 1}, {"article": "b-2", "quantity": 2}])  # fmt: skip
    encoding, decoding = both(codec, order, tp.SerializeToString, tp.FromString, head=6)
    return {"protobuf encode": encoding, "protobuf decode": decoding}


def in_json() -> Mapping[str, Both]:
    codec = registered(json_schema(Order, registry=Registry("mock://json"), auto_register=True))
    fits, parsed = jsonschema_rs.Draft7Validator(codec.schema, validate_formats=True).is_valid, msgspec.json.decode

    def unchecked(order: Order) -> bytes:
        return order.model_dump_json().encode()

    def encode(order: Order) -> bytes:
        data = unchecked(order)
        if not fits(parsed(data)):
            raise ValueError(data)
        return data

    encoding, decoding = both(codec, ORDER, encode, Order.model_validate_json)
    alone, _ = both(codec, ORDER, unchecked, Order.model_validate_json)
    return {"json encode": encoding, "json encode, unchecked": alone, "json decode": decoding}


def measure(batches: int, turns: int) -> dict[str, tuple[float, float]]:
    """µs a value of each, by what is done."""
    found: dict[str, tuple[float, float]] = {}
    for what, pair in contenders().items():
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(turns):
            for times, fn in zip(taken, pair, strict=True):
                begun = time.process_time()
                for _ in range(batches):
                    fn()
                times.append((time.process_time() - begun) / batches / BATCH * 1e6)
        found[what] = min(taken[0]), min(taken[1])
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schemas", description=__doc__)
    parser.add_argument("--batches", type=int, default=10, help=f"of {BATCH} values, in each turn")
    parser.add_argument("--turns", type=int, default=15)
    given = parser.parse_args(arguments)
    for what, (registry, bare) in measure(given.batches, given.turns).items():
        print(f"{what:22}  registry {registry:6.2f} µs  bare {bare:6.2f} µs  ratio {registry / bare:.2f}")


if __name__ == "__main__":
    main()
