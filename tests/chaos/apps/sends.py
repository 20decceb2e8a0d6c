"""Running totals per account to Kafka and to a receiver over HTTP."""

import os
import time

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


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
totals.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="to-kafka")
totals.sink(
    HttpSink(
        os.environ["TEST_URL"],
        outbox=os.environ["TEST_OUTBOX"],
        value=Total,
        batch=int(os.environ.get("TEST_ROWS", "1")),
    ),
    name="to-service",
)

if __name__ == "__main__":
    pipeline.run()
