"""The ways in which this process reads and writes Kafka records: by confluent-kafka alone, and by kafka-eos-native."""

from __future__ import annotations

import pytest

from kafka_eos.connectors.kafka.client.native_module import NativeModule, load_native_module
from kafka_eos.connectors.kafka.sink import record_senders
from kafka_eos.connectors.kafka.source import record_fetchers

RECORD_CLIENTS = ("objects",) if load_native_module().module is None else ("objects", "native")
"""The last one is that of users, whose jobs use the module if it is there."""


def use_record_client(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    if name == "objects":
        for module in (record_fetchers, record_senders):
            monkeypatch.setattr(module, "load_native_module", lambda: NativeModule(None, "a test without it"))
    return name
