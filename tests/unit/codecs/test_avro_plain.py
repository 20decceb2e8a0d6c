"""Logical types of Avro that only the writer knows: the type below them is read."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import pytest
from pydantic import BaseModel

from kafka_eos.codecs import Registry
from kafka_eos.core.fault_attribution import ErrorRules, Fault
from tests.avro_witness import record
from tests.unit.codecs.test_avro_registry import Item, by_others, codec, registered


@pytest.fixture
def registry() -> Registry:
    """One in memory, which only this test has."""
    return Registry(f"mock://{uuid.uuid4()}")


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
DAYS = {"type": "int", "logicalType": "date"}
UUID = {"type": "string", "logicalType": "uuid"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
WHEN = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


class Plain(BaseModel):
    at: int
    day: int | None = None
    days: list[int] = []
    weight: float = 0.0
    token: str = ""
    price: bytes = b""
    inner: dict[str, Item] = {}


def test_a_logical_type_that_only_the_writer_has_is_read_as_the_type_below(registry: Registry) -> None:
    theirs = record("Theirs", at=MILLIS, day=["null", DAYS], days={"type": "array", "items": DAYS}, weight=MILLIS,
                    token=UUID, price=PRICE, inner={"type": "map", "values": record("I", quantity=MILLIS)})  # fmt: skip
    day, token = datetime.date(1970, 1, 3), uuid.UUID(int=7)
    price = decimal.Decimal("1.00")
    value = {"at": WHEN, "day": day, "days": [day], "weight": WHEN, "token": str(token), "price": price,
             "inner": {"a": {"quantity": WHEN}}}  # fmt: skip
    orders: Any = codec(Plain, registry)
    milliseconds = int(WHEN.timestamp() * 1000)

    found = orders.decode(by_others(registered(registry, theirs), theirs, value))

    assert found == Plain(
        at=milliseconds, day=2, days=[2], weight=milliseconds, token=str(token), price=b"d",
        inner={"a": Item(quantity=milliseconds)},
    )  # fmt: skip


def test_the_same_is_told_before_the_start(registry: Registry) -> None:
    theirs = record("Plain", at=MILLIS, day=["null", DAYS], token=UUID, price=PRICE)
    registered(registry, theirs, subject="orders-value")

    assert list(codec(Plain, registry, auto_register=False).compare_schema(reading=True).problems) == []


def test_a_logical_type_that_the_reader_has_is_not_taken_from_a_plain_one_below_another(registry: Registry) -> None:
    class Days(BaseModel):
        day: str

    theirs = record("Days", day=DAYS)

    with pytest.raises(ValueError, match="not a valid Days"):
        codec(Days, registry).decode(
            by_others(registered(registry, theirs), theirs, {"day": datetime.date(2026, 1, 1)})
        )


def test_one_definition_cannot_be_read_in_two_ways(registry: Registry) -> None:
    class Time(BaseModel):
        at: datetime.datetime

    class Number(BaseModel):
        at: int

    class Both(BaseModel):
        one: Time
        other: Number

    theirs = record("Both", one=record("Stamp", at=MILLIS), other="Stamp")
    both = {"one": {"at": WHEN}, "other": {"at": WHEN}}

    with pytest.raises(
        ValueError, match="timestamp-millis is read as that in one place, and as long in another"
    ) as refused:
        codec(Both, registry).decode(by_others(registered(registry, theirs), theirs, both))

    assert ErrorRules().classify(refused.value) is Fault.RECORD
