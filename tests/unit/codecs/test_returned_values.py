"""Of any two values that differ, neither is taken for the other as it comes back."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import uuid
from copy import deepcopy
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from kafka_eos.codecs.returned_values import unchanged


class Open(pydantic.BaseModel, extra="allow"):
    x: Any = None
    y: Any = None


class Place(msgspec.Struct):
    x: Any
    y: Any


@dataclasses.dataclass
class Line:
    x: Any
    y: Any


class Colour(enum.Enum):
    RED = "a"
    BLUE = "b"


NOON = datetime.datetime(2026, 6, 1, 12)
EAST = datetime.timezone(datetime.timedelta(hours=1))
VALUES: list[Any] = [
    None, True, False, 0, 1, 0.0, 1.0, math.nan, math.inf, "", "a", "1", b"", b"a", bytearray(b"a"),
    Decimal(1), Decimal("1.5"), uuid.UUID(int=0), uuid.UUID(int=1), Colour.RED, Colour.BLUE,
    NOON, NOON.replace(tzinfo=datetime.UTC), NOON.replace(hour=13, tzinfo=EAST), NOON.date(), NOON.time(),
    NOON.time().replace(tzinfo=datetime.UTC), datetime.timedelta(1), datetime.timedelta(2),
    [], [1], [1, 2], [2, 1], [1.0], (), (1,), (1, 2), set(), {1}, {1, 2}, frozenset({1}),
    {}, {"a": 1}, {"a": 2}, {"b": 1}, {1: 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": {"a": 1}}, {"a": {"a": 1.0}},
    Open(), Open(x=1), Open(y=1), Open(x=1, y=1), Open(x=1.0, y=1),
    *map(Open.model_validate, ({"z": 1}, {"z": 2}, {"z": 1, "w": 1})),
    Place(1, 1), Place(1, 2), Place(2, 1), Place(1, math.nan), Line(1, 1), Line(1, 2), Line(2, 1),
    Line([1], {"a": 1}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(VALUES)), ids=lambda number: f"{VALUES[number]!r:.40}")
def test_a_value_is_its_own_copy_and_no_other_one(number: int) -> None:
    copies = deepcopy(VALUES)

    found = [at for at, copy in enumerate(copies) if unchanged(VALUES[number], copy)]

    assert found == [number]


def test_the_order_of_keys_makes_no_other_dict() -> None:
    assert unchanged({"a": 1, "b": [2]}, {"b": [2], "a": 1})
    assert not unchanged({"a": 1, "b": [2]}, {"b": 1, "a": [2]})
