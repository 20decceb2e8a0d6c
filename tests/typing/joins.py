"""What a type checker must infer of connected streams. Checked with ``mypy --strict``; never run."""

from collections.abc import Iterable
from typing import assert_type

import msgspec

from kafka_eos import (
    ConnectedStreams,
    CoProcessFunction,
    OutputTag,
    Pipeline,
    Stream,
    connect,
    monotonic,
    rows,
    session,
    tumbling,
)
from kafka_eos.connectors.kafka import KafkaSource


class Order(msgspec.Struct):
    id: int
    user: str


class Payment(msgspec.Struct):
    order: int
    amount: float


class Watch(CoProcessFunction[int, Order, Payment, str]):
    def process_left(self, key: int, value: Order) -> Iterable[str]:
        return [value.user]

    def process_right(self, key: int, value: Payment) -> Iterable[str]:
        return [str(value.amount)]


def paid(order: Order, payment: Payment) -> float:
    return payment.amount


UNPAID, UNORDERED = OutputTag("unpaid", Order), OutputTag("unordered", Payment)
pipeline = Pipeline("typed")
orders = pipeline.source(KafkaSource("orders", value=Order), name="orders").with_timestamps(watermarks=monotonic())
payments = pipeline.source(KafkaSource("payments", value=Payment), name="payments").with_timestamps(
    watermarks=monotonic()
)
by_id = orders.key_by(lambda order: order.id)
by_order = payments.key_by(lambda payment: payment.order)
both = connect(by_id, by_order)
assert_type(both, ConnectedStreams[int, Order, Payment])
assert_type(both.process(Watch), Stream[str])
assert_type(both.process(Watch()).side_output(UNPAID), Stream[Order])
connect(by_order, by_id).process(Watch)  # type: ignore[arg-type]
connect(by_id, payments)  # type: ignore[call-overload]
near = both.interval_join(paid, lower=0, upper=600, unmatched_left=UNPAID, unmatched_right=UNORDERED, late_left=UNPAID)
assert_type(near, Stream[float])
assert_type(near.side_output(UNORDERED), Stream[Payment])
assert_type(both.window_join(tumbling(seconds=60), paid, late_right=UNORDERED), Stream[float])
named = both.window_join(session(gap=60), lambda order, payment: (order.user, payment.amount))
assert_type(named, Stream[tuple[str, float]])
both.interval_join(paid, lower=0, upper=1, unmatched_left=UNORDERED)  # type: ignore[arg-type]
both.window_join(rows(3), paid)  # type: ignore[arg-type]
connect(by_order, by_id).interval_join(paid, lower=0, upper=1)  # type: ignore[arg-type]
