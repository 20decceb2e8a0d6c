"""Running totals per account to Kafka and to two tables: every total as a row, and the newest of each account.

An account whose total is a multiple of ten is deleted from the second table until its next payment.
"""

import os
import time
from typing import Any

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.postgres import PostgresSink


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Total(msgspec.Struct):
    account: str
    total: int
    id: int


def slowly(payment: Payment) -> Payment:
    time.sleep(0.0002)
    return payment


def add(total: Total, payment: Payment) -> Total:
    return Total(payment.account, total.total + payment.amount, payment.id)


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=100,
    restart_backoff_initial=0.05,
)
totals = (
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .map(slowly)
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add, emit=lambda account, total: total)
)
if os.environ["TEST_OUTPUT"]:
    totals.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="to-kafka")
DATABASE = os.environ["TEST_DATABASE"]
STRATEGY: Any = os.environ.get("TEST_STRATEGY")
totals.sink(PostgresSink(DATABASE, "totals", value=Total, create=True, strategy=STRATEGY), name="to-rows")
totals.sink(
    PostgresSink(
        DATABASE,
        "newest",
        value=Total,
        key="account",
        delete=lambda total: total.total % 10 == 0,
        create=True,
    ),
    name="to-newest",
)

if __name__ == "__main__":
    pipeline.run()
