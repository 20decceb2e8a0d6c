"""Numbers to files, and to tables that the sinks make: Delta, Iceberg and PostgreSQL, added or by key.

No broker: the input is a list.
"""

import os
import time

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.testing import ListSource


class Number(msgspec.Struct):
    id: int


def slowly(number: Number) -> Number:
    """Slow enough for several epochs."""
    time.sleep(0.005)
    return number


TABLES, DATABASE = os.environ["TEST_TABLES"], os.environ["TEST_DATABASE"]
CATALOG = {"type": "sql", "uri": f"sqlite:///{TABLES}/catalog.db", "warehouse": f"file://{TABLES}/iceberg"}

pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=10,
    retained_checkpoints=50,
)
numbers = pipeline.source(ListSource([Number(n) for n in range(100)]), name="numbers").map(slowly)
numbers.sink(DeltaSink(f"{TABLES}/delta", value=Number, create=True), name="to-delta")
numbers.sink(IcebergSink("shop.numbers", properties=CATALOG, value=Number, create=True), name="to-iceberg")
numbers.sink(PostgresSink(DATABASE, "numbers", value=Number, create=True), name="to-rows")
if os.environ.get("TEST_MORE"):
    numbers.sink(FileSink(f"{TABLES}/files", value=Number), name="to-files")
    numbers.sink(DeltaSink(f"{TABLES}/keyed", value=Number, create=True, key="id"), name="keyed-to-delta")
    numbers.sink(
        IcebergSink("shop.keyed", properties=CATALOG, value=Number, create=True, key="id"), name="keyed-to-iceberg"
    )
    numbers.sink(PostgresSink(DATABASE, "keyed", value=Number, create=True, key="id"), name="keyed-to-rows")

if __name__ == "__main__":
    pipeline.run()
