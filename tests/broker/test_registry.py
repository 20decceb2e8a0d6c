"""What a Kafka sink asks a real schema registry before it starts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.errors import ConfigError
from kafka_eos.schemas import Registry, avro
from tests.avro_witness import record, written
from tests.broker.kafka_kit import job
from tests.registry_server import RegistryServer


class Line(msgspec.Struct):
    quantity: int


def test_a_sink_without_a_schema_is_refused_and_says_what_differs(
    bootstrap: str, topic: Callable[..., str], registry: RegistryServer
) -> None:
    name = topic()
    sink: KafkaSink[Line] = KafkaSink(name, value=avro(Line, registry=Registry(registry.url)))

    with pytest.raises(ConfigError, match=f"subject '{name}-value' .* There is no such subject yet"):
        sink.check(job(bootstrap))
    written(registry.url, name, record("Line", quantity="int"), [{"quantity": 1}])
    with pytest.raises(ConfigError, match="In its newest version, 1, it differs: quantity is int there, long here"):
        KafkaSink(name, value=avro(Line, registry=Registry(registry.url))).check(job(bootstrap))
    KafkaSink(name, value=avro(Line, registry=Registry(registry.url), auto_register=True)).check(job(bootstrap))
    sink.check(job(bootstrap))  # now it is there
