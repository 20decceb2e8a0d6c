"""One pipeline on one engine: a file of its own, a job and output topics of its own, and the input of all.

Rule: outputs are read by a read_committed consumer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic
from msgspec.structs import replace

from kafka_eos.cli.savepoints import write_offline_savepoint
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import AppRef
from kafka_eos.core.provenance import HEADER, PROCESSING_TIMERS, TIMERS, parse_provenance
from kafka_eos.runtime.program import load_program
from kafka_eos.spark import SparkEngine
from tests.chaos import harness
from tests.conformance.cases import CASES, Case, Fed, Row
from tests.producers import in_order
from tests.waiting import PATIENCE
from tests.wire import ongoing

REFERENCE = "embedded-1"
ENGINES = ("spark", "embedded-3")
"""Engines that are compared with the reference."""
EMBEDDED = (REFERENCE, "embedded-3")
ROOT = Path(__file__).parents[2]

APP = """
import sys

sys.path.insert(0, {root!r})  # Spark's workers start somewhere else

from kafka_eos import Pipeline
from tests.conformance import pipelines

pipeline = Pipeline(
    {job!r}, bootstrap_servers={bootstrap!r}, checkpoint_dir={checkpoints!r}, checkpoint_interval=0.1, batch_size=100
)
pipelines.{build}(pipeline, {names!r})
"""


@dataclass
class Run:
    """A job on one engine. ``incarnation``: the number of its checkpoint directory; one per savepoint."""

    case: str
    engine: str
    bootstrap: str
    directory: Path
    topics: Mapping[str, str]
    job: str = field(default_factory=lambda: f"conformance-{uuid4().hex[:8]}")
    incarnation: int = 0
    process: subprocess.Popen[bytes] | None = None
    _read: dict[str, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        self._write()

    @property
    def app(self) -> AppRef:
        return AppRef(self.directory / f"app{self.incarnation}.py")

    @property
    def checkpoints(self) -> Path:
        return self.directory / f"checkpoints{self.incarnation}"

    @property
    def log(self) -> Path:
        return self.directory / "job.log"

    def _write(self) -> None:
        names = {**self.topics, "files": str(self.directory / "files")}
        self.app.path.write_text(
            APP.format(
                root=str(ROOT), job=self.job, bootstrap=self.bootstrap, checkpoints=str(self.checkpoints),
                build=CASES[self.case].build.__name__, names=names,
            )
        )  # fmt: skip

    # ------------------------------------------------------------ running

    def start(self, savepoint: Path | None = None) -> None:
        """Start the embedded engine, until it has caught up; ``wait`` for it."""
        command = [sys.executable, "-m", "kafka_eos", "run", str(self.app.path), "--until-caught-up"]
        command += ["--from", str(savepoint)] if savepoint else []
        workers = self.engine.removeprefix("embedded-")
        environment = {**os.environ, "KAFKA_EOS_PARALLELISM": workers, "COLUMNS": "500"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)

    def wait(self) -> None:
        assert self.process is not None
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(f"{self.case} on {self.engine} hung:\n{self.tail()}") from None
        assert code == 0, f"{self.case} on {self.engine} ended with {code}:\n{self.tail()}"

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def on_spark(self, session: Any, savepoint: Path | None = None) -> None:
        """Run on Spark until it has caught up."""
        pipeline = load_program(self.app)
        given = {"parallelism": 2, "start_from": savepoint}
        settings = Settings.resolve(code={**pipeline.code_settings, **given})
        SparkEngine(session).run(pipeline.plan(), self.app, settings, until_caught_up=True)

    def savepoint(self) -> Path:
        """A savepoint of the job as it stands; whoever goes on with it begins a new incarnation."""
        path = self.directory / f"savepoint{self.incarnation}"
        write_offline_savepoint(self.settings(), self.job, path)
        self.incarnation += 1
        self._write()
        return path

    def settings(self) -> Settings:
        return Settings.resolve(code=load_program(self.app).code_settings)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    # ------------------------------------------------------------ what came out

    def rows(self, output: str) -> list[Row]:
        """Committed rows, in the order in which they stand; read once, so the run must have ended."""
        if output not in self._read:
            self._read[output] = self._rows(output)
        return self._read[output]

    def _rows(self, output: str) -> list[Row]:
        if output == "files":
            parts = sorted((self.directory / "files").glob("part-*"))
            return [Row("", json.loads(line), "") for part in parts for line in part.read_bytes().splitlines()]
        roles = {topic: name for name, topic in self.topics.items()}
        messages = harness.read(self.bootstrap, self.topics[output])
        return [row_of(message, roles) for message in in_log_order(messages)]


def row_of(message: Any, roles: Mapping[str, str]) -> Row:
    """A message of an output; ``roles`` of the topics that its provenance and headers may name."""
    headers = {name: value.decode() for name, value in message.headers()}
    origin = parse_provenance(headers.pop(HEADER))
    origin = replace(origin, topic={TIMERS: TIMERS, PROCESSING_TIMERS: PROCESSING_TIMERS, **roles}[origin.topic])
    if "dead_letter.topic" in headers:
        headers["dead_letter.topic"] = roles[headers["dead_letter.topic"]]
        value = {"raw": message.value().decode()}
    else:
        value = json.loads(message.value())
    return Row((message.key() or b"").decode(), value, origin.identity, tuple(sorted(headers.items())))


def in_log_order(messages: Sequence[Any]) -> list[Any]:
    return sorted(messages, key=lambda m: (m.partition(), m.offset()))


class Runs:
    """All runs of a session: each at most once, when a test first asks for it. The embedded ones of a pipeline run at
    the same time.
    """

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap, self._directory = bootstrap, directory
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._topics: list[str] = []
        self._runs: dict[tuple[str, str], Run] = {}
        self._ended: dict[tuple[str, str], Exception | None] = {}

    def of(self, case: str, engine: str, spark: Any) -> Run:
        """The run, ended. Raises what ended it, if it failed."""
        if (case, engine) not in self._ended:
            self._all(case, ("spark",) if engine == "spark" else EMBEDDED, spark)
        if (error := self._ended[case, engine]) is not None:
            raise error
        return self._runs[case, engine]

    def _all(self, name: str, engines: Sequence[str], spark: Any) -> None:
        """On each of these engines, phase by phase as far as it can go."""
        able = [self.begin(name, engine) for engine in engines]
        self._ended |= {(name, engine): None for engine in engines}
        for phase in CASES[name].phases:
            for run in able:
                for role, rows in phase.items():
                    feed(self.bootstrap, run.topics[role], rows)
                if run.engine != "spark":
                    run.start()
            for run in able:
                self._ended[name, run.engine] = _failure(run, spark)
            able = [run for run in able if self._ended[name, run.engine] is None]

    def _named(self, case: Case, name: str, engine: str) -> dict[str, str]:
        return {o: f"{name}-{engine}-{o}-{uuid4().hex[:8]}" for o in case.outputs if o != "files"}

    def left_open(self, case: str) -> list[str]:
        """Transactions of the case's jobs, on whatever engine, that have not ended; and files that are only staged."""
        runs = [run for (name, _), run in self._runs.items() if name == case]
        hidden = [path.name for run in runs for path in (run.directory / "files").glob(".*")]
        staged = [name for name in hidden if not name.startswith(harness.KEPT)]
        return [
            each for each in ongoing(self.bootstrap) if each.startswith(tuple(f"{run.job}." for run in runs))
        ] + staged

    def begin(self, name: str, tag: str) -> Run:
        """A run of the case with an input of its own, for a test to drive: nothing is fed or started yet."""
        case = CASES[name]
        topics = {role: f"{name}-{tag}-{role}-{uuid4().hex[:8]}" for role in case.inputs}
        topics |= self._named(case, name, tag)
        self.create(topics.values())
        run = self._runs[name, tag] = Run(name, tag, self.bootstrap, self._directory / name / tag, topics)
        return run

    def create(self, names: Iterable[str]) -> None:
        """Topics of three partitions, that ``close`` deletes."""
        new = [NewTopic(name, 3, 1, config={"retention.ms": "-1"}) for name in names]  # timestamps are of long ago
        self._topics += [topic.topic for topic in new]
        for made in self._admin.create_topics(new).values():
            made.result(PATIENCE)

    def close(self) -> None:
        for run in self._runs.values():
            run.stop()
        if self._topics:
            for deleted in self._admin.delete_topics(self._topics).values():
                deleted.result(PATIENCE)


