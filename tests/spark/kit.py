"""Jobs for the Spark engine: a pipeline file with names of its own, and what must come out of it.

Executors load the file, and have the environment of their JVM: so names are written into the file.
Rule: outputs are read by a read_committed consumer of another library than what wrote them, and compared as multisets
and per key in order; and nothing may be left open.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from kafka_eos.config.settings import Settings
from kafka_eos.coordination.status_file import Observer
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.supervisor import run as run_embedded
from kafka_eos.plan import Plan
from kafka_eos.runtime.program import load_program
from kafka_eos.spark import SparkEngine
from tests.chaos import harness
from tests.producers import in_order
from tests.waiting import PATIENCE

Event = tuple[str, Mapping[str, object]]

HEADER = """
import os, signal, time
from pathlib import Path
import msgspec
from kafka_eos import Pipeline, ProcessFunction
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.core.errors import Retryable
from kafka_eos.testing import ListSource

class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int

class Total(msgspec.Struct):
    account: str
    total: int
    id: int

def add(total, payment):
    return Total(payment.account, total.total + payment.amount, payment.id)

def once(name):
    '''True the first time that anybody asks.'''
    try:
        (Path({directory!r}) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
"""
TOTALS = """
pipeline = Pipeline("{name}")
(
    pipeline.source(KafkaSource("{input}", value=Payment), name="payments")
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add, emit=lambda account, total: total)
    .sink(KafkaSink("{output}", value=Total, key=lambda total: total.account), name="to-kafka")
)
"""
"""The running totals that most tests of an engine's behaviour want, for ``Job``."""


@dataclass
class Job:
    """One pipeline file with its topics and directories."""

    name: str
    bootstrap: str
    directory: Path
    app: Path
    topics: dict[str, str]
    events: list[Event] = field(default_factory=list)
    watched_by: Observer | None = None

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def plan(self) -> Plan:
        return load_program(AppRef(self.app)).plan()

    def settings(self, **settings: object) -> Settings:
        given = {"bootstrap_servers": self.bootstrap, "checkpoint_dir": self.checkpoints, "checkpoint_interval": 0.1,
                 "restart_backoff_initial": 0.05}  # fmt: skip
        return Settings.resolve(code={**given, **settings})

    def on_spark(self, spark: Any, *, until_caught_up: bool = True, **settings: object) -> None:
        given = self.settings(**settings)
        SparkEngine(spark).run(
            self.plan(), AppRef(self.app), given, observers=(self.observe,), until_caught_up=until_caught_up
        )

    def embedded(self, parallelism: int = 1, **settings: object) -> None:
        given = self.settings(parallelism=parallelism, **settings)
        run_embedded(self.plan(), AppRef(self.app), given, observers=(self.observe,), until_caught_up=True)

    def observe(self, event: str, facts: Mapping[str, object]) -> None:
        self.events.append((event, facts))
        if self.watched_by is not None:
            self.watched_by(event, facts)

    def count(self, event: str) -> int:
        return sum(name == event for name, _ in self.events)

    def read(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        messages = harness.read(self.bootstrap, self.topics[topic], isolation)
        return sorted(messages, key=lambda m: (m.partition(), m.offset()))

    def values(self, topic: str) -> list[Any]:
        return [json.loads(message.value()) for message in self.read(topic)]

    def left_open(self) -> list[str]:
        job = harness.Job(self.name, self.bootstrap, "", "", self.directory)
        return harness.open_transactions(job)


def make_job(source: str, bootstrap: str, directory: Path, topics: dict[str, str]) -> Job:
    name = f"spark-{uuid4().hex[:8]}"
    app = directory / f"{name.replace('-', '_')}.py"
    app.write_text((HEADER + source).format(name=name, directory=str(directory), **topics))
    return Job(name, bootstrap, directory, app, topics)


def payment(number: int, accounts: int = 20) -> dict[str, Any]:
    """Every tenth one is to be filtered out."""
    return {"id": number, "account": f"a{number % accounts}", "amount": 0 if number % 10 == 7 else number % 13 + 1}


def feed(job: Job, topic: str, rows: Iterable[dict[str, Any] | bytes]) -> None:
    """Write rows, spread over partitions by account."""
    producer = in_order(job.bootstrap)
    for row in rows:
        if isinstance(row, bytes):
            producer.produce(job.topics[topic], row)
        else:
            producer.produce(job.topics[topic], json.dumps(row).encode(), key=row["account"])
    assert producer.flush(PATIENCE) == 0


def totals(payments: Iterable[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """(account, running total, id) for each payment that counts, in order."""
    sums: Counter[str] = Counter()
    out = []
    for each in payments:
        if each["amount"] > 0:
            sums[each["account"]] += each["amount"]
            out.append((each["account"], sums[each["account"]], each["id"]))
    return out


def rows(values: Iterable[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(value["account"], value["total"], value["id"]) for value in values]


def same(found: list[tuple[str, int, int]], wanted: list[tuple[str, int, int]]) -> None:
    """Equal as multisets, and in order per account."""
    assert Counter(found) == Counter(wanted)
    assert _per_account(found) == _per_account(wanted)


def _per_account(found: list[tuple[str, int, int]]) -> dict[str, list[tuple[int, int]]]:
    grouped: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for account, total, number in found:
        grouped[account].append((total, number))
    return dict(grouped)
