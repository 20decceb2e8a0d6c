"""One job with all queries on each engine; and what they must put out, by Spark SQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.nexmark.expected import Expected, Row
from benchmarks.nexmark.generator import KINDS, Generator
from benchmarks.nexmark.queries import QUERIES
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import load_program
from kafka_eos.spark import SparkEngine
from tests.chaos import harness
from tests.conformance.runs import in_log_order
from tests.producers import in_order
from tests.spark_sessions import SparkSessions
from tests.waiting import PATIENCE

ENGINES = ("embedded-1", "embedded-3", "spark")
INPUT = Generator(3000, per_second=50)
ROOT = Path(__file__).parents[2]
Q12_MS = 500
"""So short that all of q12's windows are over when the job is started for the second time."""

APP = """
import sys
from functools import partial

sys.path.insert(0, {root!r})  # Spark's workers start somewhere else

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.queries.q12 import q12
from kafka_eos import Pipeline

pipeline = Pipeline(
    {job!r}, bootstrap_servers={bootstrap!r}, checkpoint_dir={checkpoints!r}, checkpoint_interval=0.5, batch_size=100
)
events = Events(pipeline, {inputs!r})
for name, query in {{**QUERIES, "q12": partial(q12, size_ms={q12_ms})}}.items():
    query(events, {outputs!r} + name)
"""


@dataclass
class Nexmark:
    """The input, and the jobs that have read it."""

    bootstrap: str
    directory: Path
    prefix: str
    expected: Expected
    finished: set[str] = field(default_factory=set)
    """Engines on which everything has run."""

    def outputs(self, engine: str) -> str:
        return f"{self.prefix}{engine}-"

    def rows(self, engine: str, query: str) -> list[Row]:
        """Committed ones, each partition in order."""
        messages = harness.read(self.bootstrap, f"{self.outputs(engine)}{query}")
        return [json.loads(message.value()) for message in in_log_order(messages)]

    def app(self, engine: str) -> AppRef:
        path = self.directory / f"{engine}.py"
        path.write_text(
            APP.format(
                root=str(ROOT), job=f"{self.prefix}{engine}", bootstrap=self.bootstrap, q12_ms=Q12_MS,
                checkpoints=str(self.directory), inputs=self.prefix, outputs=self.outputs(engine),
            )
        )  # fmt: skip
        return AppRef(path)

    def finish(self, engine: str, spark: Any) -> None:
        """Run everything, and then again, for the windows of q12 that were open at the end; once on each engine."""
        if engine not in self.finished:
            for _ in range(2):
                self.run(engine, spark)
            self.finished.add(engine)

    def run(self, engine: str, spark: Any) -> None:
        """To the end of what there is."""
        if engine == "spark":
            self._on_spark(spark)
        else:
            self._embedded(engine)

    def _on_spark(self, spark: Any) -> None:
        app = self.app("spark")
        pipeline = load_program(app)
        settings = Settings.resolve(code={**pipeline.code_settings, "parallelism": 2})
        SparkEngine(spark).run(pipeline.plan(), app, settings, until_caught_up=True)

    def _embedded(self, engine: str) -> None:
        process = self.start(engine)
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, f"{engine}: {said[-3000:]}"

    def start(self, engine: str) -> subprocess.Popen[str]:
        """The embedded engine, as a process that ends when it has caught up."""
        command = [sys.executable, "-m", "kafka_eos", "run", str(self.app(engine).path), "--until-caught-up"]
        environment = {**os.environ, "KAFKA_EOS_PARALLELISM": engine.removeprefix("embedded-"), "COLUMNS": "300"}
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def committed(self, engine: str) -> int:
        """How many epochs the job's history tells of."""
        history = self.directory / f"{self.prefix}{engine}" / "history.jsonl"
        return history.read_text().count('"committed"') if history.exists() else 0


@contextmanager
def fed(bootstrap: str, spark: Any, directory: Path, given: Generator) -> Iterator[Nexmark]:
    """An input in topics of its own, and empty outputs."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    prefix = f"nexmark-{uuid4().hex[:8]}-"
    names = [f"{prefix}{kind}" for kind in KINDS]
    names += [f"{prefix}{engine}-{query}" for engine in ENGINES for query in QUERIES]
    new = [NewTopic(name, 3, 1, config={"retention.ms": "-1"}) for name in names]  # timestamps are of long ago
    for made in admin.create_topics(new).values():
        made.result(PATIENCE)
    producer = in_order(bootstrap, {"queue.buffering.max.messages": 1_000_000})
    for kind, key, value in given.records():
        producer.produce(f"{prefix}{kind}", value, key)
    assert producer.flush(PATIENCE) == 0
    yield Nexmark(bootstrap, directory, prefix, Expected(spark, bootstrap, prefix))
    for deleted in admin.delete_topics(names).values():
        deleted.result(PATIENCE)


@pytest.fixture(scope="session")
def nexmark(
    bootstrap: str, spark_sessions: SparkSessions, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nexmark]:
    """The input that all tests of queries share."""
    with fed(bootstrap, spark_sessions.live(), tmp_path_factory.mktemp("nexmark"), INPUT) as made:
        yield made
