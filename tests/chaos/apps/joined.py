"""Joins of every kind, of an account: payments whose id is no multiple of three are orders, the others pay for them.

The id of a payment tells its event time, in milliseconds since ``TEST_BASE``; see ``windows.py``.
"""

import os
import time
from collections.abc import Iterable

import msgspec

from kafka_eos import (
    CoProcessFunction,
    OutputTag,
    Pipeline,
    ProcessContext,
    Stream,
    connect,
    monotonic,
    session,
    sliding,
)
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

BASE = int(os.environ["TEST_BASE"])
PAUSE = float(os.environ.get("TEST_PAUSE", "0.0002"))
SIZE = 100


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Found(msgspec.Struct):
    kind: str
    key: str
    ids: list[int]


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    return payment


def pair(order: Payment, payment: Payment) -> Found:
    return Found("near", order.account, [order.id, payment.id])


def in_window(order: Payment, payment: Payment) -> Found:
    return Found("window", order.account, [order.id, payment.id])


def in_session(order: Payment, payment: Payment) -> Found:
    return Found("session", order.account, [order.id, payment.id])


def unpaid_of(order: Payment) -> Found:
    return Found("unpaid", order.account, [order.id])


def unordered_of(payment: Payment) -> Found:
    return Found("unordered", payment.account, [payment.id])


def lonely_of(order: Payment) -> Found:
    return Found("lonely", order.account, [order.id])


class Counts(CoProcessFunction[str, Payment, Payment, Found]):
    """How many orders and payments an account has in each hundred ids."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.orders = ctx.map_state("orders", int, int)
        self.payments = ctx.map_state("payments", int, int)

    def process_left(self, key: str, value: Payment) -> Iterable[Found]:
        end = self.end()
        self.orders.put(end, (self.orders.get(end) or 0) + 1)
        return []

    def process_right(self, key: str, value: Payment) -> Iterable[Found]:
        end = self.end()
        self.payments.put(end, (self.payments.get(end) or 0) + 1)
        return []

    def end(self) -> int:
        assert self.ctx.timestamp > self.ctx.watermark, "a payment is late, and none is"
        end = (self.ctx.timestamp - BASE) // SIZE * SIZE + SIZE
        self.timers.register(BASE + end - 1)
        return end

    def on_timer(self, key: str, time: int) -> Iterable[Found]:
        end = time + 1 - BASE
        found = Found("counts", key, [end, self.orders.get(end) or 0, self.payments.get(end) or 0])
        self.orders.remove(end)
        self.payments.remove(end)
        return [found]


UNPAID, UNORDERED, LONELY = (OutputTag(name, Payment) for name in ("unpaid", "unordered", "lonely"))
pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=100,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
read: Stream[Payment] = (
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .with_timestamps(lambda payment: BASE + payment.id, watermarks=monotonic())
    .map(slowly)
)
orders = read.filter(lambda payment: payment.id % 3 != 0 and payment.id % 300 < 200, name="orders")
payments = read.filter(lambda payment: payment.id % 3 == 0 and payment.amount > 3, name="paid")
both = connect(
    orders.key_by(lambda payment: payment.account, name="by-order"),
    payments.key_by(lambda payment: payment.account, name="by-payment"),
)
near = both.interval_join(pair, name="near", lower=-0.03, upper=0.06, unmatched_left=UNPAID, unmatched_right=UNORDERED)
windows = both.window_join(sliding(seconds=0.1, every=0.05), in_window, name="windows", unmatched_left=LONELY)
near.union(
    windows,
    both.window_join(session(gap=0.045), in_session, name="sessions"),
    both.process(Counts, name="counts"),
    near.side_output(UNPAID).map(unpaid_of, name="unpaid-shown"),
    near.side_output(UNORDERED).map(unordered_of, name="unordered-shown"),
    windows.side_output(LONELY).map(lonely_of, name="lonely-shown"),
    name="all",
).sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Found, key=lambda found: found.key), name="to-kafka")

if __name__ == "__main__":
    pipeline.run()
