"""Running totals per account to Kafka, PostgreSQL, Parquet files in partitions, a Delta and an Iceberg table."""

import os
import time

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.iceberg import IcebergSink
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
totals.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="to-kafka")
totals.sink(PostgresSink(os.environ["TEST_DATABASE"], "totals", value=Total, create=True), name="to-rows")
totals.sink(
    FileSink(
        os.environ["TEST_OUT_DIR"],
        value=Total,
        format="parquet",
        partition_by=lambda total: {"even": total.id % 2 == 0},
        epoch_files=True,
    ),
    name="to-lake",
)
totals.sink(
    DeltaSink(os.environ["TEST_TABLES"] + "/delta", value=Total, create=True, partition_by=["account"]), name="to-delta"
)
totals.sink(
    IcebergSink(
        "shop.totals",
        properties={
            "type": "sql",
            "uri": f"sqlite:///{os.environ['TEST_TABLES']}/catalog.db",
            "warehouse": f"file://{os.environ['TEST_TABLES']}/iceberg",
        },
        value=Total,
        create=True,
    ),
    name="to-iceberg",
)

if __name__ == "__main__":
    pipeline.run()
