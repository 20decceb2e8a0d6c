"""What a type checker must infer for users. Checked with ``mypy --strict``; never run."""

from collections.abc import Iterable
from typing import assert_type

import msgspec

from kafka_eos import KeyedStream, Pipeline, ProcessContext, ProcessFunction, Stream
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Order(msgspec.Struct):
    user: str
    amount: int


class Total(msgspec.Struct):
    user: str
    total: int


class Rank(ProcessFunction[str, Order, tuple[str, int]]):
    def open(self, ctx: ProcessContext) -> None:
        self.best = ctx.value_state("best", int, default=0)

    def process(self, key: str, value: Order) -> Iterable[tuple[str, int]]:
        if value.amount > self.best.get():
            self.best.put(value.amount)
            yield key, value.amount


pipeline = Pipeline("typed")
orders = pipeline.source("orders", KafkaSource("orders", value=Order))
assert_type(orders, Stream[Order])
assert_type(orders.map(lambda o: o.amount), Stream[int])
assert_type(orders.filter(lambda o: o.amount > 0), Stream[Order])
assert_type(orders.flat_map(lambda o: [o.user, o.user]), Stream[str])
assert_type(orders.map_batches(lambda batch: [o.amount for o in batch]), Stream[int])
assert_type(orders.union(orders.filter(lambda o: o.amount > 1)), Stream[Order])

keyed = orders.key_by(lambda o: o.user)
assert_type(keyed, KeyedStream[str, Order])
assert_type(keyed.fold("sum", init=lambda: 0, step=lambda total, o: total + o.amount), Stream[tuple[str, int]])
assert_type(keyed.reduce("max", lambda a, b: max(a, b, key=lambda o: o.amount), state=Order), Stream[Order])
assert_type(keyed.process("rank", Rank), Stream[tuple[str, int]])
assert_type(keyed.process("rank-2", Rank()), Stream[tuple[str, int]])

totals = keyed.fold(
    "total",
    init=lambda: 0,
    step=lambda total, o: total + o.amount,
    emit=lambda user, total: Total(user, total),
)
assert_type(totals, Stream[Total])
totals.sink("totals", KafkaSink("totals", value=Total, key=lambda t: t.user))
orders.sink("wrong", KafkaSink("totals", value=Total))  # type: ignore[arg-type]
orders.fold("no-key")  # type: ignore[attr-defined]
