"""Running totals per account to Kafka and to two tables: every total as a row, and the newest of each account.

An account whose total is a multiple of ten is deleted from the second table until its next payment.
"""

import os
from typing import Any

from running_totals import Total, running_totals

from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.connectors.postgres import PostgresSink

pipeline, totals = running_totals()
if os.environ["TEST_OUTPUT"]:
    totals.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="to-kafka")
DATABASE = os.environ["TEST_DATABASE"]
STRATEGY: Any = os.environ.get("TEST_STRATEGY")
totals.sink(PostgresSink(DATABASE, "totals", value=Total, create=True, strategy=STRATEGY), name="to-rows")
totals.sink(
    PostgresSink(
        DATABASE,
        "newest",
        value=Total,
        key="account",
        delete=lambda total: total.total % 10 == 0,
        create=True,
    ),
    name="to-newest",
)

if __name__ == "__main__":
    pipeline.run()
