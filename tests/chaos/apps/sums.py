"""Sums per account in two phases. One account has half of all payments; there is one output an account and epoch."""

import os
import time

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

PAUSE = float(os.environ.get("TEST_PAUSE", "0"))
HOT = "hot"


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Sum(msgspec.Struct):
    count: int
    total: int


class Shown(msgspec.Struct):
    account: str
    count: int
    total: int


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    return payment


def account(payment: Payment) -> str:
    return HOT if payment.id % 2 else payment.account


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=50,
    restart_backoff_initial=0.05,
)
sums = (
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .map(slowly, name="slowly")
    .key_by(account)
    .fold(
        name="sum",
        init=lambda: Sum(0, 0),
        step=lambda acc, payment: Sum(acc.count + 1, acc.total + payment.amount),
        merge=lambda one, other: Sum(one.count + other.count, one.total + other.total),
        emit=lambda key, acc: Shown(key, acc.count, acc.total),
    )
)
sums.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Shown, key=lambda shown: shown.account), name="to-kafka")

if __name__ == "__main__":
    pipeline.run()
