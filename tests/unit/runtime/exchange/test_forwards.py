"""Forward exchanges are put in where a plan could not be cut without, and nowhere else; they leave no trace on rows."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import Pipeline, ProcessFunction, Stream, Ttl, monotonic, tumbling
from kafka_eos.codecs import KeyCodec, exchange_codec
from kafka_eos.codecs.returned_values import unchanged
from kafka_eos.core.errors import PlanError
from kafka_eos.core.ids import Epoch, SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.provenance import format_provenance
from kafka_eos.core.records import Batch
from kafka_eos.plan import FeedbackNode, ForwardNode, Node, Plan
from kafka_eos.plan.explain import explain
from kafka_eos.plan.feedback_edges import back_edges
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.exchange.routing import make_restore_router
from kafka_eos.runtime.operators.exchanged_rows import UnencodableRows, encode_rows, expect_encodable
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.operators.timer_firing import FiringOrigin, branch_of
from kafka_eos.runtime.state.key_groups import group_of, key_group_range, subtask_of
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin


class Item(msgspec.Struct):
    key: str
    number: int


def as_items(value: int) -> list[Item]:
    return [Item(f"k{value % 5}", n) for n in range(3)]


def source(pipeline: Pipeline, name: str = "in") -> Stream[Any]:
    return pipeline.source(ListSource([]), name=name)


def forwards(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {node.name: node.inputs for node in plan.nodes if isinstance(node, ForwardNode)}


def waits_for_itself(plan: Plan) -> bool:
    """Does rows' way lead from a segment back into it, loops apart?"""
    ways = [
        (one.index, other.index)
        for one in plan.segments
        for other in plan.segments
        for name in one.tails
        if name in other.heads and not isinstance(plan.node(name), FeedbackNode)
    ]
    return bool(back_edges((segment.index for segment in plan.segments), ways))


def without(plan: Plan, forward: str) -> Plan:
    (above,) = plan.node(forward).inputs
    nodes = [node for node in plan.nodes if node.name != forward]
    led = [
        msgspec.structs.replace(n, inputs=tuple(above if name == forward else name for name in n.inputs)) for n in nodes
    ]
    return replace(plan, nodes=tuple(led))


# ---------------------------------------------------------------- where they are


def test_rows_that_have_passed_one_exchange_meet_rows_that_have_passed_two() -> None:
    pipeline = Pipeline("p")
    once = source(pipeline).rebalance(name="one")
    once.rebalance(name="two").union(once, source(pipeline, "late"), name="all").sink(MemorySink(), name="out")
    plan = pipeline.plan()

    assert forwards(plan) == {"all-forward-1": ("one",)}
    assert plan.node("all").inputs == ("two", "all-forward-1", "late")
    assert not waits_for_itself(plan)


def test_two_unions_that_wait_for_each_other_need_one() -> None:
    pipeline = Pipeline("p")
    left, right = source(pipeline, "left"), source(pipeline, "right")
    left.rebalance(name="over").union(right, name="first").sink(MemorySink(), name="a")
    right.rebalance(name="back").union(left, name="second").sink(MemorySink(), name="b")
    plan = pipeline.plan()

    assert forwards(plan) == {"second-forward-1": ("left",)}
    assert not waits_for_itself(plan)


def test_sources_that_come_to_an_exchange_need_none() -> None:
    pipeline = Pipeline("p")
    source(pipeline, "one").rebalance(name="spread").union(source(pipeline, "two")).sink(MemorySink(), name="out")

    assert forwards(pipeline.plan()) == {}


def test_a_diamond_in_a_loop() -> None:
    """The way back waits for nothing; the ways in the loop do."""
    pipeline = Pipeline("p")

    def body(values: Stream[Any]) -> tuple[Stream[Any], Stream[Any]]:
        both = values.rebalance(name="over", values=int).union(values, name="both")
        return both.filter(bool), both

    source(pipeline).iterate(body, name="rounds", values=int).sink(MemorySink(), name="out")
    plan = pipeline.plan()

    assert forwards(plan) == {"both-forward-1": ("rounds",)}
    assert not waits_for_itself(plan)
    assert len(plan.loops_only) == 1, "with one worker the loop alone is cut"


