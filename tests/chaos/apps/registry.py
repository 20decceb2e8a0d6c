"""Kafka to Kafka, with a codec that asks a registry (a TCP port of this machine) before it decodes a record."""

import json
import os
import socket
from typing import Any

from kafka_eos import Pipeline
from kafka_eos.abc.codec import Codec
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter


class RegistryCodec(Codec[Any]):
    """JSON objects with the fields that the registry names. It is asked again until it has answered once."""

    name = "registry-json"
    schema = None

    def __init__(self) -> None:
        self._fields: list[str] | None = None

    def encode(self, value: dict[str, Any]) -> bytes:
        return json.dumps(value).encode()

    def decode(self, data: bytes) -> dict[str, Any]:
        if self._fields is None:
            self._fields = self._ask()
        value = json.loads(data)
        return {name: value[name] for name in self._fields}

    def _ask(self) -> list[str]:
        try:
            with socket.create_connection(("127.0.0.1", int(os.environ["TEST_REGISTRY"])), 5) as connection:
                return json.loads(connection.makefile().readline())
        except OSError as error:
            raise ValueError("there is no schema") from error


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=50,
    restart_backoff_initial=0.05,
    restart_backoff_max=0.2,
    max_environment_failures=10_000,
)
pipeline.source(
    KafkaSource(os.environ["TEST_INPUT"], value=RegistryCodec()),
    name="payments",
    on_error=dead_letter(os.environ["TEST_LETTERS"]),
).sink(KafkaSink(os.environ["TEST_OUTPUT"], value=RegistryCodec()), name="to-kafka")