def _failure(run: Run, spark: Any) -> Exception | None:
    """Run to the end, and return what ended the run if it failed."""
    try:
        if run.engine == "spark":
            run.on_spark(spark)
        else:
            run.wait()
    except Exception as error:  # noqa: BLE001 - raised for each test that asks for this run
        return error
    return None


def feed(bootstrap: str, topic: str, rows: Iterable[Fed]) -> None:
    producer = in_order(bootstrap)
    for key, value, timestamp in rows:
        data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
        producer.produce(topic, data, key=key, timestamp=timestamp)
    assert producer.flush(PATIENCE) == 0


def differences(case: Case, output: str, found: list[Row], wanted: list[Row]) -> list[str]:
    """All that is wrong with an output, a few examples each; empty if it is as it must be."""
    problems = []
    if (count := case.rows.get(output)) is not None and len(found) != count:
        problems.append(f"{output}: {len(found)} rows, not {count}")
    origins = Counter(row.origin for row in found if row.origin)
    if doubled := [origin for origin, times in origins.items() if times > 1]:
        problems.append(f"{output}: {len(doubled)} origins twice, such as {doubled[:3]}")
    for number, claim in enumerate(case.claims[output]):
        got, due = claim(found), claim(wanted)
        if got != due:
            more, less = list((got - due).elements()), list((due - got).elements())
            problems.append(
                f"{output}, claim {number}: {len(more)} only here, such as {more[:3]}; "
                f"{len(less)} only there, such as {less[:3]}"
            )
    return problems if wanted else [*problems, f"{output}: the reference is empty"]