def test_one_that_the_user_writes_is_enough() -> None:
    pipeline = Pipeline("p")
    stream = source(pipeline)
    stream.rebalance(name="over").union(stream.forward(name="stays", values=int).map(str, name="a"), name="both").sink(
        MemorySink(), name="out"
    )
    plan = pipeline.plan()

    assert forwards(plan) == {"stays": ("in",)}
    assert "stays  forward" in explain(plan)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    pipeline = Pipeline("any")
    streams = [source(pipeline, f"in-{n}") for n in range(draw(st.integers(1, 3)))]
    for n in range(draw(st.integers(1, 9))):
        picked = draw(st.lists(st.integers(0, len(streams) - 1), min_size=1, max_size=3, unique=True))
        first, *others = [streams[at] for at in picked]
        if others:
            streams.append(first.union(*others, name=f"union-{n}"))
        elif draw(st.booleans()):
            streams.append(first.rebalance(name=f"spread-{n}"))
        else:
            streams.append(first.map(str, name=f"map-{n}"))
    for n, stream in enumerate(streams):
        stream.sink(MemorySink(), name=f"out-{n}")
    return pipeline.plan()


@given(plans())
def test_any_plan_can_be_cut_and_each_forward_was_needed(plan: Plan) -> None:
    assert not waits_for_itself(plan)
    assert all(waits_for_itself(without(plan, forward)) for forward in forwards(plan))


# ---------------------------------------------------------------- what they leave as it is


def diamond() -> Plan:
    pipeline = Pipeline("names")
    stream = source(pipeline).flat_map(as_items, name="items")
    both = stream.rebalance(name="over", values=Item).union(stream, name="both").flat_map(twice, name="twice")
    both.rebalance(name="again", values=int).sink(MemorySink(), name="out")
    return pipeline.plan()


def twice(item: Item) -> list[int]:
    return [item.number, item.number]


def names(plan: Plan, through: Callable[[Node, Batch[Any]], Batch[Any]] | None) -> list[str]:
    """Provenance of every output; ``through``: what becomes of a batch on its way through a forward exchange."""
    out: list[str] = []
    chain: OperatorChain

    def sender(node: Node) -> Callable[[Batch[Any]], None]:
        return lambda batch: chain.push(node.name, batch if through is None else through(node, batch))

    exchanges = {name: sender(plan.node(name)) for name in forwards(plan)} if through else {}
    chain = OperatorChain(
        plan, {}, {"out": lambda batch: out.extend(format_provenance(batch, "job", Term(1), Epoch(1)))}, exchanges
    )
    values = list(range(10))
    chain.push("in", Batch(values, range(10), ListOrigin("in", "topic", 0, 0, values)))
    return sorted(out)


def written(node: Node, batch: Batch[Any]) -> Batch[Any]:
    """As rows under way, in one frame with others."""
    assert node.exchange_codec is not None
    return wire.decode(wire.encode_all([batch], node.exchange_codec, False, keep_rows=True), node.exchange_codec)


def test_outputs_are_named_as_without() -> None:
    """Values of one row stay together: their numbers go on behind it, written on the way or not."""
    plan = diamond()
    assert forwards(plan) == {"both-forward-1": ("items",)}

    found = names(without(plan, "both-forward-1"), None)

    assert found == names(plan, None) == names(plan, lambda _, batch: batch) == names(plan, written)
    assert len(set(found)) == len(found) == 10 * 3 * 2 * 2


def test_batches_in_one_frame_keep_their_rows_apart() -> None:
    values = [1, 2, 3]
    origin = ListOrigin("in", "topic", 0, 0, values)
    batches = [Batch(["a", "b", "c"], [0, 0, 2], origin), Batch(["d", "e"], [2, 2], origin)]

    arrived = wire.decode(wire.encode_all(batches, exchange_codec(str), False, keep_rows=True), exchange_codec(str))

    assert list(arrived.origin_rows) == [0, 0, 2, 3, 3]
    assert [arrived.origin.offsets[row] for row in arrived.origin_rows] == [0, 0, 2, 2, 2]


