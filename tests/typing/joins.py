"""What a type checker must infer of connected streams. Checked with ``mypy --strict``; never run."""

from collections.abc import Iterable
from typing import assert_type

import msgspec

from kafka_eos import ConnectedStreams, CoProcessFunction, OutputTag, Pipeline, Stream, connect, monotonic
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


UNPAID = OutputTag("unpaid", Order)
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
connect(by_id, payments)  # type: ignore[arg-type]
