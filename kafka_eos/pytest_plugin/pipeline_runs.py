"""``run_pipeline``: a run of a pipeline for a test, in memory or as a job on a broker.

Rule: both return the same for the same input. In memory the operators run on lists (``run_local``). On a broker the
command ``kafka-eos run`` reads real topics, and what it committed is read back. The job has a name of its own, so that
it never fences a job of the pipeline, and it writes no topic that may have other records than those of tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from msgspec.structs import replace

from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.abc.auditable import AuditableSource, AuditableTopic
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.core.provenance import HEADER
from kafka_eos.core.records import RawRecord
from kafka_eos.devtools.broker.topics import (
    RecordToSend,
    consume_records,
    list_topics,
    produce_records,
)
from kafka_eos.monitoring.terminal.exit_codes import EXIT_ONLY_DEAD_LETTERS
from kafka_eos.plan import Plan, SourceNode
from kafka_eos.pytest_plugin.topics import create_test_topics, delete_test_topics, expect_test_topics
from kafka_eos.runtime.program import Program, load_program
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.rolling_log import LocalLog
from kafka_eos.testing import AdvanceClock, LocalRun, TimestampedValue, run_local

_SECONDS = 120.0
_LOG_LINES = 25
_CHECKPOINTS = "checkpoints"
_APP = """\
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import load_program

