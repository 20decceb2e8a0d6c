"""Running totals per account to Kafka and to two tables of an SQLite file: all of them, and the newest ones."""

import os
import time

import msgspec

from docs.examples.sqlite_sink import Sqlite
from kafka_eos import Pipeline
from kafka_eos.connectors.dbapi import DbApiSink
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
DATABASE = Sqlite(os.environ["TEST_DATABASE"])
COLUMNS = {"account": "TEXT NOT NULL", "total": "INTEGER NOT NULL", "id": "INTEGER NOT NULL"}
totals.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="to-kafka")
totals.sink(DbApiSink(DATABASE, "totals", COLUMNS), name="to-rows")
totals.sink(DbApiSink(DATABASE, "newest", COLUMNS, key="account"), name="to-newest")

if __name__ == "__main__":
    pipeline.run()
