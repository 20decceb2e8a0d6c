"""Formats of a registry: ``python -m benchmarks.schemas``. What they cost beside the bare libraries that they stand on.

One record with a time, an enum and a list of records, as a pydantic model, in memory, without Kafka:

    registry        ``avro(…)``: the id looked up, the writer's schema resolved, the model checked
    bare            fastavro and pydantic, one call each, for one schema that is known beforehand

Both take turns; figures are the least CPU time of a turn, in µs a value: what disturbs a turn only adds.
"""

from __future__ import annotations

import argparse
import datetime
import enum
import io
import time
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
from pydantic import BaseModel

from kafka_eos.schemas import AvroCodec, Registry, avro


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


def contenders() -> Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """By what is done: with the registry's codec, and bare."""
    codec = avro(Order, registry=Registry("mock://benchmark"), auto_register=True).for_topic("orders", "value")
    codec.check()
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
    return {"encode": (lambda: codec.encode(ORDER), encode), "decode": (lambda: codec.decode(data), decode)}


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
        print(f"{what}  registry {registry:6.2f} µs  bare {bare:6.2f} µs  ratio {registry / bare:.2f}")


if __name__ == "__main__":
    main()
