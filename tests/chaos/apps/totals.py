"""The pipeline under fault: running totals per account to Kafka and to files, slow enough to be hit in the middle.

Topics and directories come from the environment, so that every test has its own.
"""

import os
import time

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Total(msgspec.Struct):
    account: str
    total: int
    id: int


PAUSE = float(os.environ.get("TEST_PAUSE", "0.0002"))
AFTER = float(os.environ.get("TEST_PAUSE_AFTER", "0"))
"""Seconds a row behind the exchange: what is slow there keeps rows under way."""
PROVENANCE = os.environ.get("TEST_PROVENANCE", "header")


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    return payment


def add(total: Total, payment: Payment) -> Total:
    return Total(payment.account, total.total + payment.amount, payment.id)


def emitted(account: str, total: Total) -> Total:
    time.sleep(AFTER)
    return total


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=100,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
totals = (
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .map(slowly)
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account, local="TEST_LOCAL" in os.environ)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add, emit=emitted)
)
totals.sink(
    KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account, provenance=PROVENANCE),
    name="to-kafka",
)
totals.sink(FileSink(os.environ["TEST_FILES"], value=Total), name="to-files")

if __name__ == "__main__":
    pipeline.run()
