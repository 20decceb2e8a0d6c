"""Running totals per account to Kafka and to a receiver over HTTP."""

import os

from running_totals import Total, running_totals

from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.kafka import KafkaSink

pipeline, totals = running_totals()
totals.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="to-kafka")
totals.sink(
    HttpSink(
        os.environ["TEST_URL"],
        outbox=os.environ["TEST_OUTBOX"],
        value=Total,
        batch=int(os.environ.get("TEST_ROWS", "1")),
    ),
    name="to-service",
)

if __name__ == "__main__":
    pipeline.run()
