"""Kafka to Kafka in each format of a registry: a mark for each value that could be read, and the rest aside."""

import os
from typing import Any

from kafka_eos import Pipeline
from kafka_eos.codecs import Registry, avro, json_schema, protobuf
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from tests.unit.codecs.test_hostile import Tree, message

registry = Registry(os.environ["TEST_REGISTRY"])
FORMATS: dict[str, Any] = {
    "avro": avro(Tree, registry=registry),
    "avro-header": avro(Tree, registry=registry, id_in="header"),
    "json": json_schema(Tree, registry=registry),
    "protobuf": protobuf(message()[0], registry=registry),
}

pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.5,
    max_dead_letters="none",
)
for name, made in FORMATS.items():
    source: KafkaSource[Any] = KafkaSource(f"{os.environ['TEST_INPUT']}-{name}", value=made)
    read = pipeline.source(source, name=name, on_error=dead_letter(f"{os.environ['TEST_OUTPUT']}-{name}-letters"))
    read.map(lambda value: b"read", name=f"{name}-read").sink(
        KafkaSink(f"{os.environ['TEST_OUTPUT']}-{name}", value=bytes), name=f"{name}-out"
    )

if __name__ == "__main__":
    pipeline.run()
