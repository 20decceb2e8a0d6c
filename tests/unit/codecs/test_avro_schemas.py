"""The schema of a field follows from its type and its default, in each kind of record."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pydantic
import pytest
from pydantic import Field

from kafka_eos.codecs.avro.schema_derivation import TIMESTAMP, avro_schema, named_types, tag_fields
from kafka_eos.core.errors import PlanError

T = TypeVar("T")


class Kind(enum.Enum):
    NEW = "new"
    OLD = "old"


@dataclasses.dataclass
class Place:
    x: int


class Tagged(msgspec.Struct, tag="t", tag_field="kind"):
    place: Place


class Page(pydantic.BaseModel, Generic[T]):
    rows: list[T]


def usual() -> list[int]:
    return [1]


NONE = object()
MONEY = Field(max_digits=12, decimal_places=2)
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
DATE = {"type": "int", "logicalType": "date"}
KIND = {"type": "enum", "name": "Kind", "symbols": ["new", "old"]}
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "long"}]}
FIELDS: list[tuple[Any, Any, Any, Any]] = [
    # the type, the default or what makes it, the type in the schema, the default in it
    (int, NONE, "long", NONE),
    (int, 0, "long", 0),
    (bool, False, "boolean", False),
    (float, 1.0, "double", 1.0),
    (str, "", "string", ""),
    (bytes, b"a", "bytes", NONE),
    (None, None, "null", None),
    (datetime.datetime, NONE, TIMESTAMP, NONE),
    (datetime.date, NONE, DATE, NONE),
    (uuid.UUID, NONE, {"type": "string", "logicalType": "uuid"}, NONE),
    (Literal["a", "b"], "a", "string", "a"),
    (list[int], list, {"type": "array", "items": "long"}, []),
    (Sequence[str], list, {"type": "array", "items": "string"}, []),
    (list[int], usual, {"type": "array", "items": "long"}, NONE),
    (dict[str, int], dict, {"type": "map", "values": "long"}, {}),
    (Mapping[str, float], NONE, {"type": "map", "values": "double"}, NONE),
    (Kind, Kind.OLD, KIND, "old"),
    (Kind, NONE, "Kind", NONE),
    (Place, NONE, PLACE, NONE),
    (Place | None, None, ["null", "Place"], None),
    (int | None, NONE, ["long", "null"], NONE),
    (int | None, None, ["null", "long"], None),
    (int | None, 5, ["long", "null"], 5),
    (str | int | None, 5, ["long", "string", "null"], 5),
    (list[int] | None, list, [{"type": "array", "items": "long"}, "null"], []),
    (datetime.date | None, None, ["null", DATE], None),
    (Annotated[Decimal, MONEY], NONE, DECIMAL, NONE),
    (Annotated[Decimal, "of the order", MONEY], NONE, DECIMAL, NONE),
    (Annotated[Decimal, Field(max_digits=2, decimal_places=0)], NONE, {**DECIMAL, "precision": 2, "scale": 0}, NONE),
    (Annotated[Decimal, Field(max_digits=2, decimal_places=2)], NONE, {**DECIMAL, "precision": 2, "scale": 2}, NONE),
    (Annotated[Decimal, MONEY, "of the order"], NONE, DECIMAL, NONE),
    (Annotated[Decimal | None, MONEY], None, ["null", DECIMAL], None),
    (
        list[Annotated[Decimal, Field(max_digits=12), Field(decimal_places=2)]],
        NONE,
        {"type": "array", "items": DECIMAL},
        NONE,
    ),
]


def model(fields: Any) -> Any:
    made_model: Any = pydantic.create_model
    return made_model(
        "Whole",
        **{name: (tp, Field(default_factory=made) if callable(made) else ... if made is NONE else made)
           for name, tp, made in fields},
    )  # fmt: skip


def struct(fields: Any) -> Any:
    return msgspec.defstruct(
        "Whole",
        [(name, tp) if made is NONE else (name, tp, msgspec.field(default_factory=made) if callable(made) else made)
         for name, tp, made in fields],
        kw_only=True,
    )  # fmt: skip


def dataclass(fields: Any) -> Any:
    return dataclasses.make_dataclass(
        "Whole",
        [(name, tp) if made is NONE
         else (name, tp, dataclasses.field(default_factory=made) if callable(made) else dataclasses.field(default=made))
         for name, tp, made in fields],
        kw_only=True,
    )  # fmt: skip


@pytest.mark.parametrize("made_of", [model, struct, dataclass])
def test_each_type_and_default_has_its_counterpart(made_of: Any) -> None:
    whole = made_of([(f"f{number}", tp, made) for number, (tp, made, _, _) in enumerate(FIELDS)])

    found = {field["name"]: (field["type"], field.get("default", NONE)) for field in avro_schema(whole)["fields"]}

    assert found == {f"f{number}": (tp, default) for number, (_, _, tp, default) in enumerate(FIELDS)}
    assert named_types(whole) == {"Whole": whole, "Kind": Kind, "Place": Place}


def test_datetimes_have_the_schema_that_is_asked_for_wherever_they_are() -> None:
    times = struct([("at", datetime.datetime, NONE), ("all", list[datetime.datetime | None], NONE)])

    fields = avro_schema(times, "zoned")["fields"]

    assert [field["type"] for field in fields] == ["zoned", {"type": "array", "items": ["zoned", "null"]}]


def test_tags_of_structs_are_found_wherever_they_are() -> None:
    assert tag_fields(dataclass([("a", int, NONE), ("held", list[Tagged], NONE)])) == {"kind"}
    assert tag_fields(Place) == frozenset()


def test_a_name_has_letters_digits_and_underscores_alone_wherever_it_stands() -> None:
    whole = struct([("one", Page[int], NONE), ("more", list[Page[int]], NONE)])

    one, more = (field["type"] for field in avro_schema(whole)["fields"])
    assert (one["name"], more["items"]) == ("Page_int_", "Page_int_")
    assert named_types(whole) == {"Whole": whole, "Page_int_": Page[int]}


@pytest.mark.parametrize(
    ("tp", "said"),
    [
        (Decimal, "Whole.f: declare the digits"),
        (Annotated[Decimal, Field(max_digits=12)], "Whole.f: declare the digits"),
        (Annotated[Decimal, Field(max_digits=1, decimal_places=2)], "a Decimal in Avro has no such digits"),
        (Annotated[Decimal, Field(max_digits=0, decimal_places=0)], "a Decimal in Avro has no such digits"),
        (Literal["a", 1], "Whole.f: .* has no Avro counterpart here"),
        (dict[int, int], "Whole.f: .* has no Avro counterpart here"),
        (list[set[int]], r"Whole.f\[\]: .* has no Avro counterpart here"),
        (dict[str, set[int]], r"Whole.f\{\}: .* has no Avro counterpart here"),
        (str | Kind, r"two arms of the union look the same in Avro \(string, string\)"),
        (Place | dict[str, int], r"look the same in Avro \(record, record\)"),
        (int | datetime.date, r"look the same in Avro \(long, long\)"),
        (enum.Enum("Odd", {"A": "a", "B": "b c"}), "the values of enum Odd must be str and made of letters"),
        (enum.Enum("Numbers", {"A": "a", "B": 1}), "the values of enum Numbers must be str"),
        (dataclasses.make_dataclass("Nothing", []), "Whole.f: Nothing has no fields"),
        (dataclasses.make_dataclass("Whole", [("a", int)]), "two different types are named Whole"),
    ],
    ids=str,
)  # fmt: skip
def test_what_has_no_one_counterpart_is_named(tp: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        avro_schema(dataclass([("f", tp, NONE)]))


@pytest.mark.parametrize("tp", [int, list[Place], dict[str, Place]])
def test_only_records_have_a_schema(tp: Any) -> None:
    with pytest.raises(PlanError, match="Avro needs a pydantic model, a msgspec Struct or a dataclass"):
        avro_schema(tp)
