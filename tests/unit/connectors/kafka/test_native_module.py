"""Readers and writers use kafka-eos-native only if it is there and fits; otherwise they say why not."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.kafka.client.native_module import INTERFACE, NativeModule, load_native_module
from kafka_eos.connectors.kafka.sink import kafka_sink
from kafka_eos.connectors.kafka.source import kafka_source
from kafka_eos.plan.explain import explain


def module(interface: int = INTERFACE, features: str = "ssl,plugins,zstd", file: str = "/x/n.so") -> Any:
    return SimpleNamespace(INTERFACE=interface, load=lambda path: 0, features=lambda: features, __file__=file)


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        (None, "kafka-eos-native is not installed (pip install 'kafka-eos[native]')"),
        (module(interface=INTERFACE + 1), f"has interface {INTERFACE + 1}, and this kafka-eos needs {INTERFACE}"),
        (SimpleNamespace(), f"has interface None, and this kafka-eos needs {INTERFACE}"),
        (module(features="ssl,zstd,pluginsless"), "this librdkafka accepts no plugins (builtin.features)"),
        (module(file="/x;y/n.so"), "librdkafka cannot load a plugin from /x;y/n.so, which has a semicolon"),
    ],
)
def test_a_module_that_is_missing_or_does_not_fit_is_not_used(
    monkeypatch: pytest.MonkeyPatch, installed: Any, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "kafka_eos_native", installed)

    found = load_native_module.__wrapped__()

    assert found.module is None
    assert found.describe().startswith("Kafka records are read and written one by one by confluent-kafka: ")
    assert found.describe().endswith(reason)


def test_a_module_that_fits_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka_eos_native", module())

    found = load_native_module.__wrapped__()

    assert found.describe() == "Kafka records are read and written in batches by kafka-eos-native"


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "/x/n.so"), ({"plugin.library.paths": "monitor;/y.so"}, "monitor;/y.so;/x/n.so")]
)
def test_the_plugins_of_the_user_stay(given: dict[str, str], expected: str) -> None:
    assert NativeModule(module()).add_plugin({"client.id": "c", **given}) == {
        "client.id": "c",
        "plugin.library.paths": expected,
    }


def test_explain_names_the_client_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline("two")
    for name in ("a", "b"):
        pipeline.source(KafkaSource(name), name=name).sink(KafkaSink("out", value=bytes), name=f"{name}-out")
    for module_of in (kafka_source, kafka_sink):
        monkeypatch.setattr(module_of, "load_native_module", lambda: NativeModule(None, "a test without it"))

    _, _, shown = explain(pipeline.plan()).partition("\nclients\n")

    assert shown.partition("\n\n")[0].splitlines() == [
        "  Kafka records are read and written one by one by confluent-kafka: a test without it"
    ]
