"""Avro: the schema follows from the type, and old data is read by Avro's rules."""

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from typing import Any, Literal, Optional

import msgspec
import pytest
from pydantic import BaseModel

from kafka_eos import PlanError
from kafka_eos.codecs import AvroCodec, CountedCodec

NOW = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=datetime.UTC)
INDIA = datetime.timezone(datetime.timedelta(hours=5, minutes=30))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    name: str
    weight: float = 1.0


class Thing(BaseModel):
    id: uuid.UUID
    at: datetime.datetime
    day: datetime.date
    raw: bytes
    colour: Colour = Colour.RED
    size: Literal["s", "m"] = "s"
    note: str | None = None
    parts: list[Part] = []
    spare: Part | None = None
    prices: dict[str, float] = {}


class Node(msgspec.Struct):
    value: int
    colour: Colour = Colour.BLUE
    at: datetime.datetime | None = None
    children: list["Node"] = []


class Endless(msgspec.Struct):
    value: int
    more: "Endless"


@dataclasses.dataclass
class Plain:
    a: int
    b: Optional[str] = "x"  # noqa: UP045 (old code writes it this way)
    c: list[int] = dataclasses.field(default_factory=list)


THING = Thing(
    id=uuid.UUID(int=7),
    at=NOW,
    day=NOW.date(),
    raw=b"\xff\x00",
    colour=Colour.BLUE,
    note="n",
    parts=[Part(name="p")],
    spare=Part(name="q", weight=2.5),
    prices={"eu": 1.5},
)


@pytest.mark.parametrize(
    "value", [THING, Node(1, at=NOW, children=[Node(2)]), Plain(1, None, [3])], ids=lambda v: type(v).__name__
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    codec: AvroCodec[Any] = AvroCodec[Any](type(value))

    assert codec.decode(codec.encode(value)) == value


def test_the_schema_is_plain_json_and_does_not_name_the_module() -> None:
    assert json.loads(json.dumps(AvroCodec[Any](Plain).schema)) == {
        "type": "record",
        "name": "Plain",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "b", "type": ["string", "null"], "default": "x"},
            {"name": "c", "type": {"type": "array", "items": "long"}, "default": []},
        ],
    }


def named(name: str, **fields: Any) -> Any:
    return msgspec.defstruct(name, list(fields.items()))


OLD = named("Order", user=str, amount=int, dropped=str)


def test_old_data_is_read_with_defaults_for_new_fields_and_without_dropped_ones() -> None:
    new = msgspec.defstruct("Order", [("user", str), ("amount", float), ("status", str, "open")])
    written = AvroCodec[Any](OLD).encode(OLD("a", 3, "gone"))
    reader = AvroCodec[Any](new).reader_of(AvroCodec[Any](OLD).schema)

    assert reader.decode(written) == new("a", 3.0, "open")


def test_what_resolves_old_data_writes_with_the_new_schema() -> None:
    new = named("Order", user=str)
    reader = AvroCodec[Any](new).reader_of(AvroCodec[Any](OLD).schema)

    assert AvroCodec[Any](new).decode(reader.encode(new("a"))) == new("a")


def test_resolution_reaches_through_the_counter_of_keyed_state() -> None:
    new = named("Order", user=str)
    old = CountedCodec[Any](AvroCodec[Any](OLD))
    reader: CountedCodec[Any] = CountedCodec[Any](AvroCodec[Any](new)).reader_of(old.schema)

    assert reader.decode(old.encode((4, OLD("a", 3, "gone")))) == (4, new("a"))


def test_a_new_field_without_a_default_cannot_read_old_data() -> None:
    new = named("Order", user=str, status=str)
    reader = AvroCodec[Any](new).reader_of(AvroCodec[Any](OLD).schema)

    with pytest.raises(ValueError, match="status"):
        reader.decode(AvroCodec[Any](OLD).encode(OLD("a", 3, "gone")))


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\x00"])
def test_bad_data_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a valid Thing"):
        AvroCodec[Any](Thing).decode(data)


def test_bytes_after_the_value_are_refused() -> None:
    codec: AvroCodec[Any] = AvroCodec[Any](Plain)

    with pytest.raises(ValueError, match="1 bytes too many"):
        codec.decode(codec.encode(Plain(1)) + b"x")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Plain(2**70), "too large"),
        (Node(1, at=NOW.replace(tzinfo=None)), "no time zone"),
        (Node(1, children=[Node(1, at=NOW.replace(tzinfo=None))]), "no time zone"),
        (Node(1, at=datetime.datetime.min.replace(tzinfo=INDIA)), "not in the years 1 to 9999 in UTC"),
    ],
    ids=["int", "datetime", "nested datetime", "early datetime"],
)
def test_a_value_that_would_change_is_not_written(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AvroCodec[Any](type(value)).encode(value)


@pytest.mark.parametrize(
    ("tp", "message"),
    [
        (int, "needs a pydantic model"),
        (
            named("R", day=str | datetime.date),
            "cannot be mapped to Avro: Type unions may not contain more than one str",
        ),
        (named("R", price=decimal.Decimal), "R.price: declare the digits of the Decimal for Avro"),
        (named("R", tags=set[str]), r"R.tags: set\[str\]"),
        (named("R", anything=Any), "R.anything"),
        (named("R", inner=dict[int, str]), "R.inner"),
        (named("R", inner=list), "R.inner"),
        (named("R", pair=Colour | str), "look the same"),
        (named("R", pair=Part | Node), "look the same"),
        (named("R", a=named("S", x=int), b=named("S", y=int)), "two different types are named S"),
        (named("R"), "no fields"),
        (Endless, "the Avro schema of Endless is not usable: .*contains itself, so its values have no end"),
    ],
    ids=str,
)
def test_a_type_without_one_obvious_counterpart_is_refused(tp: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        AvroCodec[Any](tp)
