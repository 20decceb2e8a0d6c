"""Numbers to tables that the sinks make: Delta, Iceberg and PostgreSQL. No broker: the input is a list."""

import os

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.testing import ListSource


class Number(msgspec.Struct):
    id: int


TABLES = os.environ["TEST_TABLES"]
CATALOG = {"type": "sql", "uri": f"sqlite:///{TABLES}/catalog.db", "warehouse": f"file://{TABLES}/iceberg"}

pipeline = Pipeline(os.environ["TEST_JOB"], checkpoint_dir=os.environ["TEST_CHECKPOINTS"], checkpoint_interval=0.1)
numbers = pipeline.source(ListSource([Number(n) for n in range(100)]), name="numbers")
numbers.sink(DeltaSink(f"{TABLES}/delta", value=Number, create=True), name="to-delta")
numbers.sink(IcebergSink("shop.numbers", properties=CATALOG, value=Number, create=True), name="to-iceberg")
numbers.sink(PostgresSink(os.environ["TEST_DATABASE"], "numbers", value=Number, create=True), name="to-rows")

if __name__ == "__main__":
    pipeline.run()
