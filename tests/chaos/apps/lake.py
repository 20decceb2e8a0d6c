"""Running totals per account to Kafka, PostgreSQL, Parquet files in partitions, a Delta and an Iceberg table; and the
newest of each account to another table of each kind.
"""

import os

from running_totals import Total, running_totals

from kafka_eos.abc.sink import Sink
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.connectors.postgres import PostgresSink

CATALOG = {
    "type": "sql",
    "uri": f"sqlite:///{os.environ['TEST_TABLES']}/catalog.db",
    "warehouse": f"file://{os.environ['TEST_TABLES']}/iceberg",
}
SINKS: dict[str, Sink[Total]] = {
    "to-kafka": KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account),
    "to-rows": PostgresSink(os.environ["TEST_DATABASE"], "totals", value=Total, create=True),
    "to-lake": FileSink(
        os.environ["TEST_OUT_DIR"],
        value=Total,
        format="parquet",
        partition_by=lambda total: {"even": total.id % 2 == 0},
        epoch_files=True,
    ),
    "to-delta": DeltaSink(os.environ["TEST_TABLES"] + "/delta", value=Total, create=True, partition_by=["account"]),
    "to-iceberg": IcebergSink(
        "shop.totals", properties=CATALOG, value=Total, create=True, partition_by=["bucket[4](account)"]
    ),
    "newest-to-delta": DeltaSink(os.environ["TEST_TABLES"] + "/newest", value=Total, create=True, key="account"),
    "newest-to-iceberg": IcebergSink("shop.newest", properties=CATALOG, value=Total, create=True, key="account"),
}

pipeline, totals = running_totals()
for name, sink in SINKS.items():
    if name in os.environ.get("TEST_ALONE", name):
        totals.sink(sink, name=name)

if __name__ == "__main__":
    pipeline.run()
