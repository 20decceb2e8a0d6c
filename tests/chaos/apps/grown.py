"""A pipeline that was given a second source, to be read from where it ends when it is first met."""

import os

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline(os.environ["TEST_JOB"], checkpoint_dir=os.environ["TEST_CHECKPOINTS"], checkpoint_interval=0.1)
stream = pipeline.source("payments", KafkaSource(os.environ["TEST_INPUT"]))
if "TEST_SECOND" in os.environ:
    stream = stream.union(pipeline.source("more", KafkaSource(os.environ["TEST_SECOND"], start="latest")))
stream.sink("to-kafka", KafkaSink(os.environ["TEST_OUTPUT"]))
