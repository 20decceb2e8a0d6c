"""What a type checker must infer of windows. Checked with ``mypy --strict``; never run."""

from collections.abc import Iterable
from typing import assert_type

import msgspec

from kafka_eos import (
    OutputTag,
    Pipeline,
    Stream,
    Window,
    Windowed,
    WindowedStream,
    agg,
    days,
    monotonic,
    on_clock,
    on_count,
    session,
    sliding,
    tumbling,
)
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Order(msgspec.Struct):
    user: str
    amount: int


class Total(msgspec.Struct):
    key: str
    start: int
    end: int
    count: int


def add(total: int, order: Order) -> int:
    return total + order.amount


def merge(a: int, b: int) -> int:
    return a + b


def half(user: str, window: Window, total: int) -> float:
    return total / 2


def names(user: str, window: Window, orders: list[Order]) -> Iterable[bytes]:
    yield f"{user} {window.end} {orders[0].amount}".encode()


LATE = OutputTag("late", Order)
pipeline = Pipeline("typed")
orders = pipeline.source(KafkaSource("orders", value=Order), name="orders").with_timestamps(watermarks=monotonic())
keyed = orders.key_by(lambda o: o.user)
windows = keyed.window(tumbling(seconds=60, offset=5), lateness=5, late=LATE)
assert_type(windows, WindowedStream[str, Order])
assert_type(windows.reduce(lambda a, b: a if a.amount > b.amount else b), Stream[Windowed[str, Order]])
assert_type(windows.fold(init=int, step=add), Stream[Windowed[str, int]])
assert_type(windows.fold(init=int, step=add, emit=half), Stream[float])
assert_type(windows.aggregate(agg.count(), out=Total), Stream[Total])
assert_type(windows.process(names), Stream[bytes])
assert_type(windows.process(names).side_output(LATE), Stream[Order])
totals = keyed.window(sliding(seconds=60, every=10)).fold(init=int, step=add, merge=merge)
totals.sink(KafkaSink("totals", value=Windowed[str, int], key=lambda total: total.key), name="totals")
assert_type(totals.map(lambda total: total.window.end - total.window.start), Stream[int])
keyed.window(session(gap=60))
keyed.window(tumbling(seconds=60), trigger=on_count(5).purging())
keyed.window(session(gap=60), trigger=on_clock(every=5))
keyed.window(session(gap=60), trigger=5)  # type: ignore[arg-type]
keyed.window(days("Europe/Berlin"))
keyed.window(tumbling(60))  # type: ignore[call-arg]
keyed.window(60)  # type: ignore[arg-type]
keyed.window(tumbling(seconds=60), late=OutputTag("late", str))  # type: ignore[arg-type]
