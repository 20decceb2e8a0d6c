"""A real Prometheus with the alert rules of ``docker/prometheus``, whose clock may run faster than a day.

Rule: the rules are those that are shipped. Only what they say of time is divided by the speed: durations, and the
thresholds of metrics that are seconds of waiting.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.contract.s3_server import free_port
from tests.waiting import eventually

RULES = Path(__file__).parents[2] / "docker/prometheus/alerts.yaml"
SERVER = shutil.which("prometheus")
Alert = tuple[str, str]
"""The name of an alert, and the address that it is about."""

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"\b(\d+)(ms|s|m|h)\b")
_WAITING = re.compile(r"(kafka_eos_checkpoint_pending_seconds > )(\d+)")


def faster(rules: Mapping[str, Any], speed: float) -> dict[str, Any]:
    """The rules for a clock that runs ``speed`` times as fast."""

    def duration(found: re.Match[str]) -> str:
        return f"{max(1, round(int(found[1]) * _UNITS[found[2]] / speed))}ms"

    def each(rule: Mapping[str, Any]) -> dict[str, Any]:
        expr = _WAITING.sub(lambda found: f"{found[1]}{int(found[2]) / speed:g}", str(rule["expr"]))
        timed = {"for": _DURATION.sub(duration, str(rule["for"]))} if "for" in rule else {}
        return {**rule, "expr": _DURATION.sub(duration, expr), **timed}

    groups = [{**group, "rules": [each(rule) for rule in group["rules"]]} for group in rules["groups"]]
    return {"groups": groups}


class Prometheus:
    def __init__(self, address: str) -> None:
        self._address = address

    def firing(self) -> set[Alert]:
        """What fires now."""
        alerts = self._ask("alerts")["alerts"]
        return {_alert(each["labels"]) for each in alerts if each["state"] == "firing"}

    def fired(self, since: float, until: float) -> set[Alert]:
        """What has fired at some time between two of the calendar, in seconds."""
        asked = {"query": 'ALERTS{alertstate="firing"}', "start": since, "end": until, "step": 0.25}
        return {_alert(each["metric"]) for each in self._ask("query_range", **asked)["result"]}

    def value(self, query: str) -> dict[str, float]:
        """What a query gives now, by address."""
        found = self._ask("query", query=query)["result"]
        return {each["metric"].get("instance", ""): float(each["value"][1]) for each in found}

    def labels(self, query: str) -> list[set[str]]:
        """The labels of each number that a query gives now, if it is a number."""
        found = self._ask("query", query=query)["result"]
        return [set(each["metric"]) for each in found if math.isfinite(float(each["value"][1]))]

    def _ask(self, what: str, **asked: object) -> Any:
        with urlopen(f"{self._address}/api/v1/{what}?{urlencode(asked)}", timeout=30) as answer:
            return json.load(answer)["data"]


def _alert(labels: Mapping[str, str]) -> Alert:
    return labels["alertname"], labels["instance"]


@contextmanager
def prometheus(directory: Path, targets: list[str], speed: float) -> Iterator[Prometheus]:
    """One that asks these addresses, every 15 seconds of its clock."""
    assert SERVER is not None
    directory.mkdir()
    rules = faster(yaml.safe_load(RULES.read_text()), speed)
    (directory / "alerts.yaml").write_text(yaml.safe_dump(rules))
    every = f"{max(250, round(15_000 / speed))}ms"
    scraped = {"job_name": "kafka-eos", "scrape_timeout": every, "static_configs": [{"targets": targets}]}
    asked = {"global": {"scrape_interval": every, "evaluation_interval": every}, "rule_files": ["alerts.yaml"]}
    (directory / "prometheus.yaml").write_text(yaml.safe_dump({**asked, "scrape_configs": [scraped]}))
    address = f"127.0.0.1:{free_port()}"
    command = [SERVER, f"--config.file={directory / 'prometheus.yaml'}", f"--storage.tsdb.path={directory / 'tsdb'}",
               f"--web.listen-address={address}", "--log.level=warn"]  # fmt: skip
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually(lambda: _ready(address), "Prometheus is ready")
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait()


def _ready(address: str) -> bool:
    try:
        with urlopen(f"http://{address}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        time.sleep(0.1)
        return False
