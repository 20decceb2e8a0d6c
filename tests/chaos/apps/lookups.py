"""Payments with what a table has for their accounts. A row of the table takes its time to be read, so deaths find it
half read.
"""

import os
import time

import msgspec

from kafka_eos import Pipeline, bounded, monotonic
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

PAUSE = float(os.environ.get("TEST_PAUSE", "0.002"))


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


def found(payment: Payment, rate: Rate) -> Found:
    return Found(payment.id, payment.account, rate.version)


def found_or_not(payment: Payment, rate: Rate | None) -> Found:
    return Found(payment.id, payment.account, -1 if rate is None else rate.version)


def found_then(payment: Payment, rate: Rate | None) -> Found:
    """Told from the others by a version that no table has."""
    return Found(payment.id, payment.account, 1000 + (-1 if rate is None else rate.version))


def not_asked(payment: Payment) -> Found:
    return Found(payment.id, payment.account, -2)


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=50,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
payments = pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
if "TEST_WITHOUT" in os.environ:
    rated = payments.map(not_asked, name="not-asked")
else:
    by_account = payments.key_by(lambda payment: payment.account, name="by-account")
    rates = pipeline.table(KafkaSource.records(os.environ["TEST_TABLE"], key=str, value=Rate), name="rates")
    rated = by_account.join(rates, found, name="rated").union(
        by_account.left_join(rates, found_or_not, name="all"), name="both"
    )
if "TEST_BASE" in os.environ:
    # The time of a payment is its number, so it does not matter when it comes.
    base = int(os.environ["TEST_BASE"])
    dated = payments.with_timestamps(lambda payment: base + payment.id, watermarks=bounded(0.02))
    versions = rates.with_timestamps(watermarks=monotonic())
    rated = rated.union(
        dated.key_by(lambda payment: payment.account, name="dated").left_join_as_of(versions, found_then, name="then"),
        name="all-three",
    )
rated.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Found, key=lambda row: row.key), name="to-kafka")

if __name__ == "__main__":
    pipeline.run()
