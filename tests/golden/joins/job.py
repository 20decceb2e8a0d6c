"""The job that the golden job directories in this folder were made of: joins of all kinds, and a function of both.

Its payments are in the file, and no broker is needed. They had come to the first sixty; with TEST_MORE there are sixty
more, for a version that goes on with what is stored.
"""

import os
from collections.abc import Iterable
from typing import Any

import msgspec
from pydantic import BaseModel

from kafka_eos import (
    CoProcessFunction,
    OutputTag,
    Pipeline,
    ProcessContext,
    bounded,
    connect,
    session,
    sliding,
    tumbling,
)
from kafka_eos.connectors.files import FileSink
from kafka_eos.testing import ListSource

GOLDEN = 60


class Order(msgspec.Struct):
    id: int
    account: str
    total: float


class Payment(BaseModel):
    id: int
    account: str
    amount: float


def at(row: Any) -> int:
    """About half a second apart, some a second late, with a pause of four seconds each thirteen."""
    return row.id * 500 + row.id // 13 * 4000 - (1000 if row.id % 3 == 0 else 0)


def line(result: Any) -> bytes:
    return repr(result).encode()


class Balance(CoProcessFunction[str, Order, Payment, str]):
    """What an account owes at each tenth second."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.changes = ctx.map_state("changes", int, float)

    def process_left(self, key: str, value: Order) -> Iterable[str]:
        return self.change(value.id * 2, value.total)

    def process_right(self, key: str, value: Payment) -> Iterable[str]:
        return self.change(value.id * 2 + 1, -value.amount)

    def change(self, number: int, amount: float) -> Iterable[str]:
        self.changes.put(number, amount)
        self.timers.register(self.ctx.timestamp // 10_000 * 10_000 + 9_999)
        return []

    def on_timer(self, key: str, time: int) -> Iterable[str]:
        due = [number for number, _ in self.changes.items() if at(Order(number // 2, key, 0)) <= time]
        yield f"{key} {time} {sorted(due)} {round(sum(self.changes.get(n) or 0 for n in sorted(due)), 6)}"
        for number in due:
            self.changes.remove(number)


ORDERS = [Order(n, f"a{n * n % 4}", n * 0.1) for n in range(2 * GOLDEN)]
PAYMENTS = [Payment(id=n, account=f"a{n % 4}", amount=n * 0.01) for n in range(2 * GOLDEN) if n % 5]
MORE = bool(os.environ.get("TEST_MORE"))

pipeline = Pipeline(
    f"golden-{os.environ['TEST_BACKEND']}",
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    state_backend=os.environ["TEST_BACKEND"],
)
orders = (
    pipeline.source(ListSource(ORDERS if MORE else ORDERS[:GOLDEN]), name="orders")
    .with_timestamps(at, watermarks=bounded(1))
    .key_by(lambda order: order.account, name="by-account", values=Order)
)
payments = (
    pipeline.source(ListSource(PAYMENTS if MORE else PAYMENTS[: GOLDEN * 4 // 5]), name="payments")
    .with_timestamps(at, watermarks=bounded(1))
    .key_by(lambda payment: payment.account, name="by-payer", values=Payment)
)
both = connect(orders, payments)


def pair(order: Order, payment: Payment) -> tuple[int, int, float]:
    return order.id, payment.id, order.total


UNPAID, UNORDERED = OutputTag("unpaid", Order), OutputTag("unordered", Payment)
near = both.interval_join(pair, name="near", lower=-1, upper=3, unmatched_left=UNPAID, unmatched_right=UNORDERED)
results: dict[str, Any] = {
    "near": near,
    "unpaid": near.side_output(UNPAID),
    "unordered": near.side_output(UNORDERED),
    "inner": both.interval_join(pair, name="inner", lower=0, upper=5),
    "tumbled": both.window_join(tumbling(seconds=5), pair, name="tumbled"),
    "slid": both.window_join(sliding(seconds=6, every=2), pair, name="slid"),
    "sessions": both.window_join(session(gap=3), pair, name="sessions"),
    "balance": both.process(Balance, name="balance"),
}
for name, stream in results.items():
    stream.map(line, name=f"{name}-line").sink(FileSink(f"{os.environ['TEST_FILES']}/{name}"), name=f"{name}-out")
