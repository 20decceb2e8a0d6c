"""Ten thousand hostile payloads for each codec of a topic: a value or a ValueError, in bounded memory."""

from __future__ import annotations

import datetime
import enum
import random
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, Field

from kafka_eos.attribution import Attribution, Fault
from kafka_eos.interfaces import Codec
from kafka_eos.schemas import JsonCodec, MsgpackCodec, Registry, avro, json_schema, protobuf
from tests.protobuf_witness import classes, proto3

PAYLOADS = 10_000
LARGE = 100_000
"""Bytes of the largest."""
MOST_MEMORY = 64 << 20


class Colour(enum.Enum):
    RED = "RED"
    BLUE = "BLUE"


class Tree(BaseModel):
    """Something of everything."""

    name: str
    weight: float = 0.0
    data: bytes = b""
    number: int | None = None
    price: Annotated[Decimal, Field(max_digits=12, decimal_places=2)] = Decimal("1.00")
    at: datetime.datetime = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
    day: datetime.date = datetime.date(2024, 1, 2)
    token: uuid.UUID = uuid.UUID(int=7)
    colour: Colour = Colour.BLUE
    labels: dict[str, str] = {}
    children: list[Tree] = []


class Twig(msgspec.Struct):
    name: str
    number: int | None = None
    labels: dict[str, str] = {}
    children: list[Twig] = []


def tree(depth: int) -> Tree:
    return Tree(name="t", labels={"a": "b"}, children=[tree(depth - 1)] * 2 if depth else [])


def twig(depth: int) -> Twig:
    return Twig("t", 1, {"a": "b"}, [twig(depth - 1)] * 2 if depth else [])


def in_avro() -> tuple[Codec[Any], Any]:
    registry = Registry(f"mock://{uuid.uuid4()}")
    codec = avro(Tree, registry=registry, auto_register=True).for_topic("trees", "value")
    codec.check()
    return codec, tree(3)


def message() -> tuple[Any, Any]:
    """A class with something of everything, and a message."""
    text = proto3(
        "message Twig { repeated Twig children = 1; string name = 2; map<string, Twig> labels = 3; Empty empty = 4; "
        "repeated bool flags = 5; repeated Empty empties = 6; oneof one { double weight = 7; bytes data = 8; } }",
        "message Empty {}",
    )
    tp = classes(text)["Twig"]

    def made(depth: int) -> Any:
        children = [made(depth - 1)] * 2 if depth else []
        return tp(name="t", labels={"a": tp()}, children=children, flags=[True], weight=0.5)

    return tp, made(3)


def in_protobuf() -> tuple[Codec[Any], Any]:
    tp, value = message()
    codec: Any = protobuf(tp, registry=Registry(f"mock://{uuid.uuid4()}"), auto_register=True)
    made = codec.for_topic("twigs", "value")
    made.check()
    return made, value


def bare_protobuf() -> tuple[Codec[Any], Any]:
    tp, value = message()
    return protobuf(tp), value


def in_json() -> tuple[Codec[Any], Any]:
    codec = json_schema(Tree, registry=Registry(f"mock://{uuid.uuid4()}"), auto_register=True)
    made = codec.for_topic("trees", "value")
    made.check()
    return made, tree(3)


CODECS: dict[str, Callable[[], tuple[Codec[Any], Any]]] = {
    "registry-avro": in_avro,
    "registry-protobuf": in_protobuf,
    "registry-json": in_json,
    "protobuf": bare_protobuf,
    "json of pydantic": lambda: (JsonCodec(Tree), tree(3)),
    "json of msgspec": lambda: (JsonCodec(Twig), twig(3)),
    "msgpack": lambda: (MsgpackCodec(Twig), twig(3)),
}
BOMBS = (
    b"\x02", b"\x04\x02", b"\x80", b"\xff", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", b"[", b'{"children":[',
    b'"\\u0000', b"9", b"\x91", b"\x81\xa1a", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\0", b"\x0a\xff", b"2\0", b"*\xff\xff\xff\xff\x0f\1", b"\x1a\2\n\0", b"\x0b",
)  # fmt: skip
"""What is repeated, or claims to be long."""


def payloads(good: bytes, seed: int) -> Iterator[bytes]:
    """Noise, good ones that were changed, and bombs, behind good beginnings of any length."""
    chance = random.Random(seed)
    for number in range(PAYLOADS):
        start = (
            good[: chance.randrange(len(good) + 1)] if chance.random() < 0.7 else good[: chance.choice((0, 1, 5, 6))]
        )
        match number % 5:
            case 0:
                yield chance.randbytes(chance.randrange(200))
            case 1:
                changed = bytearray(good)
                for _ in range(chance.randrange(1, 8)):
                    changed[chance.randrange(min(5, len(good)) if chance.random() < 0.05 else len(good))] = (
                        chance.randrange(256)
                    )
                yield bytes(changed)
            case 2:
                yield start + chance.randbytes(chance.randrange(50))
            case 3:
                yield start + good[chance.randrange(len(good)) :]
            case _:
                bomb = chance.choice(BOMBS)
                times = LARGE // len(bomb) if number % 500 == 4 else chance.randrange(1, 300)
                yield start + bomb * times


@pytest.mark.parametrize("name", CODECS)
def test_hostile_payloads_are_values_or_errors_of_the_record(name: str) -> None:
    codec, value = CODECS[name]()
    good = codec.encode(value)
    accepted, faults = 0, set()
    tracemalloc.start()
    try:
        for payload in payloads(good, seed=18):
            try:
                codec.decode(payload)
                accepted += 1
            except ValueError as error:
                faults.add(Attribution().of(error))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert codec.decode(good) == value
    assert faults == {Fault.RECORD}
    assert 0 < accepted < PAYLOADS / 2
    assert peak < MOST_MEMORY
