"""The steps of an audit: settle, pin, scan, judge, report.

Rule: nothing is scanned before nothing is in flight, and every offset is pinned before the first scan. What
stands in the way of a sound scan ends up in the verdict as INVALID, with its name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kafka_eos.audit.beginning import Beginning, beginning, whole_history
from kafka_eos.audit.cluster import ClusterAdmin, Range, Ranges, in_flight, java_config, unsettled
from kafka_eos.audit.commits import (
    ByEpoch,
    Counts,
    all_there,
    altered,
    as_committed,
    counts_of,
    half_hidden,
    how_many,
    undated,
    undecided,
    wrong_counts,
)
from kafka_eos.audit.ending import Ending
from kafka_eos.audit.impossible import Impossible, by_expiry, impossible
from kafka_eos.audit.ledger import Ledger, read_ledger
from kafka_eos.audit.notes import notes, uncompared
from kafka_eos.audit.report import Context
from kafka_eos.audit.session import Opening, session
from kafka_eos.audit.subject import Cut, Directory, Subject, Topic, cut, subject
from kafka_eos.audit.verdict import Check, Evidence, NotPossible, Observations, Verdict, judge
from kafka_eos.checkpoints.opening import find_storage
from kafka_eos.checkpoints.storage import JobStorage, MemoryStorage
from kafka_eos.coordinator.requests import is_running
from kafka_eos.ids import AppRef, Term
from kafka_eos.interfaces import JobContext
from kafka_eos.plan import Plan
from kafka_eos.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafka_eos.audit.jobs import Scan

Progress = Callable[[str], None]

_BY_THE_LEDGER = (Check.WRONG_COUNT, Check.ALTERED_CHECKPOINT)
"""Checks that look at no single output."""
_POLL_SECONDS = 0.5
_MANY = 2_000_000
"""Outputs of a job that is worth a session for minutes of work."""


class HasPlan(Protocol):
    """A pipeline, as far as the audit cares."""

    def plan(self) -> Plan: ...


def audit(
    pipeline: Plan | HasPlan,
    settings: Settings,
    *,
    app: AppRef | None = None,
    report_dir: Path | None = None,
    progress: Progress = lambda _: None,
    spark: SparkSession | Opening | None = None,
    master: str | None = None,
    settle_seconds: float = 30.0,
    allow_foreign: bool = False,
    expect_faults: bool = False,
    earlier: Sequence[Path | str] = (),
) -> Verdict:
    """Audit a stopped job and return the verdict; with ``report_dir`` also write report.json and report.html there.

    ``app``             the user's file, which Spark's workers import; default: the file that made the pipeline
    ``spark``           a session to use (it needs the jars of ``session.open_session``), or one that is opening;
                        default: one for this audit
    ``master``          where that one runs; default: here, or where spark-submit says
    ``settle_seconds``  how long to wait for open transactions to end
    ``allow_foreign``   records of others in the output topics are no finding
    ``expect_faults``   a history without a kill is INVALID: it cannot show that kills are survived
    ``earlier``         checkpoint directories that the job had before it began with a savepoint: its whole history is
                        judged, not only what came after the savepoint
    What keeps the audit from judging is no exception but INVALID, with the reason and ``Verdict.traceback``.
    """
    plan = pipeline if isinstance(pipeline, Plan) else pipeline.plan()
    app = app or AppRef(Path(plan.where.file).absolute(), plan.name)
    ending = Ending(report_dir, Context(job=plan.name, app=app.path.name))

    def judged() -> Verdict:
        if is_running(settings.job_dir(plan.name)):
            return judge(Observations(obstacles=[_running(plan.name, app.path)]))
        storage = find_storage(settings.checkpoints_of(plan.name)) or MemoryStorage()
        ledger = read_ledger(storage, plan.name)
        path, long = [str(app.path.parent)], sum(each.total for each in ledger.records.values()) > _MANY
        ledger = whole_history(settings, plan.name, ledger, earlier)
        with session(spark, progress, master=master, python_path=path, long=long) as live:
            ending.context = replace(ending.context, spark=live.version, events=ledger.events)
            with closing(_Audit(live, plan, settings, str(app), progress, storage, ledger)) as run:
                facts = run.facts(settle_seconds)
                ending.context = replace(ending.context, reads=run.reads())
        return judge(facts, allow_foreign=allow_foreign, expect_faults=expect_faults)

    return ending.of(judged)


def _running(job: str, app: Path) -> str:
    return f"the job {job!r} is running: stop it (kafka-eos stop {app.name}), then audit again"


@dataclass(frozen=True)
class _Pinned:
    """Offsets of all topics at one moment without open transactions, by source or sink."""

    ranges: Mapping[str, Mapping[int, Range]]
    compacted: tuple[str, ...]
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)


class _Audit:
    """One run."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        settings: Settings,
        app: str,
        progress: Progress,
        storage: JobStorage,
        ledger: Ledger,
    ) -> None:
        self._spark, self._app, self._progress = spark, app, progress
        self._place, self._storage, self._ledger = settings.checkpoints_of(plan.name), storage, ledger
        self._beginning: Beginning | None = None
        self._strict = settings.checkpoint_mode != "at-least-once"
        context = JobContext(plan.name, Term(0), settings.for_connectors())
        self._subject: Subject = subject(plan, context)
        self._counts: Counts = counts_of(ledger, self._subject)
        self._cut: Cut = cut(plan, self._ledger.parallelism)
        self._pinned = _Pinned({}, ())
        self._clusters: dict[tuple[str, ...], tuple[ClusterAdmin, set[str]]] = {}
        for topic in (*self._subject.sources, *self._subject.topics):
            config = java_config(topic.bootstrap, topic.config)
            key = tuple(f"{name}={config[name]}" for name in sorted(config))
            if key not in self._clusters:
                self._clusters[key] = (ClusterAdmin(spark, config), set())
            self._clusters[key][1].add(topic.topic)

    def close(self) -> None:
        for cluster, _ in self._clusters.values():
            cluster.close()

    def reads(self) -> list[dict[str, Any]]:
        """What was read: one entry a partition, for the report."""
        sources = {topic.node for topic in self._subject.sources}
        read = [
            {
                "role": "input" if topic.node in sources else "output",
                "operator": topic.node,
                "topic": topic.topic,
                "partition": partition,
                "begin": at.begin,
                "end": at.end,
                "processed": self._ledger.positions.get(topic.node, {}).get(partition),
            }
            for topic in (*self._subject.sources, *self._subject.topics)
            for partition, at in sorted(self._pinned.ranges.get(topic.node, {}).items())
        ]
        files = [(directory, self._pinned.files.get(directory.node, ())) for directory in self._subject.directories]
        return read + [
            {"role": "output", "operator": directory.node, "topic": f"{directory.path} ({len(names)} files)",
             "partition": 0, "begin": 0, "end": len(names), "processed": None}
            for directory, names in files
        ]  # fmt: skip

    # ------------------------------------------------------------ steps

    def facts(self, settle_seconds: float) -> Observations:
        """Gather everything ``judge`` needs."""
        ledger, job = self._ledger, self._subject.plan.name
        base = Observations(
            committed_epochs=len(ledger.committed),
            kills=ledger.kills,
            restarts=ledger.restarts,
            not_audited=self._subject.not_audited,
        )
        if ledger.newest is None:
            return replace(base, obstacles=[f"no committed checkpoint of job {job!r} in {self._place}"])
        if not self._subject.sinks:
            return replace(base, obstacles=["no sink can be audited"])
        obstacles = self._settle(settle_seconds)
        if not obstacles:
            self._beginning = beginning(self._ledger)
            obstacles = self._ground()
        return replace(base, obstacles=obstacles) if obstacles else self._scan(base)

    def _settle(self, seconds: float) -> list[str]:
        """Wait until nothing is in flight, then pin. Returns what still is."""
        self._progress("waiting until no transaction is open")
        deadline = time.monotonic() + seconds
        while True:
            found = {cluster: cluster.ranges(topics) for cluster, topics in self._clusters.values()}
            busy = {cluster: topics for cluster, ranges in found.items() if (topics := unsettled(ranges))}
            if not busy:
                self._pin(found)
                return []
            if time.monotonic() > deadline:
                return [line for cluster, topics in busy.items() for line in in_flight(cluster, topics)]
            time.sleep(_POLL_SECONDS)

    def _pin(self, found: Mapping[ClusterAdmin, Ranges]) -> None:
        ranges = {topic: parts for clustered in found.values() for topic, parts in clustered.items()}
        nodes = (*self._subject.sources, *self._subject.topics)
        compacted = [t for cluster, topics in self._clusters.values() for t in cluster.compacted(topics)]
        files = {directory.node: _files(directory) for directory in self._subject.directories}
        self._pinned = _Pinned({node.node: ranges[node.topic] for node in nodes}, tuple(compacted), files)

    def _ground(self) -> list[str]:
        """Why the pinned topics are no sound base, if so."""
        now = read_ledger(self._storage, self._subject.plan.name)
        if now.newest != self._ledger.newest:
            return ["the job is running: it committed another epoch while the audit began"]
        if now.unfinished is not None:
            return [f"epoch {now.unfinished} is decided but not committed; start the job once more to finish it"]
        if anew := self._created_anew():
            return anew
        return [
            f"input {source.topic}/{partition} was read from offset {start}, but now begins at {at.begin}"
            for source in self._subject.sources
            for partition, at in self._pinned.ranges[source.node].items()
            if (start := self._start(source, partition, at)) < at.begin
        ]

    def _created_anew(self) -> list[str]:
        """Input topics that are not those which the job has read."""
        told = self._ledger.topic_ids
        ids = {topic: found for cluster, topics in self._clusters.values() for topic, found in cluster.ids(topics)}
        return [
            f"input {source.topic} was deleted and created again since the job read it (topic id {told[source.node]}, "
            f"now {ids[source.topic]}): nothing that it holds says what the outputs should be"
            for source in self._subject.sources
            if told.get(source.node, ids[source.topic]) != ids[source.topic]
        ]

    def _start(self, source: Topic, partition: int, at: Range) -> int:
        """Where the job began to read a partition."""
        start = self._ledger.start
        if start is None:
            start = None if self._beginning is None else self._beginning.start
        if start is None:
            return 0
        return start.get(source.node, {}).get(partition, at.begin)

    # ------------------------------------------------------------ scan

    def _scan(self, base: Observations) -> Observations:
        from kafka_eos.audit.jobs import Scan, Scope

        ranges = self._pinned.ranges
        scope = Scope(
            app=self._app,
            subject=self._subject,
            cut=self._cut,
            ledger=self._ledger,
            inputs={
                source.node: {
                    p: (self._start(source, p, at), max(self._start(source, p, at), self._position(source, p, at)))
                    for p, at in ranges[source.node].items()
                }
                for source in self._subject.sources
            },
            ahead={
                source.node: {p: (self._position(source, p, at), at.end) for p, at in ranges[source.node].items()}
                for source in self._subject.sources
            },
            outputs={sink.node: {p: (at.begin, at.end) for p, at in ranges[sink.node].items()}
                     for sink in self._subject.topics},
            files=self._pinned.files,
            beginning=self._beginning,
            strict=self._strict,
        )  # fmt: skip
        with closing(Scan(self._spark, scope)) as scan:
            return self._examine(scan, base)

    def _position(self, source: Topic, partition: int, at: Range) -> int:
        return self._ledger.positions.get(source.node, {}).get(partition, self._start(source, partition, at))

    def _examine(self, scan: Scan, base: Observations) -> Observations:
        from kafka_eos.audit.jobs import Expected

        compacted = self._pinned.compacted
        barred = impossible(self._subject, self._ledger, self._counts, compacted, strict=self._strict)
        self._progress("reading input and output")
        inputs, ahead = scan.inputs()
        visible, before = self._judged(as_committed(self._ledger, scan.visible()))
        barred = self._expired(visible, barred) | barred
        marked = sum(map(how_many, visible.values()))
        outputs, hidden = marked + scan.plain(), as_committed(self._ledger, scan.hidden(marked + before))
        made = Expected()
        if Check.LOST not in barred:
            self._progress(f"recomputing the outputs of {inputs} records")
            made = scan.expected()
        unsure = dict(scan.not_recomputed)
        blind = dict(unsure)
        if Check.LOST not in barred:
            doubtful = (self._cut.unsteady if scan.free else self._cut.unlasting) | self._cut.copied
            doubts = self._doubts(scan, doubtful - unsure.keys(), visible, barred)
            blind |= {s: why for s, why in doubts.items() if Check.WRONG_COUNT in barred}
            unsure |= doubts
        if len(blind) == len(self._subject.sinks):
            barred |= dict.fromkeys((Check.LOST, Check.UNEXPECTED), next(iter(blind.values())))
        facts = replace(
            base,
            refused={} if Check.LOST in barred else scan.refused(),
            inputs=inputs,
            not_yet_processed=ahead,
            outputs=outputs,
            before=before,
            undated=undated(self._ledger, visible),
            uncounted=0 if Check.WRONG_COUNT in barred else self._counts.uncounted(),
            invisible=sum(map(how_many, hidden.values())),
            expected=made.outputs,
            keys=made.keys,
            not_audited={**base.not_audited, **{s: why for s, why in unsure.items() if s in self._subject.unmarked}},
            not_recomputed={s: why for s, why in unsure.items() if s not in self._subject.unmarked},
            uncompared=uncompared(self._subject, self._cut, made.loose, made.untimed, made.midway, unsure),
            notes=notes(self._subject, self._cut, self._ledger, sum(made.loose.values()), unsure, before),
        )
        self._progress(f"comparing {facts.outputs} outputs with {made.outputs} expected")
        return replace(facts, evidence=self._evidence(scan, barred, visible, hidden, facts))

    def _judged(self, visible: ByEpoch) -> tuple[ByEpoch, int]:
        """Of visible outputs those of the job's own terms, and how many are of terms before its savepoint."""
        if self._beginning is None:
            return visible, 0
        term = self._beginning.term
        own = {epoch: found for epoch, found in visible.items() if epoch is None or epoch.term > term}
        return own, sum(how_many(seen) for epoch, seen in visible.items() if epoch not in own)

    def _doubts(
        self, scan: Scan, sinks: frozenset[str], visible: ByEpoch, barred: Mapping[Check, str]
    ) -> dict[str, str]:
        """Sinks about which the recompute can say nothing, and why: it had another order, or number of workers.

        That outputs are others is no finding while every epoch shows as many as it committed, and none twice; where
        nobody counted, nothing tells.
        """
        differing = scan.differing(sinks) if sinks else {}
        counted = Check.WRONG_COUNT not in barred
        if not differing or (counted and (wrong_counts(self._counts, visible).count or scan.doubled())):
            return {}
        reason = f"which outputs there are may depend on {self._chance(differing.keys())}"
        others = "others than the recompute's" + ("" if counted else ", and nothing tells how many there should be")
        return {sink: f"{reason}; {n} are {others}" for sink, n in differing.items()}

    def _chance(self, differing: Collection[str]) -> str:
        if self._cut.copied.intersection(differing):
            return "the number of workers"
        return "when state expired" if self._cut.unlasting.intersection(differing) else "the order of records"

    def _evidence(
        self, scan: Scan, barred: Mapping[Check, str], visible: ByEpoch, hidden: ByEpoch, facts: Observations
    ) -> dict[Check, Evidence | NotPossible]:
        ledger, counted = self._ledger, Check.WRONG_COUNT not in barred
        wanted = [check for check in Check if check not in barred and check not in _BY_THE_LEDGER]
        partly = half_hidden(ledger, self._counts if counted else None, visible, hidden)
        apart = {*facts.not_recomputed, *facts.not_audited}
        found = scan.find(wanted, undecided(ledger, visible), partly, apart)
        evidence: dict[Check, Evidence | NotPossible] = {c: NotPossible(why) for c, why in barred.items()}
        for check in wanted:
            evidence[check] = replace(found.get(check, Evidence(0)), looked_at=_looked_at(check, facts))
        if counted:
            evidence[Check.WRONG_COUNT] = wrong_counts(self._counts, visible)
        if Check.ALTERED_CHECKPOINT not in barred:
            evidence[Check.ALTERED_CHECKPOINT] = altered(ledger)
        return evidence

    def _expired(self, visible: ByEpoch, barred: Impossible) -> Impossible:
        """Checks that would miss outputs which nobody can see any more.

        None if every epoch shows all that it committed: what is gone was there before the job.
        """
        cut = [
            f"{sink.topic}/{p} begins at offset {at.begin}"
            for sink in self._subject.topics
            for p, at in sorted(self._pinned.ranges[sink.node].items())
            if at.begin > 0
        ]
        whole = Check.WRONG_COUNT not in barred and all_there(self._ledger, self._counts, visible)
        return {} if not cut or whole else by_expiry(self._subject, cut)


def _files(directory: Directory) -> Sequence[str]:
    """Names of the committed files of a sink, as they are now."""
    path = Path(directory.path)
    names = (file.name for file in path.iterdir()) if path.is_dir() else ()
    return sorted(name for name in names if re.fullmatch(directory.names, name))


def _looked_at(check: Check, facts: Observations) -> int:
    others = {
        Check.LOST: facts.expected,
        Check.WRONG_TOTAL: facts.keys,
        Check.COMMITTED_HIDDEN: facts.invisible,
    }
    return others.get(check, facts.outputs)
