"""Sinks by importable name, for ``check_sink``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.testing import MemorySink

_memory: dict[str, MemorySink] = {}


def memory_sink(name: str) -> MemorySink:
    return _memory.setdefault(name, MemorySink())


def file_sink(directory: str, envelope: bool = False) -> FileSink:
    return FileSink(directory, value=dict[str, Any], envelope=envelope)


def kafka_sink(topic: str) -> KafkaSink[dict[str, Any]]:
    """With a compression that the independent reader of the test knows without further libraries."""
    return KafkaSink(topic, value=dict[str, Any], config={"compression.type": "gzip"})


def postgres_sink(conninfo: str, key: Sequence[str] = ()) -> PostgresSink[dict[str, Any]]:
    return PostgresSink(conninfo, "rows", columns=("id", "text"), key=key)
