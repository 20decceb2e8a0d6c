"""A list to files, without Kafka: a function that asks a service (a TCP port of this machine), and refuses some."""

import json
import os
import socket
from pathlib import Path
from typing import Any

from kafka_eos import Pipeline
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.connectors.files import FileSink
from kafka_eos.testing import ListSource


class Text(Codec[Any]):
    """Dead letters as lines of JSON."""

    name, schema = "json", None

    def encode(self, value: Any) -> bytes:
        return json.dumps(str(value)).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


def checked(number: int) -> int:
    with socket.create_connection(("127.0.0.1", int(os.environ["TEST_SERVICE"])), 5):
        if number % 10 == 3:
            raise ValueError("a three")
    return number


home = Path(os.environ["TEST_HOME"])
pipeline = Pipeline(
    "aside",
    checkpoint_dir=home / "checkpoints",
    checkpoint_interval=0.1,
    state_backend="memory",
    restart_backoff_initial=0.05,
    restart_backoff_max=0.2,
    max_environment_failures=10_000,
)
letters = DeadLetters(FileSink(home / "letters", value=Text()))
numbers = pipeline.source(ListSource(range(100), splits=2), name="numbers", on_error=letters)
numbers.map(checked, name="checked").rebalance(values=int).sink(FileSink(home / "out"), name="out")
