"""Running totals per account, for the apps that differ in their sinks alone.

Rule: what a test sets is read when ``running_totals`` is called, so one process can build several jobs.
"""

import os
import time

import msgspec

from kafka_eos import Pipeline, Stream
from kafka_eos.connectors.kafka import KafkaSource


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Total(msgspec.Struct):
    account: str
    total: int
    id: int


def slowly(payment: Payment) -> Payment:
    """Slow enough to be hit in the middle."""
    time.sleep(0.0002)
    return payment


def add(total: Total, payment: Payment) -> Total:
    return Total(payment.account, total.total + payment.amount, payment.id)


def running_totals() -> tuple[Pipeline, Stream[Total]]:
    """A new pipeline, and its stream of totals."""
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
    return pipeline, totals
