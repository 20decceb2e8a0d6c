"""Kafka to Kafka, a row for each payment, from several topics: a list of names, or a pattern."""

import os
import re

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


topics, pattern = os.environ["TEST_TOPICS"], os.environ.get("TEST_PATTERN")
interval = float(os.environ.get("TEST_INTERVAL", "0.1"))
pipeline = Pipeline(os.environ["TEST_JOB"], checkpoint_dir=os.environ["TEST_CHECKPOINTS"], checkpoint_interval=interval)
source: KafkaSource[Payment] = (
    KafkaSource(re.compile(pattern), value=Payment, exclude=[*filter(None, os.environ["TEST_EXCLUDE"].split(","))])
    if pattern
    else KafkaSource(topics.split(","), value=Payment)
)
pipeline.source(source, name="payments").sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Payment), name="to-kafka")

if __name__ == "__main__":
    pipeline.run()