def test_a_frame_without_the_column_is_read() -> None:
    """As checkpoints have them that were made before there was one."""
    codec = exchange_codec(str)
    frame = wire.encode(Batch(["a"], [0], ListOrigin("in", "topic", 0, 0, ["a"])), codec, False)
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(frame)[:11])

    assert wire.decode(older, codec).values == ["a"]


# ---------------------------------------------------------------- rows under way, at another parallelism

PARALLELISM = 3
PARTITIONS = 7
VALUES = [f"v{n}" for n in range(PARTITIONS)]
BY_KEY = {value: subtask_of(group_of(KeyCodec().encode(value)), PARALLELISM) for value in VALUES}
BY_SPLIT = {value: n % PARALLELISM for n, value in enumerate(VALUES)}


def meeting(verb: Callable[[Stream[Any]], Stream[Any]]) -> Plan:
    """What ``verb`` makes, and the rows of a second source, meet what has gone through one more exchange."""
    pipeline = Pipeline("deep")
    stream = verb(source(pipeline)).union(source(pipeline, "other"), name="some")
    stream.rebalance(name="over").union(stream, name="both").sink(MemorySink(), name="out")
    return pipeline.plan()


def totals(stream: Stream[Any], name: str = "last", local: bool = False) -> Stream[Any]:
    return stream.key_by(str, local=local).reduce(lambda _, value: value, name=name)


def restored(plan: Plan, name: str, known: Positions, lane: int = 0, number: int = 0) -> dict[Any, int]:
    """The subtask of each value; row n is of partition n, and it is its own key."""
    origin = ListOrigin(name, "topic", 0, 0, VALUES)
    origin.partitions = range(PARTITIONS)
    batch = Batch(VALUES, range(PARTITIONS), origin, keys=VALUES, lane=lane)
    parts = make_restore_router(plan, plan.node("both-forward-1"), PARALLELISM, {name: known})(number, batch)
    return {value: target for target, part in parts for value in part.values}


@pytest.mark.parametrize(
    ("verb", "wanted"),
    [
        (lambda stream: stream.map(str), BY_SPLIT),
        (lambda stream: totals(stream).map(str), BY_KEY),
        (lambda stream: totals(stream, local=True).map(str), BY_SPLIT),
        (lambda stream: totals(stream.forward(), local=True), BY_SPLIT),
        (lambda stream: totals(totals(stream).rebalance(), "again"), BY_KEY),
        (lambda stream: totals(stream).rebalance(), dict.fromkeys(VALUES, 5 % PARALLELISM)),
        (lambda stream: totals(stream).broadcast(), dict.fromkeys(VALUES, 5 % PARALLELISM)),
    ],
    ids=["read", "by key", "by key, local", "local behind a forward", "by key once more", "spread", "copied"],
)
def test_rows_go_where_later_ones_of_their_key_or_split_will_be(
    verb: Callable[[Stream[Any]], Stream[Any]], wanted: dict[Any, int]
) -> None:
    assert restored(meeting(verb), "in", {SplitId("topic/4"): {}}, lane=0, number=5) == wanted


def test_two_ways_to_one_forward_are_told_apart() -> None:
    plan = meeting(totals)

    assert restored(plan, "in", {}, lane=0) == BY_KEY
    assert restored(plan, "other", {}, lane=1) == BY_SPLIT


def test_splits_that_tell_no_number_are_refused() -> None:
    """Where their later rows will be read is not known; where keys go, is."""
    unnumbered: Positions = {SplitId("events.log"): {}}

    assert restored(meeting(totals), "in", unnumbered) == BY_KEY
    with pytest.raises(PlanError, match=r"'both-forward-1'.*'events.log' does not end .* parallelism=1"):
        restored(meeting(lambda stream: stream.map(str)), "in", unnumbered)


