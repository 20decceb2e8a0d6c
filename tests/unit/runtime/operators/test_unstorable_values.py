"""A value that an exchange or a state cannot hold is its row's fault: the row is rejected, and changes nothing."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec
import pytest

from kafka_eos import (
    BroadcastProcessFunction,
    Pipeline,
    PlanError,
    PoisonRecord,
    ProcessFunction,
    Ttl,
    bounded,
    connect,
    rows,
    session,
    sliding,
    tumbling,
)
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.core.records import Batch, Record
from kafka_eos.runtime.operators.exchanged_rows import encode_rows
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.testing import ListSource, MemorySink, run_local
from kafka_eos.testing.list_source import ListOrigin

NAIVE = {"at": datetime.datetime(2024, 1, 1)}
LARGEST = 2**64 - 1
"""The largest number that MessagePack has: one more cannot be stored."""


def plus(one: int, other: int) -> int:
    return one + other


class Sums(ProcessFunction[str, int, int]):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, ctx: Any) -> None:
        match self.kind:
            case "value":
                self.state = ctx.value_state("sum", int, default=0)
            case "map":
                self.state = ctx.map_state("sum", str, int)
            case "reducing":
                self.state = ctx.reducing_state("sum", int, plus)

    def process(self, key: str, value: int) -> Any:
        match self.kind:
            case "value":
                self.state.put(self.state.get() + value)
            case "map":
                self.state.put("all", (self.state.get("all") or 0) + value)
                return [self.state.get("all")]
            case "reducing":
                self.state.add(value)
        return [self.state.get()]


STATES: dict[str, Callable[[Any], Any]] = {
    "fold": lambda s: s.fold(name="f", init=int, step=plus, emit=lambda key, total: total, state=int),
    "fold with a ttl": lambda s: s.fold(
        name="f", init=int, step=plus, emit=lambda key, total: total, state=int, ttl=Ttl(9e9)
    ),
    "reduce": lambda s: s.reduce(plus, name="f", state=int),
    "value": lambda s: s.process(Sums("value"), name="f"),
    "map": lambda s: s.process(Sums("map"), name="f"),
    "reducing": lambda s: s.process(Sums("reducing"), name="f"),
    "rows": lambda s: s.window(rows(2)).reduce(plus, name="f", state=int).map(lambda out: out.value),
}


def run(pipeline: Pipeline, given: dict[str, list[Any]], batch_size: int) -> tuple[list[Any], list[int]]:
    """Return the outputs, and the offsets of the dead letters."""
    found = run_local(pipeline, given, batch_size=batch_size)
    return found["out"], [letter.raw.offset for letter in found["in-dead-letters"]]


def flow(shape: Callable[[Any], Any]) -> Pipeline:
    pipeline = Pipeline("limits")
    stream = pipeline.source(ListSource([]), name="in", on_error=DeadLetters(MemorySink()))
    shape(stream).sink(MemorySink(), name="out")
    return pipeline


@pytest.mark.parametrize("batch_size", [1, 500])
@pytest.mark.parametrize("state", STATES)
def test_a_row_with_which_state_could_not_be_stored_is_rejected(state: str, batch_size: int) -> None:
    pipeline = flow(lambda s: STATES[state](s.key_by(lambda value: "k", values=int)))

    out, letters = run(pipeline, {"in": [1, LARGEST, 2]}, batch_size)

    assert (out, letters) == ([3] if state == "rows" else [1, 3], [1])


def timed(stream: Any) -> Any:
    """Row 9 ends the window and fires the timers of the others."""
    return stream.with_timestamps(lambda value: 10_000 if value == 9 else 0, watermarks=bounded(seconds=0))


@pytest.mark.parametrize("batch_size", [1, 500])
@pytest.mark.parametrize(
    "window", [tumbling(seconds=1), sliding(seconds=2, every=1), session(gap=1)], ids=["tumbling", "sliding", "session"]
)
def test_so_it_is_in_windows(window: Any, batch_size: int) -> None:
    def shape(stream: Any) -> Any:
        return timed(stream).key_by(lambda value: "k", values=int).window(window).reduce(plus, name="w", state=int)

    out, letters = run(flow(shape), {"in": [1, LARGEST, 2, 9]}, batch_size)

    assert {result.value for result in out} == {3}
    assert letters == [1]


@pytest.mark.parametrize("batch_size", [1, 500])
def test_so_it_is_in_a_fold_in_two_phases(batch_size: int) -> None:
    pipeline = flow(
        lambda s: s.key_by(lambda value: "k").fold(
            name="f", init=int, step=plus, merge=plus, emit=lambda key, total: total, state=int
        )
    )

    assert run(pipeline, {"in": [1, LARGEST, 2]}, batch_size) == ([3], [1])


EXCHANGES: dict[str, Callable[[Any], Any]] = {
    "key_by": lambda s: s.key_by(lambda value: "k").process(Kept, name="f"),
    "rebalance": lambda s: s.rebalance(),
}


class Kept(ProcessFunction[str, Any, Any]):
    def process(self, key: str, value: Any) -> Any:
        return [value]


@pytest.mark.parametrize("odd", [NAIVE, LARGEST + 1, {"of": [LARGEST + 1]}], ids=["naive", "large", "nested"])
@pytest.mark.parametrize("batch_size", [1, 500])
@pytest.mark.parametrize("exchange", ["key_by", "rebalance"])
def test_a_row_that_an_exchange_cannot_carry_is_rejected_with_one_worker_too(
    exchange: str, batch_size: int, odd: Any
) -> None:
    assert run(flow(EXCHANGES[exchange]), {"in": [1, odd, 2]}, batch_size) == ([1, 2], [1])


class Paid(enum.StrEnum):
    YES = "yes"


class Held(msgspec.Struct):
    """Declares its fields, but not what is in one of them."""

    count: int
    more: Any


def held(value: int) -> Held:
    """Hold what no schema says: of 2 it is an enum, which would come back as a text."""
    return Held(value, Paid.YES if value == 2 else "yes")


def replaced(acc: Held | None, value: int) -> Held:
    return held(value)


class Remembered(ProcessFunction[str, int, int]):
    def open(self, ctx: Any) -> None:
        self.timers, self.last = ctx.timers(), ctx.value_state("last", Held)

    def process(self, key: str, value: int) -> Any:
        self.last.put(held(value))
        self.timers.register(value)
        return []

    def on_timer(self, key: str, time: int) -> Any:
        return [self.last.get().count]


def count_of(value: Held) -> int:
    return value.count


UNDECLARED: dict[str, Callable[[Any], Any]] = {
    "key_by": lambda s: s.map(held).key_by(lambda value: "k", values=Held).process(Kept, name="f").map(count_of),
    "rebalance": lambda s: s.map(held).rebalance(values=Held).map(count_of),
    "fold": lambda s: s.key_by(lambda value: "k").fold(
        name="f", init=lambda: None, step=replaced, emit=lambda key, acc: count_of(acc), state=Held
    ),
    "state and timers": lambda s: timed(s).key_by(lambda value: "k", values=int).process(Remembered, name="f"),
    "window": lambda s: (
        timed(s)
        .key_by(lambda value: "k", values=int)
        .window(tumbling(seconds=1))
        .fold(name="f", init=lambda: None, step=replaced, emit=lambda key, window, acc: acc.count, state=Held)
    ),
}


@pytest.mark.parametrize("batch_size", [1, 500])
@pytest.mark.parametrize("path", UNDECLARED)
def test_a_part_of_any_class_is_rejected_at_its_row(path: str, batch_size: int) -> None:
    out, letters = run(flow(UNDECLARED[path]), {"in": [1, 2, 3, 9]}, batch_size)

    assert letters == [1]
    assert out
    assert 2 not in out


def test_without_dead_letters_the_job_stops_at_the_row() -> None:
    pipeline = Pipeline("limits")
    pipeline.source(ListSource([]), name="in").rebalance(name="spread").sink(MemorySink(), name="out")

    with pytest.raises(PoisonRecord, match=r"(?s)'spread'.*would arrive as") as found:
        run_local(pipeline, {"in": [1, NAIVE]})

    assert "/1" in str(found.value)


class Undeclared:
    """A class that an exchange carries only if the stream declares it."""


def test_rows_that_lack_a_declared_type_are_named_as_the_plans_fault_beside_rows_that_are_rejected() -> None:
    plan = flow(EXCHANGES["rebalance"]).plan()
    (exchange,) = plan.exchanges
    values = [NAIVE, Undeclared()]
    batch = Batch(values, range(2), ListOrigin("in", "list", 0, 0, values))

    def encode(rows: Batch[Any]) -> None:
        encode_rows(exchange, rows)

    with (
        closing(OperatorChain(plan, {}, {}, {exchange.name: encode})) as chain,
        pytest.raises(PlanError, match="values cannot be sent through exchange"),
    ):
        chain.push("in", batch)


def test_a_row_of_a_table_that_cannot_be_stored_is_rejected() -> None:
    pipeline = Pipeline("limits")
    table: Any = pipeline.table(ListSource([]), name="in", values=Record[str, int], on_error=DeadLetters(MemorySink()))
    stream: Any = pipeline.source(ListSource([]), name="stream")
    stream.key_by(str).join(table, lambda row, rate: rate, name="rated").sink(MemorySink(), name="out")
    rates = [Record("a", 1), Record("a", LARGEST + 1)]

    assert run(pipeline, {"in": rates, "stream": ["a"]}, 500) == ([1], [1])


class Rules(BroadcastProcessFunction[int, int, int]):
    def open(self, ctx: Any) -> None:
        self.rule = ctx.broadcast_state("rule", str, int)

    def process_broadcast(self, value: int) -> None:
        self.rule.put("sum", (self.rule.get("sum") or 0) + value)

    def process(self, value: int) -> Any:
        return [self.rule.get("sum")]


def test_a_rule_that_cannot_be_stored_is_rejected() -> None:
    pipeline = Pipeline("limits")
    rules: Any = pipeline.source(ListSource([]), name="in", on_error=DeadLetters(MemorySink()))
    stream: Any = pipeline.source(ListSource([]), name="stream")
    connect(stream, rules.broadcast(values=int)).process(Rules, name="f").sink(MemorySink(), name="out")

    assert run(pipeline, {"in": [1, LARGEST, 2], "stream": [0]}, 500) == ([3], [1])


def test_an_answer_that_cannot_be_cached_rejects_its_row() -> None:
    async def ask(key: int) -> int:
        return LARGEST + key

    pipeline = flow(
        lambda s: s.key_by(lambda value: value, values=int).async_map(ask, name="ask", cache=Ttl(60), join=plus)
    )

    assert run(pipeline, {"in": [0, 1]}, 500) == ([LARGEST], [1])
