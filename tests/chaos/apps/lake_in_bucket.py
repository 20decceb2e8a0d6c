"""Running totals per account to tables of a lake in a bucket: all of them, and the newest of each account."""

import os

from running_totals import Total, running_totals

from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.iceberg import IcebergSink

BUCKET, ENDPOINT, REGION = os.environ["TEST_BUCKET"], os.environ["TEST_ENDPOINT"], "us-east-1"
CATALOG = {
    "type": "sql",
    "uri": f"sqlite:///{os.environ['TEST_CATALOG']}",
    "warehouse": f"{BUCKET}/iceberg",
    "s3.endpoint": ENDPOINT,
    "s3.region": REGION,
}


def delta(name: str, **options: object) -> DeltaSink[Total]:
    return DeltaSink(f"{BUCKET}/{name}?endpoint={ENDPOINT}&region={REGION}", value=Total, create=True, **options)


def iceberg(name: str, **options: object) -> IcebergSink[Total]:
    return IcebergSink(f"shop.{name}", properties=CATALOG, value=Total, create=True, **options)


pipeline, totals = running_totals()
totals.sink(delta("delta", partition_by=["account"]), name="to-delta")
totals.sink(iceberg("totals", partition_by=["bucket[4](account)"]), name="to-iceberg")
totals.sink(delta("newest", key="account"), name="newest-to-delta")
totals.sink(iceberg("newest", key="account"), name="newest-to-iceberg")

if __name__ == "__main__":
    pipeline.run()
