"""What sources check at the start of a job: formats of a registry, which may not fit, or not be there."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.codecs import Registry, avro
from kafka_eos.codecs.registry.registry_client import RegisteredSchema
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.coordination.sources import SourceCoordinator
from kafka_eos.core.errors import ConfigError
from tests.avro_witness import Schema, record
from tests.broker.kafka_kit import job
from tests.scripted_http_server import Answering

CONTEXT = job("127.0.0.1:1")
"""Nobody asks a broker here."""


class Line(BaseModel):
    quantity: int


def inputs(registry: Registry) -> SourceCoordinator:
    pipeline: Any = Pipeline("lines")
    lines = pipeline.source(KafkaSource("lines", value=avro(Line, registry=registry)), name="lines")
    lines.sink(KafkaSink("out", value=Line), name="out")
    return SourceCoordinator(pipeline.plan(), lambda: CONTEXT, Retrier(threading.Event(), print))


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (record("Line", quantity="int"), "is in the memory of each process"),
        (record("Line", quantity="string"), "cannot be read as Line: quantity is string there, long here. Records"),
    ],
)
def test_a_schema_that_does_not_fit_is_a_notice(schema: Schema, told: str) -> None:
    registry = Registry(f"mock://{uuid4()}")
    registry.register("lines-value", RegisteredSchema("AVRO", json.dumps(schema)))

    (notice,) = inputs(registry).check(None)

    assert notice.startswith("source 'lines': ")
    assert told in notice


def test_a_registry_that_is_away_refuses_no_start_that_only_reads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    (notice,) = inputs(Registry(f"http://127.0.0.1:{port}", config={"max.retries": 0})).check(None)

    assert notice.startswith("source 'lines' was not checked: the schema registry")


def test_a_login_that_is_refused_stops_the_start() -> None:
    with (
        Answering(lambda request: (401, b'{"error_code": 401, "message": "Unauthorized"}')) as server,
        pytest.raises(ConfigError, match=r"source 'lines': .*basic\.auth\.user\.info"),
    ):
        inputs(Registry(server.url, config={"max.retries": 0})).check(None)
