"""Running totals per account to Kafka and to two tables of an SQLite file: all of them, and the newest ones."""

import os

from running_totals import Total, running_totals

from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.connectors.kafka import KafkaSink

pipeline, totals = running_totals()
DATABASE = f"sqlite:///{os.environ['TEST_DATABASE']}"
COLUMNS = {"account": "TEXT NOT NULL", "total": "INTEGER NOT NULL", "id": "INTEGER NOT NULL"}
totals.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="to-kafka")
totals.sink(DbApiSink(DATABASE, "totals", COLUMNS), name="to-rows")
totals.sink(DbApiSink(DATABASE, "newest", COLUMNS, key="account"), name="to-newest")

if __name__ == "__main__":
    pipeline.run()