pipeline = load_program(AppRef.parse({app!r}))
pipeline.name = {name!r}
"""
"""The program of a test: the pipeline under another name."""


class PipelineRunner:
    """Runs pipelines for one test. ``show`` receives what the report of a failed test should contain."""

    def __init__(self, root: Path, show: Callable[[str], None] = lambda _: None) -> None:
        self._root, self._show = root, show
        self._created: dict[str, list[str]] = {}

    def __call__(
        self,
        pipeline: Program | str,
        inputs: Mapping[str, Sequence[Any]],
        *,
        broker: str | None = None,
        parallelism: int = 1,
        batch_size: int = 1,
        now: int | None = None,
    ) -> LocalRun:
        """Process ``inputs`` and return what each sink got, by name.

        ``pipeline``: a pipeline, or what ``kafka-eos run`` takes: ``"orders.py"``. ``inputs``: as of ``run_local``, by
        source. Without ``broker`` everything runs in memory, on the clock and with the batches that ``now`` and
        ``batch_size`` give; event time moves with each record. With ``broker`` the pipeline runs as a job with
        ``parallelism`` workers until it has read everything, and topics that do not exist are created for it. Raise
        ConfigError if a topic of the pipeline exists on a broker that no test has started, and no test has created it.
        """
        program = self._load(pipeline) if isinstance(pipeline, str) else pipeline
        if broker is None:
            run = run_local(program, inputs, batch_size=batch_size, now=now)
        else:
            run = self._run_job(program, inputs, broker, parallelism)
        if run.late:
            rows = ", ".join(f"{count} at {operator}" for operator, count in run.late.items())
            self._show(f"late rows of {program.name}: {rows}")
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._created:
            broker, names = self._created.popitem()
            delete_test_topics(Cluster(broker), names)

    def _load(self, app: str) -> Program:
        ref = AppRef.parse(app)
        below_root = self._root / app.partition(":")[0]
        return load_program(replace(ref, path=below_root) if below_root.is_file() else ref)

    # ------------------------------------------------------------ on a broker

    def _run_job(
        self, program: Program, inputs: Mapping[str, Sequence[Any]], broker: str, parallelism: int
    ) -> LocalRun:
        plan, cluster = program.plan(), Cluster(broker)
        ctx = JobContext(program.name, Term(0), {"bootstrap_servers": broker})
        sources = _topics_of_sources(plan, ctx)
        if unknown := sorted(set(inputs) - set(sources)):
            raise PlanError(f"pipeline {plan.name!r} has no source of a topic {unknown}; it has {sorted(sources)}")
        sinks = {node.name: node.sink.audit_log(ctx)[0] for node in plan.sinks if isinstance(node.sink, AuditableTopic)}
        self._create(program.name, cluster, {*sources.values(), *sinks.values()})
        before = {name: len(_read(cluster, topic)) for name, topic in sinks.items()}
        for name, values in inputs.items():
            produce_records(cluster, sources[name], _encode(plan, name, values))
        with temporary_directory() as directory:
            name = f"{program.name[:60]}-test-{uuid4().hex[:8]}"
            _run_to_end(program, name, broker, parallelism, directory)
            run = LocalRun(list(sinks))
            run.late = _read_late(directory / _CHECKPOINTS / name)
        for node in plan.sinks:
            if isinstance(node.sink, AuditableTopic):
                written = _read(cluster, sinks[node.name])[before[node.name] :]
                codec = node.sink.audit_codec
                run.written[node.name] = written
                run[node.name] = [None if raw.value is None else codec.decode(raw.value) for raw in written]
        return run

    def _create(self, job: str, cluster: Cluster, names: set[str]) -> None:
        existing = list_topics(cluster).keys()
        expect_test_topics(job, cluster, names & existing)
        if missing := sorted(names - existing):
            create_test_topics(cluster, missing, 1)
            self._created.setdefault(cluster.bootstrap, []).extend(missing)


def _topics_of_sources(plan: Plan, ctx: JobContext) -> dict[str, str]:
    """Return the topic of each source of the plan that reads exactly one."""
    found = {}
    for node in plan.sources:
        if isinstance(node.source, AuditableSource) and not node.source.several:
            ((topic, *_),) = node.source.audit_logs(ctx, ())
            found[node.name] = topic
    return found


def _encode(plan: Plan, name: str, values: Sequence[Any]) -> list[RecordToSend]:
    """Return the records that the source decodes to ``values``."""
    (node,) = (source for source in plan.sources if source.name == name)
    return [_record(node, value, offset) for offset, value in enumerate(values)]


def _record(node: SourceNode, given: Any, offset: int) -> RecordToSend:
    if isinstance(given, AdvanceClock):
        raise PlanError("AdvanceClock moves the clock of a run in memory; on a broker time passes by itself")
    if isinstance(given, RawRecord):
        raw = given
    else:
        assert isinstance(node.source, AuditableSource)
        item = given if isinstance(given, TimestampedValue) else TimestampedValue(given, -1)
        raw = node.source.raw(item.value, offset, item.timestamp)
    return RecordToSend(raw.key, raw.value, raw.headers, max(raw.timestamp, 0))


def _read(cluster: Cluster, topic: str) -> list[RawRecord]:
    """Return all committed records without their provenance."""
    with closing(consume_records(cluster, topic)) as records:
        return [replace(raw, headers=tuple(each for each in raw.headers if each[0] != HEADER)) for raw in records]


def _run_to_end(program: Program, name: str, broker: str, parallelism: int, directory: Path) -> None:
    app = directory / "app.py"
    app.write_text(_APP.format(app=str(program.app), name=name), encoding="utf-8")
    command = [sys.executable, "-m", "kafka_eos", "run", str(app), "--until-caught-up"]
    command += ["--bootstrap-servers", broker, "--checkpoint-dir", str(directory / _CHECKPOINTS)]
    command += ["--checkpoint-interval", "200ms", "--parallelism", str(parallelism)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        printed = (error.stderr or b"").decode(errors="replace")
        raise ConfigError(f"the job did not catch up within {_SECONDS:g} s:\n{_tail(printed)}") from None
    if done.returncode not in (0, EXIT_ONLY_DEAD_LETTERS):
        raise AssertionError(f"the job ended with exit code {done.returncode}:\n{_tail(done.stdout + done.stderr)}")


def _tail(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-_LOG_LINES:])


def _read_late(directory: Path) -> dict[str, int]:
    events = [json.loads(line) for line in LocalLog(directory, paths.HISTORY).lines()]
    return next((event["total"] for event in reversed(events) if event["event"] == "late-rows"), {})
