"""Ten thousand hostile payloads for each codec of a topic: a value, or an error with the record's offset, in bounded
memory.

Rule: whatever in ``kafka_eos.codecs`` decodes has a case here, or is in ``BEHIND_A_CHECKSUM``. A codec that is new and
has neither fails a test.
"""

from __future__ import annotations

import datetime
import enum
import importlib
import pkgutil
import random
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, Field

import kafka_eos.codecs
from kafka_eos.abc.codec import SupportsHeaders
from kafka_eos.codecs import (
    AvroCodec,
    BytesCodec,
    JsonCodec,
    MsgpackCodec,
    Registry,
    StrCodec,
    avro,
    json_schema,
    protobuf,
)
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.core.fault_attribution import ErrorRules, Fault
from kafka_eos.core.records import Headers, RawRecord
from tests.protobuf_witness import classes, proto3

PAYLOADS = 10_000
LARGE = 100_000
"""Bytes of the largest."""
MOST_MEMORY = 64 << 20
BATCH = 500
DEEP = 5_000_000
"""Bytes of values within values, each begun and none ended: a record that Kafka takes if it is told to."""


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


def registered(language: Callable[..., Any], tp: Any, value: Any, **options: Any) -> tuple[Any, Any]:
    """The codec of a job that has started."""
    made = language(tp, registry=Registry(f"mock://{uuid.uuid4()}"), auto_register=True, **options)
    codec = made.for_topic("trees", "value")
    codec.check()
    return codec, value


def bare_protobuf(tp: Any, value: Any) -> tuple[Any, Any]:
    return protobuf(tp), value


CODECS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "registry-avro": lambda: registered(avro, Tree, tree(3)),
    "registry-avro, id in Confluent's header": lambda: registered(avro, Tree, tree(3), id_in="header"),
    "registry-avro, id in Apicurio's header": lambda: registered(avro, Tree, tree(3), id_in="apicurio-header"),
    "registry-protobuf": lambda: registered(protobuf, *message()),
    "registry-protobuf, id in Confluent's header": lambda: registered(protobuf, *message(), id_in="header"),
    "registry-json": lambda: registered(json_schema, Tree, tree(3)),
    "registry-json, id in Apicurio's header": lambda: registered(json_schema, Tree, tree(3), id_in="apicurio-header"),
    "avro": lambda: (AvroCodec(Tree), tree(3)),
    "protobuf": lambda: bare_protobuf(*message()),
    "json of pydantic": lambda: (JsonCodec(Tree), tree(3)),
    "json of msgspec": lambda: (JsonCodec(Twig), twig(3)),
    "msgpack": lambda: (MsgpackCodec(Twig), twig(3)),
    "text": lambda: (StrCodec(), "twig" * 100),
    "bytes": lambda: (BytesCodec(), b"twig" * 100),
}
BEHIND_A_CHECKSUM = {
    "CountedCodec", "ElementsCodec", "KeyCodec", "MsgpackListCodec", "OptionalCodec", "PartialMatchesCodec",
    "PatternRowsCodec", "PerValueListCodec", "RowPanesCodec", "WindowedCodec", "_OpaqueCodec", "_PlainAvroCodec",
    "_PlainCodec", "_PlainCounted", "_PlainElements", "_PlainRowPanes",
}  # fmt: skip
"""What is stored, or sent between workers, by this package alone: nothing of it comes from a topic."""
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
                yield changed(good, chance)
            case 2:
                yield start + chance.randbytes(chance.randrange(50))
            case 3:
                yield start + good[chance.randrange(len(good)) :]
            case _:
                bomb = chance.choice(BOMBS)
                times = LARGE // len(bomb) if number % 500 == 4 else chance.randrange(1, 300)
                yield start + bomb * times


def changed(good: bytes, chance: random.Random) -> bytes:
    made = bytearray(good)
    for _ in range(chance.randrange(1, 8)):
        made[chance.randrange(min(5, len(good)) if chance.random() < 0.05 else len(good))] = chance.randrange(256)
    return bytes(made)


