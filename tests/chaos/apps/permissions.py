"""Running totals per account to Kafka, to two tables and to files in a bucket, as docs/permissions.md has them."""

import os

from running_totals import Total, running_totals

from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.connectors.postgres import PostgresSink

pipeline, totals = running_totals()
database = os.environ["TEST_DATABASE"]
totals.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="to-kafka")
totals.sink(PostgresSink(database, "totals", value=Total), name="to-rows")
totals.sink(PostgresSink(database, "newest", value=Total, key="account"), name="to-newest")
totals.sink(FileSink(os.environ["TEST_FILES"], value=Total), name="to-files")

if __name__ == "__main__":
    pipeline.run()
