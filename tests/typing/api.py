"""What a type checker must infer for users. Checked with ``mypy --strict``; never run."""

from collections.abc import Iterable
from typing import Any, assert_type

import msgspec

from kafka_eos import (
    KeyedStream,
    OutputTag,
    Pipeline,
    ProcessContext,
    ProcessFunction,
    Stream,
    Ttl,
    agg,
    bounded,
    generated,
    monotonic,
)
from kafka_eos.codecs import Registry, avro
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, Record


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


LOW = OutputTag("low", Order)


class Sorted(ProcessFunction[str, Order, int]):
    side_outputs = (LOW,)

    def open(self, ctx: ProcessContext) -> None:
        self.ctx = ctx

    def process(self, key: str, value: Order) -> Iterable[int]:
        self.ctx.output(LOW, value)
        self.ctx.output(LOW, key)  # type: ignore[misc]
        return [value.amount]


pipeline = Pipeline("typed")
orders = pipeline.source(KafkaSource("orders", value=Order), name="orders")
assert_type(orders, Stream[Order])
assert_type(orders.map(lambda o: o.amount), Stream[int])
assert_type(orders.filter(lambda o: o.amount > 0), Stream[Order])
assert_type(orders.flat_map(lambda o: [o.user, o.user]), Stream[str])
assert_type(orders.map_batches(lambda batch: [o.amount for o in batch]), Stream[int])
assert_type(orders.with_timestamps(lambda o: o.amount, watermarks=bounded(5).with_idleness(60)), Stream[Order])
assert_type(orders.with_timestamps(watermarks=monotonic()), Stream[Order])


def newest(so_far: int | None, order: Order, time: int) -> int:
    return max(so_far or 0, time)


own = generated(int, on_event=newest, watermark=lambda newest: newest - 1)
assert_type(orders.with_timestamps(watermarks=own), Stream[Order])
assert_type(orders.union(orders.filter(lambda o: o.amount > 1)), Stream[Order])

assert_type(KafkaSource("orders"), KafkaSource[bytes])
assert_type(KafkaSource("orders", value=str), KafkaSource[str])
in_avro = avro(Order, registry=Registry("http://localhost:8081"))
assert_type(KafkaSource("orders", value=in_avro), KafkaSource[Order])
assert_type(KafkaSource.records("orders", key=str, value=in_avro), KafkaSource[Record[str, Order]])
orders.sink(KafkaSink("orders-again", value=in_avro), name="orders-again")
assert_type(KafkaSource.records("orders"), KafkaSource[Record[bytes, bytes]])
assert_type(KafkaSource.records("orders", key=str), KafkaSource[Record[str, bytes]])
assert_type(KafkaSource.records("orders", value=Order, start="latest"), KafkaSource[Record[bytes, Order]])
assert_type(KafkaSource.records("orders", key=str, value=Order), KafkaSource[Record[str, Order]])
records = pipeline.source(KafkaSource.records("orders", key=str, value=Order), name="records")
assert_type(records.filter(lambda r: r.value is not None), Stream[Record[str, Order]])

keyed = orders.key_by(lambda o: o.user)
assert_type(orders.key_by("user"), KeyedStream[Any, Order])
assert_type(keyed, KeyedStream[str, Order])
assert_type(keyed.fold(name="sum", init=lambda: 0, step=lambda total, o: total + o.amount), Stream[tuple[str, int]])
assert_type(keyed.reduce(lambda a, b: max(a, b, key=lambda o: o.amount), name="max", state=Order), Stream[Order])
assert_type(keyed.reduce(lambda a, b: max(a, b, key=lambda o: o.amount)), Stream[Order])
hour = Ttl(3600, clock="event")
assert_type(keyed.fold(name="hourly", init=int, step=lambda n, o: n + o.amount, ttl=hour), Stream[tuple[str, int]])
assert_type(keyed.reduce(lambda a, b: max(a, b, key=lambda o: o.amount), name="highest", ttl=hour), Stream[Order])
keyed.fold(name="wrong-ttl", init=int, step=lambda n, o: n + o.amount, ttl=3600)  # type: ignore[call-overload]
assert_type(keyed.aggregate(user_total=agg.sum(lambda o: o.amount), out=Total), Stream[Total])
keyed.aggregate(
    agg.count(), agg.mean(lambda o: o.amount), best=agg.max_by(lambda o: o.amount, lambda o: o.user), name="best"
)
assert_type(
    keyed.aggregate(
        agg.sum("amount"), agg.mean("amount"), agg.min("amount"), best=agg.max_by("amount", "user"), out=Total
    ),
    Stream[Total],
)
keyed.aggregate(agg.first("user"), agg.top(2, "amount"), agg.collect("user", by="amount"), name="named")
keyed.aggregate(agg.collect(), wrong=agg.sum(lambda o: o.price))  # type: ignore[attr-defined]
keyed.aggregate(total=5)  # type: ignore[call-overload]
assert_type(keyed.process(Rank, name="rank"), Stream[tuple[str, int]])
assert_type(keyed.process(Rank(), name="rank-2"), Stream[tuple[str, int]])
assert_type(keyed.process(Sorted, name="sorted"), Stream[int])
assert_type(keyed.process(Sorted, name="sorted-2").side_output(LOW), Stream[Order])

totals = keyed.fold(
    name="total",
    init=lambda: 0,
    step=lambda total, o: total + o.amount,
    emit=lambda user, total: Total(user, total),
)
assert_type(totals, Stream[Total])
totals.sink(KafkaSink("totals", value=Total, key=lambda t: t.user), name="totals")
orders.sink(KafkaSink("totals", value=Total), name="wrong")  # type: ignore[arg-type]
orders.fold(name="no-key")  # type: ignore[attr-defined]

pipeline.source(KafkaSource("orders", value=Order), name="again").sink(KafkaSink("same-type"), name="same-type")
pipeline.source(KafkaSource("orders", value=Order), name="other").sink(
    KafkaSink("other-type", value=Total),  # type: ignore[arg-type]
    name="other-type",
)
pipeline.source(KafkaSource("orders", value=Order), name="by-field").sink(
    KafkaSink("by-field", key="user"), name="keyed-by-field"
)