def ticks(keys: Sequence[str]) -> Batch[Any]:
    """What timers make: a row for each key, as it comes out of a checkpoint."""
    encoded = [KeyCodec().encode(key) for key in keys]
    origin = FiringOrigin("ticks", "event-time", [group_of(key) for key in encoded], range(len(keys)))
    return Batch(
        list(keys), range(len(keys)), origin, branch=list(map(branch_of, encoded)), event_times=origin.timestamps()
    )


def fired(pipeline: Pipeline) -> Stream[Any]:
    """Results of windows before their end, so many of a key may wait."""
    timed = source(pipeline).with_timestamps(int, watermarks=monotonic()).key_by(str, name="by")
    return timed.window(tumbling(seconds=10, early=1)).fold(init=str, step=last, merge=last, name="ticks")


def last(_: str, value: object) -> str:
    return str(value)


def waits(value: str) -> str:
    return value


@pytest.mark.parametrize(
    ("verb", "lane", "wanted"),
    [
        (lambda stream: stream.map(str), 0, BY_KEY),
        (lambda stream: stream.union(stream.map(str)), 1, BY_KEY),
        (lambda stream: stream.forward(values=str), 0, BY_KEY),
        (lambda stream: stream.rebalance(values=str), 0, None),
    ],
    ids=["made", "in a union", "behind a forward", "spread"],
)
def test_what_timers_made_goes_where_later_firings_of_its_key_will_be(
    verb: Callable[[Stream[Any]], Stream[Any]], lane: int, wanted: dict[str, int] | None
) -> None:
    """It comes in as many frames as checkpoints have found it in; none may go before an older one of its key."""
    pipeline = Pipeline("p")
    verb(fired(pipeline)).async_map(waits, name="ask", values=str).sink(MemorySink(), name="out")
    plan = pipeline.plan()
    node = plan.node("ask-requests")
    assert node.exchange_codec is not None
    split = make_restore_router(plan, node, PARALLELISM, {"in": {}})

    for number in range(4):
        frame = wire.decode(
            wire.encode_at(plan, node, [msgspec.structs.replace(ticks(VALUES), lane=lane)]), node.exchange_codec
        )
        found = {value: target for target, part in split(number, frame) for value in part.values}
        assert found == (wanted or dict.fromkeys(VALUES, number % PARALLELISM))


def test_what_timers_made_goes_by_its_new_key_if_it_has_one() -> None:
    pipeline = Pipeline("p")
    again = fired(pipeline).key_by(lambda value: "one", name="again").process(Passing, name="passes")
    again.async_map(waits, name="ask", values=str).sink(MemorySink(), name="out")
    plan = pipeline.plan()
    batch = msgspec.structs.replace(ticks(VALUES), keys=["one"] * PARTITIONS)
    owner = subtask_of(group_of(KeyCodec().encode("one")), PARALLELISM)

    for number in range(PARALLELISM):
        ((target, part),) = make_restore_router(plan, plan.node("ask-requests"), PARALLELISM, {"in": {}})(number, batch)
        assert (target, part.values) == (owner, VALUES)


@pytest.mark.parametrize(("source", "lane"), [("in", 0), ("in", 1), ("gone", 0)])
def test_rows_that_wait_for_the_answer_of_their_key_go_to_its_owner_whatever_way_they_came_in_an_older_plan(
    source: str, lane: int
) -> None:
    """The answers that are kept are there, and no other worker may look for them."""
    pipeline = Pipeline("p")
    keyed = pipeline.source(ListSource([]), name="in").key_by(str, name="by", values=str)
    keyed.async_map(waits, pair, name="ask", cache=Ttl(60)).sink(MemorySink(), name="out")
    plan = pipeline.plan()
    batch = Batch(VALUES, range(PARTITIONS), ListOrigin(source, "topic", 0, 0, VALUES), keys=VALUES, lane=lane)

    parts = make_restore_router(plan, plan.node("ask-requests"), PARALLELISM, {"in": {}})(5, batch)

    assert {value: target for target, part in parts for value in part.values} == BY_KEY


