"""``aggregate`` as a verb: the rows that it makes, their types, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import fields
from pydantic import BaseModel, Field

from kafka_eos import KeyedStream, Pipeline, PlanError, Ttl, agg, bounded
from kafka_eos.api.aggregates.row_aggregation import CompositeAggregate, ResultRowBuilder
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.plan import FoldNode, PartialFoldNode
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local

pytestmark = pytest.mark.filterwarnings("ignore::kafka_eos.DerivedNameWarning")


class Order(Struct, frozen=True):
    user: str
    amount: int


class Model(BaseModel):
    user: str
    orders: int = Field(alias="count")
    total: int


@dataclass
class Data:
    user: str
    count: int
    total: int
    note: str = ""


class Record(Struct):
    user: str
    count: int
    total: int


ORDERS = [Order("ann", 3), Order("bob", 5), Order("ann", 4)]


def keyed(pipeline: Pipeline, timed: bool = False) -> KeyedStream[Any, Order]:
    orders = pipeline.source(KafkaSource("orders", value=Order), name="orders")
    if timed:
        orders = orders.with_timestamps(watermarks=bounded(60))
    return orders.key_by(lambda order: order.user, name="by-user")


def rows_of(pipeline: Pipeline, stream: Any, orders: list[Any] = ORDERS) -> list[Any]:
    stream.sink(MemorySink(), name="out")
    return run_local(pipeline, {"orders": orders})["out"]


def test_every_input_gives_a_row_of_the_key_and_a_field_for_each_aggregate() -> None:
    pipeline = Pipeline("p")
    made = keyed(pipeline).aggregate(
        agg.count(), total=agg.sum(lambda o: o.amount), best=agg.max_by(lambda o: o.amount)
    )

    rows = rows_of(pipeline, made)

    assert [(row.key, row.count, row.total, row.best) for row in rows] == [
        ("ann", 1, 3, ORDERS[0]),
        ("bob", 1, 5, ORDERS[1]),
        ("ann", 2, 7, ORDERS[2]),
    ]


@pytest.mark.parametrize("out", [Model, Data, Record])
def test_rows_are_of_the_class_that_is_given(out: Any) -> None:
    pipeline = Pipeline("p")
    made = keyed(pipeline).aggregate(agg.count(), total=agg.sum(lambda o: o.amount), out=out, key="user")

    assert rows_of(pipeline, made)[-1] == out(user="ann", count=2, total=7)


@dataclass
class Derived:
    user: str
    count: int
    note: str = field(init=False)
    more: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.note = f"{self.user} {self.count}"


def test_a_field_that_the_class_fills_itself_needs_no_aggregate() -> None:
    pipeline = Pipeline("p")

    assert rows_of(pipeline, keyed(pipeline).aggregate(agg.count(), out=Derived, key="user"))[-1].note == "ann 2"


def test_a_row_of_no_class_cannot_be_changed() -> None:
    pipeline = Pipeline("p")
    row = rows_of(pipeline, keyed(pipeline).aggregate(agg.count()))[-1]

    with pytest.raises(AttributeError, match="immutable"):
        row.count = 5


AMOUNTS = CompositeAggregate.of_all([agg.count()], {"total": agg.sum()}, int)


def test_one_result_of_no_known_type_is_enough_for_a_row_of_none() -> None:
    class Odd(agg.Aggregate[int, int, Any]):
        accumulator = int

    assert ResultRowBuilder(CompositeAggregate({"odd": Odd(), "count": agg.count()}), {}).codec_type is None


@pytest.mark.parametrize(("key", "field_type"), [(str, str), (None, Any), (tuple[str, int], Any)])
def test_the_fields_that_a_row_begins_with_have_their_types_but_for_keys_that_come_back_as_lists(
    key: Any, field_type: Any
) -> None:
    made = ResultRowBuilder(AMOUNTS, {"key": key, "start": int})

    assert [each.type for each in fields(made.type)[:2]] == [field_type, int]
    if field_type is Any:
        assert made.type(key=["a", 1], start=0, count=1, total=2).key == ("a", 1)


def test_in_two_phases_there_is_a_row_a_key_and_epoch() -> None:
    pipeline = Pipeline("p")
    made = keyed(pipeline).aggregate(agg.count(), total=agg.sum(lambda o: o.amount), out=Record, key="user", merge=True)

    rows = rows_of(pipeline, made)

    assert sorted(rows, key=lambda row: row.user) == [Record("ann", 2, 7), Record("bob", 1, 5)]
    assert [type(node) for node in pipeline.plan().nodes[1:3]] == [PartialFoldNode, FoldNode]


@pytest.mark.parametrize("merge", [False, True])
def test_first_and_last_go_by_event_time_then_by_the_place_in_the_partition(merge: bool) -> None:
    pipeline = Pipeline("p")
    made = keyed(pipeline, timed=True).aggregate(
        agg.count(), first=agg.first(lambda o: o.amount), last=agg.last(lambda o: o.amount),
        all=agg.collect(lambda o: o.amount),
        merge=merge,
    )  # fmt: skip
    orders = [
        TimestampedValue(Order("ann", amount), at) for amount, at in [(1, 20), (2, 10), (3, 30), (4, 10), (5, 30)]
    ]

    row = rows_of(pipeline, made, orders)[-1]

    assert (row.count, row.first, row.last, row.all) == (5, 2, 5, [2, 4, 1, 3, 5])


@pytest.mark.parametrize("merge", [False, True])
def test_without_event_time_nobody_knows_what_is_first(merge: bool) -> None:
    pipeline = Pipeline("p")
    keyed(pipeline).aggregate(agg.first(), merge=merge).sink(MemorySink(), name="out")

    with pytest.raises(PlanError, match=r"orders rows by event time .* define the order with by=(?s:.)*test_rows.py"):
        pipeline.plan()


def test_an_order_of_its_own_needs_no_event_time() -> None:
    pipeline = Pipeline("p")
    made = keyed(pipeline).aggregate(agg.first(by=lambda o: -o.amount))

    assert rows_of(pipeline, made)[-1].first == Order("ann", 4)


@pytest.mark.parametrize("key", [("ann", 1), 5, b"ann"])
def test_a_row_comes_back_as_it_was_where_it_is_sent(key: Any) -> None:
    pipeline = Pipeline("p")
    by_key = pipeline.source(KafkaSource("orders", value=Order), name="orders").key_by(lambda order: key)
    made = by_key.aggregate(agg.count(), total=agg.sum(lambda o: o.amount))
    made.key_by(lambda row: row.count, name="again").aggregate(agg.count()).sink(MemorySink(), name="unused")
    wire: Any = next(node.exchange_codec for node in pipeline.plan().nodes if node.name == "again")
    row = rows_of(pipeline, made)[-1]

    assert wire.decode(wire.encode([row])) == [row]
    assert row.key == key


def test_a_result_of_no_known_type_makes_a_row_of_no_known_type() -> None:
    """It is then only sent where its type is given: a tuple in it would arrive as a list."""

    class Pair(agg.Aggregate[Any, int, tuple[int, int]]):
        name, accumulator = "pair", int

        def create(self) -> int:
            return 0

        def add(self, acc: int, value: Any) -> int:
            return acc + 1

        def merge(self, one: int, other: int) -> int:
            return one + other

        def result(self, acc: int) -> tuple[int, int]:
            return acc, acc

    pipeline = Pipeline("p")
    made = keyed(pipeline).aggregate(Pair())
    made.rebalance(name="spread").sink(MemorySink(), name="unused")
    wire: Any = next(node.exchange_codec for node in pipeline.plan().nodes if node.name == "spread")
    row = rows_of(pipeline, made)[-1]

    assert (row.key, row.pair) == ("ann", (2, 2))
    with pytest.raises(ValueError, match="declare the type"):
        wire.encode([row])


def test_rows_are_json_for_a_sink() -> None:
    pipeline = Pipeline("p")
    made = keyed(pipeline).aggregate(agg.count(), total=agg.sum(lambda o: o.amount))
    made.sink(KafkaSink("totals", value=dict, key=lambda row: row.key), name="totals")

    written = run_local(pipeline, {"orders": ORDERS}).written["totals"]

    assert (written[-1].key, written[-1].value) == (b"ann", b'{"key":"ann","count":2,"total":7}')


def test_a_key_begins_anew_when_its_time_to_live_is_over() -> None:
    pipeline = Pipeline("p")
    made = keyed(pipeline).aggregate(agg.count(), ttl=Ttl(60, clock="event"))
    orders = [TimestampedValue(Order("ann", 1), at * 1000) for at in (1, 30, 200)]

    assert [row.count for row in rows_of(pipeline, made, orders)] == [1, 2, 1]


class Lacks(Struct):
    key: str


class Wants(Struct):
    key: str
    count: int
    user: str


@dataclass
class WantsToo:
    key: str
    count: int
    user: str


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        (lambda keyed: keyed.aggregate(), "no aggregate is given"),
        (lambda keyed: keyed.aggregate(agg.count), "an aggregate must be an object like agg.count"),
        (lambda keyed: keyed.aggregate(total=sum), "an aggregate must be an object like agg.count"),
        (lambda keyed: keyed.aggregate(agg.count(), count=agg.sum(len)), "two fields of a row are named 'count'"),
        (lambda keyed: keyed.aggregate(agg.count(), key="count"), "two fields of a row are named 'count'"),
        (lambda keyed: keyed.aggregate(agg.count(), out=Lacks), "Lacks does not fit .*: it has no field count. Name"),
        (lambda keyed: keyed.aggregate(agg.count(), out=Wants), ": nothing fills user. Name"),
        (lambda keyed: keyed.aggregate(agg.count(), out=WantsToo), ": nothing fills user. Name"),
        (lambda keyed: keyed.aggregate(agg.count(), out=5), "out is a pydantic model, a Struct or a dataclass"),
        (lambda keyed: keyed.aggregate(agg.count(), out=dict), "out is a pydantic model, a Struct or a dataclass"),
    ],
)
def test_what_makes_no_row_is_refused_with_the_users_line(verb: Any, says: str) -> None:
    with pytest.raises(PlanError, match=rf"{says}(?s:.)*test_rows.py"):
        verb(keyed(Pipeline("p")))


def test_a_stream_without_keys_has_no_aggregates() -> None:
    stream: Any = Pipeline("p").source(ListSource([1]), name="in")

    with pytest.raises(PlanError, match=r"put .key_by\(...\) before it"):
        stream.aggregate(agg.count())
