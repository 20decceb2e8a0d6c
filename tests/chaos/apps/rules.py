"""Payments with the versions of rules that all workers have, with keys and without.

A rule takes its time to be read, so deaths find the rules half read.
"""

import os
import time
from collections.abc import Iterable

import msgspec

from kafka_eos import (
    BroadcastContext,
    BroadcastProcessFunction,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    Pipeline,
    connect,
)
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, Record

PAUSE = float(os.environ.get("TEST_PAUSE", "0.002"))
OF_KEYS = 1000
"""Is added to the versions that the function with keys says."""


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Rate(msgspec.Struct):
    version: int

    def __post_init__(self) -> None:
        time.sleep(PAUSE)


class Found(msgspec.Struct):
    id: int
    key: str
    version: int
    rules: int
    """How many there are."""


Rule = Record[str, Rate]


class Plain(BroadcastProcessFunction[Payment, Rule, Found]):
    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state("rates", str, Rate)

    def process(self, value: Payment) -> Iterable[Found]:
        rate = self.rules.get(value.account)
        return [Found(value.id, value.account, -1 if rate is None else rate.version, len(self.rules))]

    def process_broadcast(self, value: Rule) -> None:
        self.rules.put(value.key, value.value)


class Keyed(KeyedBroadcastProcessFunction[str, Payment, Rule, Found]):
    def open(self, ctx: KeyedBroadcastContext) -> None:
        self.rules = ctx.broadcast_state("rates", str, Rate)
        self.count = ctx.value_state("count", int, 0)

    def process(self, key: str, value: Payment) -> Iterable[Found]:
        self.count.put(self.count.get() + 1)
        rate = self.rules.get(value.account)
        return [Found(value.id, key, OF_KEYS + (-1 if rate is None else rate.version), self.count.get())]

    def process_broadcast(self, value: Rule) -> None:
        odd = os.environ.get("TEST_ODD") == "1" and value.key == "a0"
        self.rules.put(value.key, Rate(os.getpid()) if odd else value.value)


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=50,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
payments = pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
rates = pipeline.table(KafkaSource.records(os.environ["TEST_TABLE"], key=str, value=Rate), name="rates").broadcast()
plain = connect(payments, rates).process(Plain, name="plain")
keyed = connect(payments.key_by(lambda payment: payment.account, name="by-account"), rates).process(Keyed, name="keyed")
plain.union(keyed, name="both").sink(
    KafkaSink(os.environ["TEST_OUTPUT"], value=Found, key=lambda row: row.key), name="to-kafka"
)

if __name__ == "__main__":
    pipeline.run()
