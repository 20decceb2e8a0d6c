"""A model's schema of Avro as models again: they give the same schema."""

from __future__ import annotations

import datetime
import enum
import importlib
import json
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from kafka_eos.codecs import AvroCodec
from kafka_eos.codecs.avro.generated_models import as_models
from kafka_eos.codecs.avro.schema_derivation import avro_schema
from tests.avro_witness import record
from tests.unit.codecs.test_hostile import Tree

Made = Callable[..., Any]


class Kind(enum.Enum):
    NEW = "NEW"
    None_ = "None"


class Line(BaseModel):
    article: str
    price: Annotated[Decimal, Field(max_digits=12, decimal_places=2)]


class Order(BaseModel):
    user: str
    lines: list[Line] = []
    labels: dict[str, int] = {}
    kind: Kind = Kind.None_
    weight: float = 1.0
    paid: bool = False
    note: str | None = None
    either: int | str = 0
    first: Line | None = None
    at: datetime.datetime
    day: datetime.date | None = None
    token: uuid.UUID
    raw: bytes


class Left(BaseModel):
    right: Right | None = None


class Right(BaseModel):
    left: Left | None = None
    name: str


class Simple(BaseModel):
    name: str
    children: list[Simple] = []


Left.model_rebuild()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """The model of the whole, from a file of its own."""

    def make(schema: Any, *named: Any) -> Any:
        (tmp_path / "made_models.py").write_text(as_models(schema, list(named)))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "made_models", raising=False)
        return getattr(importlib.import_module("made_models"), schema["name"].rpartition(".")[2])

    return make


@pytest.mark.parametrize("model", [Order, Left, Simple])
def test_models_give_their_schema_and_the_schema_gives_models_again(model: Any, made: Made) -> None:
    schema = avro_schema(model)

    again = made(schema)

    assert avro_schema(again) == schema


def test_a_value_of_one_is_read_as_the_other(made: Made) -> None:
    order = Order(
        user="ann", at=datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC), token=uuid.UUID(int=1), raw=b"x",
        lines=[Line(article="a", price=Decimal("1.50"))],
    )  # fmt: skip
    data = AvroCodec(Order).encode(order)

    assert AvroCodec(made(avro_schema(Order))).decode(data).model_dump(mode="json") == order.model_dump(mode="json")


def test_what_others_have_written_is_read_by_the_models_of_their_schema(made: Made) -> None:
    placed = {"type": "long", "logicalType": "timestamp-millis"}
    money = record("com.shop.Money", cents="int")
    theirs = record("com.shop.Order", user="string", at=placed, price="com.shop.Money", time={"type": "int",
                    "logicalType": "time-millis"})  # fmt: skip

    schema = avro_schema(made(theirs, money))

    assert [field["type"] for field in schema["fields"]][:2] == [
        "string",
        {"type": "long", "logicalType": "timestamp-micros"},
    ]
    assert schema["fields"][3]["type"] == "long"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "it is not a record"),
        (record("A", x={"type": "fixed", "name": "F", "size": 2}), "A.x: fixed has no counterpart"),
        (record("A", **{"class": "int"}), "A.class: a model cannot have a field or a class that is called class"),
        (record("A", x=("bytes", "y")), "A.x: the default 'y' has no counterpart in a model"),
        (record("A", x=("long", "y")), "A.x: the default 'y' has no counterpart in a model"),
        (record("A", x=(["bytes", "null"], "y")), "A.x: the default 'y' has no counterpart in a model"),
        (record("A", x=(record("B", y="int"), {"y": 1})), "A.x: the default {'y': 1} has no counterpart in a model"),
        (record("A", x=record("B", y="int"), z=("B", {"y": 1})), "A.z: the default {'y': 1} has no counterpart in a"),
        (record("A", x=({"type": "array", "items": "int"}, [1])), r"A.x: the default \[1\] has no counterpart"),
        (record("A", x=({"type": "map", "values": "int"}, {"y": 1})), "A.x: the default {'y': 1} has no counterpart"),
        (record("a.A", x=record("b.A", y="int")), "two of its types are called A"),
    ],
)
def test_what_has_no_counterpart_is_named(schema: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        as_models(json.loads(json.dumps(schema)), [])


CALL = "__import__('os').abort()"


@pytest.mark.parametrize(
    "schema",
    [
        record("A", **{f"x: int = {CALL}\n    y": "int"}),
        record("A", **{"x\u2028y": "int"}),
        {"type": "record", "name": f"A(BaseModel):\n    x = {CALL}\nclass B", "fields": []},
        record("A", x={"type": "enum", "name": f"B(enum.Enum):\n    x = {CALL}\nclass C", "symbols": ["D"]}),
        record("A", x=({"type": "enum", "name": "B", "symbols": ["C"]}, f"C\n{CALL}")),
        record("A", x=({"type": "enum", "name": "B", "symbols": ["C"]}, f"__class__ and {CALL}")),
    ],
)
def test_a_schema_puts_no_code_into_the_models(schema: Any) -> None:
    """Its author would run it where the models are imported."""
    with pytest.raises(ValueError, match="a model cannot have a field or a class that is called|has no counterpart"):
        as_models(schema, [])


def test_the_defaults_of_logical_types_are_taken_out_by_hand() -> None:
    """The schema of a model has none of them."""
    assert all("default" not in field or field["name"] not in ("at", "day", "token", "price")
               for field in avro_schema(Tree)["fields"])  # fmt: skip