def test_rows_under_way_go_to_who_owns_their_key() -> None:
    """At an exchange by key; where they stay behind one, with state of keys before them or not; and firings."""
    owners = {
        value: next(n for n in range(PARALLELISM) if group in key_group_range(n, PARALLELISM))
        for value in VALUES
        for group in [group_of(KeyCodec().encode(value))]
    }
    pipeline = Pipeline("p")
    keyed = pipeline.source(ListSource([]), name="in").key_by(str, name="by", values=str)
    keyed.async_map(waits, pair, name="ask", cache=Ttl(60)).sink(MemorySink(), name="out")
    fires = Pipeline("fires")
    fired(fires).async_map(waits, name="ask", values=str).sink(MemorySink(), name="out")
    rows = Batch(VALUES, range(PARTITIONS), ListOrigin("in", "topic", 0, 0, VALUES), keys=VALUES)

    for plan, exchange, batch in (
        (pipeline.plan(), "by", rows),
        (pipeline.plan(), "ask-requests", rows),
        (meeting(totals), "both-forward-1", rows),
        (fires.plan(), "ask-requests", ticks(VALUES)),
    ):
        for number in range(PARALLELISM):
            parts = make_restore_router(plan, plan.node(exchange), PARALLELISM, {"in": {}})(number, batch)
            assert {value: target for target, part in parts for value in part.values} == owners, exchange


def pair(value: str, answer: str) -> str:
    return value + answer


class Passing(ProcessFunction[str, str, str]):
    def process(self, key: str, value: str) -> Iterator[str]:
        yield value


# ---------------------------------------------------------------- types that are not known


class Plain:
    """A class that no codec can take."""


def as_plain(value: int) -> Plain:
    return Plain()


def test_a_type_that_cannot_be_written_is_refused_where_it_is_written() -> None:
    """With one worker, and in aligned checkpoints, nothing is: the plan is as good as it was."""
    plan = meeting(lambda stream: stream.map(as_plain))
    batch = Batch([Plain()], range(1), ListOrigin("in", "topic", 0, 0, [0]))

    with pytest.raises(PlanError, match=r"forward 'both-forward-1'.*\.forward\(values=\.\.\.\)"):
        wire.encode_at(plan, plan.node("both-forward-1"), [batch])


@pytest.mark.parametrize(
    "value",
    [
        *({"a": [1, 1.5, True, None, "1", b"x"]}, [], {1: "a", "1": "b"}, -0.0, 2**64 - 1),
        *((1, 2), [(1,)], {1}, {"a": {1}}, 2**64, Plain(), Item("k", 1), "\ud800", datetime.date(2026, 6, 1)),
        *(datetime.datetime(2026, 6, 1), decimal.Decimal(1), uuid.UUID(int=0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_row_of_unknown_type_arrives_unchanged_or_is_refused_where_it_is_written(value: Any) -> None:
    """The embedded engine hands over the row itself; Spark writes it."""
    node = meeting(lambda stream: stream.map(lambda value: value)).node("both-forward-1")
    batch = Batch([value], range(1), ListOrigin("in", "topic", 0, 0, [value]))
    assert node.exchange_codec is not None and node.exchange_codec.schema == {}

    expect_encodable(node, batch)
    try:
        encoded = encode_rows(node, batch)
    except UnencodableRows:
        return
    assert unchanged(*node.exchange_codec.decode(encoded.values), value)


def test_a_type_that_is_known_is_used() -> None:
    pipeline = Pipeline("p")
    stream = source(pipeline).flat_map(as_items)
    stream.rebalance(name="over").union(stream, name="both").sink(MemorySink(), name="out")
    codec = pipeline.plan().node("both-forward-1").exchange_codec

    assert codec is not None
    assert codec.schema == exchange_codec(Item).schema
