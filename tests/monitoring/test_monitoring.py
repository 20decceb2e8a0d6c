"""What docker/ gives to Prometheus and Grafana: it asks for what there is, and each alert fires when it should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafka_eos.monitoring.metrics.catalogue import METRICS

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "docker/prometheus"
DASHBOARD = ROOT / "docker/grafana/dashboards/kafka-eos.json"
OF_PROMETHEUS = {"job", "instance", "le"}
NAMES = {
    name: {*metric.labels, *OF_PROMETHEUS}
    for metric in METRICS.values()
    for name in (
        [f"{metric.full_name}{part}" for part in ("_bucket", "_sum", "_count")]
        if metric.kind == "histogram"
        else [metric.full_name]
    )
}
"""What a query may ask for, and by which labels."""


def alerts() -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def strings(value: Any) -> Iterator[str]:
    """All in a document of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


def queries() -> list[str]:
    texts = [*strings(json.loads(DASHBOARD.read_text())), *(str(rule["expr"]) for rule in alerts().values())]
    return [text for text in texts if re.search(r"kafka_eos_\w+", text)]


def unknown(query: str) -> set[str]:
    """Names of metrics that are not there, and labels that they do not have."""
    asked = set(re.findall(r"kafka_eos_\w+", query))
    labels = set(re.findall(r"(\w+)\s*=~?\"", query))
    for listed in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query):
        labels |= set(re.findall(r"\w+", listed))
    has = set[str]().union(*(NAMES.get(name, set()) for name in asked))
    return (asked - NAMES.keys()) | (labels - has)


def test_every_query_asks_for_metrics_and_labels_that_there_are() -> None:
    assert len(queries()) > 30
    assert {query: wrong for query in queries() if (wrong := unknown(query))} == {}


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("rate(kafka_eos_read_records[1m])", {"kafka_eos_read_records"}),
        ("sum by (instance, sink) (kafka_eos_lag_records)", {"sink"}),
        ('kafka_eos_state_bytes{operators="sum"}', {"operators"}),
        ("rate(kafka_eos_checkpoint_seconds[1m])", {"kafka_eos_checkpoint_seconds"}),
    ],
)
def test_a_query_for_what_is_not_there_is_found(query: str, wrong: set[str]) -> None:
    assert unknown(query) == wrong


def test_the_page_has_every_alert_and_no_other() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(KafkaEos\w+)`", page, re.MULTILINE) == list(alerts())
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert rule["annotations"].keys() == {"summary", "description"}, name


def test_what_compose_mounts_is_there() -> None:
    services = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
    for name in ("prometheus", "grafana"):
        mounted = [volume.split(":")[0] for volume in services[name]["volumes"] if volume.startswith("./")]
        assert mounted
        assert all((ROOT / "docker" / path).is_dir() for path in mounted)
    (port,) = yaml.safe_load((PROMETHEUS / "targets.yaml").read_text())[0]["targets"]
    assert services["job"]["environment"]["KAFKA_EOS_HTTP"].split(":")[1] == port.split(":")[1]
    provisioned = yaml.safe_load((ROOT / "docker/grafana/provisioning/datasources/prometheus.yaml").read_text())
    panels = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if "targets" in panel]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"] for source in provisioned["datasources"]}


def promtool(*arguments: str) -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian, Ubuntu: apt-get install prometheus)")
    done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_its_configuration_and_the_rules() -> None:
    assert f"{len(alerts())} rules found" in promtool("check", "config", str(PROMETHEUS / "prometheus.yaml"))


def test_each_alert_fires_when_it_should_and_no_other() -> None:
    promtool("test", "rules", str(Path(__file__).with_name("alerts_test.yaml")))


def test_the_alerts_are_all_tested() -> None:
    cases = Path(__file__).with_name("alerts_test.yaml").read_text()
    assert all(f'alertname="{name}"' in cases for name in alerts())
