"""A function that changes a value in place changes it in its own branch only; immutable values are not copied."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pydantic
import pytest

from kafka_eos import Pipeline
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.branch_copies import are_immutable, copy_values
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin


class Order(pydantic.BaseModel):
    amount: int


class Fixed(msgspec.Struct, frozen=True):
    amount: int
    next: Fixed | None = None
    tags: tuple[str, ...] = ()
    kind: Annotated[Literal["a", "b"], "either"] = "a"


class Counted(msgspec.Struct):
    amount: int

    def __post_init__(self) -> None:
        self.amount += 1


class Basket(msgspec.Struct, frozen=True):
    items: list[int]


@dataclass(frozen=True)
class Pair:
    left: Fixed
    right: datetime.datetime


class PairWithNotes(Pair):
    """Its instances have attributes of their own."""


class Named(NamedTuple):
    count: int


class Model(pydantic.BaseModel, frozen=True):
    named: Named
    times: tuple[datetime.datetime, ...]


class Tally(Model, frozen=True):
    _seen: list[int] = pydantic.PrivateAttr(default_factory=list)


class Untyped(NamedTuple):
    count: Any


def run(build: Callable[[Any], None], *values: Any) -> dict[str, list[Any]]:
    """Push values through the branches that ``build`` adds; return what each sink holds at the end."""
    pipeline = Pipeline("branches")
    build(pipeline.source(ListSource([]), name="source"))
    plan = pipeline.plan()
    written: dict[str, list[Any]] = {sink.name: [] for sink in plan.sinks}
    outputs = {name: lambda batch, name=name: written[name].extend(batch.values) for name in written}
    with closing(OperatorChain(plan, {}, outputs)) as chain:
        chain.push("source", Batch([*values], range(len(values)), ListOrigin("source", "t", 0, 0, [*values])))
    return written


def double(order: Order) -> Order:
    order.amount *= 2
    return order


def test_a_branch_does_not_see_what_another_one_changes_in_place() -> None:
    def build(orders: Any) -> None:
        orders.sink(MemorySink(), name="first")
        orders.map(double).sink(MemorySink(), name="doubled")
        orders.filter(lambda order: order.amount < 3).sink(MemorySink(), name="small")
        orders.sink(MemorySink(), name="last")

    found = run(build, Order(amount=1), Order(amount=2))
    amounts = {name: [order.amount for order in orders] for name, orders in found.items()}
    assert amounts == {"first": [1, 2], "doubled": [2, 4], "small": [1, 2], "last": [1, 2]}


@pytest.mark.parametrize("first", ["sink", "map"])
def test_one_sink_beside_a_function_does_not_see_its_changes(first: str) -> None:
    def build(orders: Any) -> None:
        if first == "sink":
            orders.sink(MemorySink(), name="plain")
        orders.map(double).sink(MemorySink(), name="doubled")
        if first == "map":
            orders.sink(MemorySink(), name="plain")

    found = run(build, Order(amount=1))
    assert {name: [order.amount for order in orders] for name, orders in found.items()} == {
        "plain": [1],
        "doubled": [2],
    }


def test_two_operators_have_a_value_each() -> None:
    def build(orders: Any) -> None:
        orders.map(double).sink(MemorySink(), name="doubled")
        orders.map(double).union(orders.map(double)).sink(MemorySink(), name="also")

    found = run(build, Order(amount=3))
    assert {name: [order.amount for order in orders] for name, orders in found.items()} == {
        "doubled": [6],
        "also": [6, 6],
    }


def test_nothing_is_copied_where_no_branch_follows() -> None:
    order = Order(amount=1)

    (written,) = run(lambda orders: orders.filter(bool).sink(MemorySink(), name="out"), order)["out"]
    assert written is order


def test_sinks_share_the_values() -> None:
    order = Order(amount=1)

    def build(orders: Any) -> None:
        orders.sink(MemorySink(), name="first")
        orders.sink(MemorySink(), name="second")

    assert all(each is order for values in run(build, order).values() for each in values)


TIME = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    "value",
    [
        1, "text", None, b"bytes", TIME, (), ("key", 3), ("key", ("nested", None)), Fixed(1, Fixed(2)), Named(1),
        Pair(Fixed(1), TIME), Model(named=Named(1), times=(TIME,)),
    ],
)  # fmt: skip
def test_immutable_values_are_shared(value: Any) -> None:
    values = [value, value]

    assert are_immutable(values)
    assert copy_values(values) is values


@pytest.mark.parametrize(
    "value",
    [
        {"n": 1}, [1], {1}, ("key", [1]), Order(amount=1), Basket([1]), Untyped([1]), bytearray(b"a"),
        Tally(named=Named(1), times=(TIME,)), PairWithNotes(Fixed(1), TIME),
    ],
)  # fmt: skip
def test_mutable_values_are_copied(value: Any) -> None:
    values = ["immutable", value]

    copied = copy_values(values)
    assert not are_immutable(values)
    assert copied == values
    assert copied[1] is not value


def test_values_of_a_class_within_a_function_are_copied_too() -> None:
    @dataclass
    class Local:
        amount: int

    value = Local(1)
    (copied,) = copy_values([value])
    assert copied == value
    assert copied is not value


def test_a_value_that_cannot_be_copied_is_shared() -> None:
    values = [{"lock": threading.Lock()}, {"n": 1}]

    copied = copy_values(values)
    assert copied[0] is values[0]
    assert copied[1] is not values[1]


def test_a_value_whose_copy_is_another_value_is_shared() -> None:
    """A class that computes its fields when an instance is made, and an object that is equal to itself only."""
    values = [Counted(1), {"missing": object()}, {"n": 1}]

    copied = copy_values(values)
    assert [copied[0].amount, copied[0] is values[0], copied[1] is values[1]] == [2, True, True]
    assert copied[2] is not values[2]