def headers(good: Headers, seed: int) -> Iterator[Headers]:
    """Good ones, mostly; else they are changed, cut off, noise, empty, or not there."""
    chance = random.Random(seed)

    def hostile(value: bytes) -> bytes | None:
        return chance.choice((changed(value, chance), value[:-1], value * 3, chance.randbytes(9), b"", None))

    while True:
        match chance.randrange(8):
            case 0:
                yield [(name, hostile(value or b"?")) for name, value in good]
            case 1:
                yield ()
            case 2:
                yield [*good, *((name, hostile(value or b"?")) for name, value in good)]
            case _:
                yield good


@dataclass
class Memory:
    """Of this process, with what libraries in C take. The kernel keeps the peak since it was last told to forget."""

    before: int

    @classmethod
    def watched(cls) -> Memory:
        Path("/proc/self/clear_refs").write_text("5")
        return cls(_bytes("VmRSS"))

    @property
    def most(self) -> int:
        """More than there was."""
        return _bytes("VmHWM") - self.before


def _bytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


@pytest.mark.parametrize("name", CODECS)
def test_hostile_payloads_are_values_or_errors_with_their_offsets(name: str) -> None:
    codec, value = CODECS[name]()
    good, told = codec.encode(value), codec.headers() if isinstance(codec, SupportsHeaders) else ()
    source = KafkaSource("trees", value=codec)
    refused: dict[int, Fault] = {}
    rows = [
        RawRecord("trees", 0, offset, -1, None, payload, more)
        for offset, (payload, more) in enumerate(zip(payloads(good, seed=18), headers(told, seed=18), strict=False))
    ]

    def refuse(raw: RawRecord, error: Exception) -> None:
        refused[raw.offset] = ErrorRules().classify(error)

    memory = Memory.watched()
    accepted = 0
    for first in range(0, PAYLOADS, BATCH):
        accepted += len(source.decode("trees", rows[first : first + BATCH], refuse).values)

    assert memory.most < MOST_MEMORY
    assert source.decode("trees", [RawRecord("trees", 0, 0, -1, None, good, told)], refuse).values == [value]
    assert accepted + len(refused) == PAYLOADS
    assert {*refused.values()} == ({Fault.RECORD} if name != "bytes" else set())
    assert accepted > 0


@pytest.mark.parametrize("name", [name for name in CODECS if name not in ("text", "bytes")])
def test_a_record_that_is_nested_beyond_any_stack_is_an_error(name: str) -> None:
    codec, value = CODECS[name]()
    start, level = begun(codec, value)
    memory = Memory.watched()

    with pytest.raises(ValueError, match=r"."):
        codec.decode(start + level * (DEEP // len(level)))

    assert memory.most < MOST_MEMORY


def begun(codec: Any, value: Any) -> tuple[bytes, bytes]:
    """What stands before a value, and the value up to the first one that is within it."""
    outer, inner = codec.encode(value), codec.encode(value.children[0])
    start, at = next((start, at) for start in range(len(inner)) if (at := outer.find(inner[start:])) > 0)
    return bytes(outer[:start]), bytes(outer[start:at])


def decoding_classes() -> set[str]:
    """What decodes, or is a part of it, in ``kafka_eos.codecs``."""
    modules = [module.name for module in pkgutil.walk_packages(kafka_eos.codecs.__path__, "kafka_eos.codecs.")]
    defined = [
        each
        for name in modules
        for each in vars(importlib.import_module(name)).values()
        if isinstance(each, type) and each.__module__ == name and not getattr(each, "_is_protocol", False)
    ]
    return {each.__name__ for each in defined if {"decode", "decoder", "reader_of", "prefix"} & {*dir(each)}}


def test_whatever_decodes_is_attacked() -> None:
    """By what the codecs above are, and are made of."""
    attacked: set[str] = set()
    for made in CODECS.values():
        codec, _ = made()
        attacked |= {type(part).__name__ for part in (codec, *getattr(codec, "__dict__", {}).values())}

    assert decoding_classes() - attacked == BEHIND_A_CHECKSUM
