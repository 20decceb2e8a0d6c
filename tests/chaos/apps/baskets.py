"""Two sources, united, fanned out, and a process function with state: everything that the plain totals lack.

Each payment becomes as many items as its amount modulo three says; the basket of an account counts and adds them, and
is emptied when it is full.
"""

import os
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, ValueState
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Item(msgspec.Struct):
    origin: str
    account: str
    id: int
    number: int
    amount: int


class Basket(msgspec.Struct):
    origin: str
    account: str
    id: int
    number: int
    count: int
    total: int
    filled: int


FULL = 7
PAUSE = float(os.environ.get("TEST_PAUSE", "0"))
SECRETS: dict[str, Any] = {"ssl.key.password": os.environ["TEST_SECRET"]}


def items(payment: Payment) -> list[Item]:
    time.sleep(PAUSE)
    return [Item("", payment.account, payment.id, n, payment.amount) for n in range(payment.amount % 3)]


def marked(origin: str) -> Any:
    return lambda item: Item(origin, item.account, item.id, item.number, item.amount)


class Fill(ProcessFunction[str, Item, Basket]):
    """Numbers the items of an account within a basket; a full one is put away."""

    count: ValueState[int]
    total: ValueState[int]
    filled: ValueState[int]

    def open(self, ctx: ProcessContext) -> None:
        self.count = ctx.value_state("count", int, 0)
        self.total = ctx.value_state("total", int, 0)
        self.filled = ctx.value_state("filled", int, 0)

    def process(self, account: str, item: Item) -> Iterable[Basket]:
        count, total = self.count.get() + 1, self.total.get() + item.amount
        self.count.put(count)
        self.total.put(total)
        yield Basket(item.origin, account, item.id, item.number, count, total, self.filled.get())
        if count == FULL:
            self.count.clear()
            self.total.clear()
            self.filled.put(self.filled.get() + 1)


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=50,
    restart_backoff_initial=0.05,
)
shop = pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment, config=SECRETS), name="shop")
web = pipeline.source(KafkaSource(os.environ["TEST_INPUT_2"], value=Payment, config=SECRETS), name="web")
baskets = (
    shop.flat_map(items, name="shop-items")
    .map(marked("shop"), name="from-shop")
    .union(web.flat_map(items, name="web-items").map(marked("web"), name="from-web"), name="all")
    .key_by(lambda item: item.account, values=Item)
    .process(Fill, name="fill")
)
baskets.sink(
    KafkaSink(os.environ["TEST_OUTPUT"], value=Basket, key=lambda b: b.account, config=SECRETS), name="to-kafka"
)
baskets.sink(FileSink(os.environ["TEST_FILES"], value=Basket), name="to-files")

if __name__ == "__main__":
    pipeline.run()
