"""Functions of every kind of operator are called with their operator and their record at hand, for log lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_eos import (
    KeyedStream,
    Pipeline,
    PoisonRecord,
    ProcessContext,
    ProcessFunction,
    Stream,
    agg,
    monotonic,
    tumbling,
)
from kafka_eos._util.log_context import RowPosition, current_position, leave_operator
from kafka_eos.testing import ListSource, MemorySink, run_local

VALUES = list(range(20))
Look = Callable[[int], int]


def keyed(stream: Stream[int]) -> KeyedStream[int, int]:
    return stream.key_by(lambda value: value % 3)


def in_time(stream: Stream[int]) -> KeyedStream[int, int]:
    return keyed(stream.with_timestamps(lambda value: value, name="times", watermarks=monotonic()))


class Remembers(ProcessFunction[int, int, int]):
    """Sets timers, and looks where it is called: for a row and by a timer."""

    def __init__(self, look: Look, look_by_timer: Look) -> None:
        self._look, self._look_by_timer = look, look_by_timer

    def open(self, ctx: ProcessContext) -> None:
        self._timers = ctx.timers()

    def process(self, key: int, value: int) -> Iterator[int]:
        self._timers.register(value)
        yield self._look(value)

    def on_timer(self, key: int, time: int) -> Iterator[int]:
        self._look_by_timer(key)
        yield from ()


def asked(stream: Stream[int], look: Look) -> Stream[int]:
    async def ask(value: int) -> int:
        return look(value)

    return stream.async_map(ask, name="at", capacity=4)


def nothing(value: int) -> int:
    return value


VERBS: dict[str, Callable[[Stream[int], Look], Stream[Any]]] = {
    "map": lambda stream, look: stream.map(look, name="at"),
    "filter": lambda stream, look: stream.filter(lambda value: look(value) >= 0, name="at"),
    "flat_map": lambda stream, look: stream.flat_map(lambda value: [look(value)] * 2, name="at"),
    "behind a filter": lambda stream, look: stream.filter(lambda value: value % 2 > 0).map(look, name="at"),
    "key_by": lambda stream, look: stream.key_by(look, name="at").fold(
        name="total", init=int, step=lambda acc, value: acc
    ),
    "fold": lambda stream, look: keyed(stream).fold(init=int, step=lambda acc, value: acc + look(value), name="at"),
    "fold with merge": lambda stream, look: keyed(stream).fold(
        init=int, step=lambda acc, value: acc + look(value), merge=int.__add__, name="at"
    ),
    "window": lambda stream, look: in_time(stream).window(tumbling(seconds=1)).aggregate(n=agg.sum(look), name="at"),
    "process": lambda stream, look: in_time(stream).process(Remembers(look, nothing), name="at"),
    "async_map": asked,
    "async_map in threads": lambda stream, look: stream.async_map(look, name="at", capacity=4),
}


def run(verb: Callable[[Stream[int]], Stream[Any]]) -> None:
    pipeline = Pipeline("looks")
    verb(pipeline.source(ListSource(VALUES), name="in")).sink(MemorySink(), name="out")
    run_local(pipeline, {"in": VALUES}, batch_size=7)


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_a_function_is_called_at_its_record(verb: Callable[[Stream[int], Look], Stream[Any]]) -> None:
    found: dict[int, RowPosition | None] = {}

    def look(value: int) -> int:
        found[value] = current_position()
        return value

    run(lambda stream: verb(stream, look))

    assert set(found) >= {value for value in VALUES if value % 2}
    names = {at.operator for at in found.values() if at}
    assert names <= {"at", "at-partial"} and len(names) == 1
    assert {value: (at.topic, at.partition, at.offset) for value, at in found.items() if at} == {
        value: ("in", 0, value) for value in found
    }
    assert current_position() is None


def test_a_function_that_a_timer_calls_has_an_operator_and_no_record() -> None:
    found: set[RowPosition | None] = set()

    def look(value: int) -> int:
        found.add(current_position())
        return value

    run(lambda stream: in_time(stream).process(Remembers(nothing, look), name="at"))

    assert found == {RowPosition("at")}


def test_where_a_function_raised_is_still_at_hand() -> None:
    def raises(value: int) -> int:
        return 1 // (value - 9)

    with pytest.raises(PoisonRecord) as error:
        run(lambda stream: stream.map(raises, name="at"))

    assert (
        current_position()
        == RowPosition("at", "in", 0, 9)
        == RowPosition.parse(error.value.operator, error.value.where)
    )
    leave_operator()


@pytest.mark.parametrize("where", ["", "key 3, time 5", "orders/0"])
def test_what_names_no_record_has_none(where: str) -> None:
    assert RowPosition.parse("at", where) == RowPosition("at")
    assert str(RowPosition("at")) == "operator at"


def test_a_topic_may_be_named_as_it_likes() -> None:
    assert RowPosition.parse("at", "a/b/0/17") == RowPosition("at", "a/b", 0, 17)
    assert str(RowPosition("at", "a/b", 0, 17)) == "operator at, record a/b/0/17"
