"""A pipeline that was given a second source, to be read from where it ends when it is first met."""

import os

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline(os.environ["TEST_JOB"], checkpoint_dir=os.environ["TEST_CHECKPOINTS"], checkpoint_interval=0.1)
stream = pipeline.source(KafkaSource(os.environ["TEST_INPUT"]), name="payments")
if "TEST_SECOND" in os.environ:
    stream = stream.union(pipeline.source(KafkaSource(os.environ["TEST_SECOND"], start="latest"), name="more"))
stream.sink(KafkaSink(os.environ["TEST_OUTPUT"]), name="to-kafka")
