"""The steps of an audit: settle, pin, scan, judge, report.

Rule: a scan begins when nothing is in flight and every offset is pinned. Anything that prevents a sound scan makes the
verdict INCONCLUSIVE, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_eos.abc.context import JobContext
from kafka_eos.audit.checks.epoch_commits import (
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
from kafka_eos.audit.checks.unavailable_checks import Impossible, by_expiry, impossible
from kafka_eos.audit.checks.verdict import AnyCheck, Check, Evidence, Observations, SkippedCheck, Verdict, judge
from kafka_eos.audit.cluster.spark_session import MANY_RECORDS, PendingSession, session
from kafka_eos.audit.facts.audit_subject import Subject, subject
from kafka_eos.audit.facts.checkpoint_state import Checkpoint
from kafka_eos.audit.facts.code_changes import other_code
from kafka_eos.audit.facts.epoch_intervals import Offsets
from kafka_eos.audit.facts.job_ledger import Ledger, read_ledger
from kafka_eos.audit.facts.starting_savepoint import beginning, job_names, whole_history
from kafka_eos.audit.report.audit_outcome import ReportWriter
from kafka_eos.audit.report.report_files import Context
from kafka_eos.audit.report.report_notes import notes, uncompared
from kafka_eos.audit.tables.broadcast.judgeable_sinks import ruled
from kafka_eos.audit.tables.pinned_input import PinnedInput
from kafka_eos.audit.tables.plan_cut import Cut, cut
from kafka_eos.audit.tables.windows.judgeable_windows import JudgeableWindows, judged
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.job_requests import is_running
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.plan import Plan
from kafka_eos.runtime.program import CodeFingerprint, Program
from kafka_eos.storage import job_records as records
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage, MemoryStorage
from kafka_eos.storage.object_names import manifest_name
from kafka_eos.storage.storage_factory import find_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafka_eos.audit.checks.job_scan import Scan
    from kafka_eos.audit.tables.topic_tables import Bounds

Progress = Callable[[str], None]

_BY_THE_LEDGER = (Check.WRONG_COUNT, Check.ALTERED_CHECKPOINT)
"""Checks that look at no single output."""


def file_of(pipeline: Plan | Program) -> AppRef:
    """Return the reference that Spark's workers load: the pipeline's, or the file that created the plan."""
    if isinstance(pipeline, Plan):
        return AppRef(Path(pipeline.where.file).absolute(), pipeline.name)
    return pipeline.app


def audit(
    pipeline: Plan | Program,
    settings: Settings,
    *,
    app: AppRef | None = None,
    report_dir: Path | None = None,
    progress: Progress = lambda _: None,
    spark: SparkSession | PendingSession | None = None,
    master: str | None = None,
    settle_seconds: float = 30.0,
    allow_foreign: bool = False,
    expect_faults: bool = False,
    earlier: Sequence[Path | str] = (),
) -> Verdict:
    """Audit a stopped job and return the verdict; with ``report_dir`` also write report.json and report.html there.

    ``app``             the user's file, which Spark's workers import; default: the one that has the pipeline
    ``spark``           a session to use (it needs the jars of ``session.open_session``), or one that is opening;
                        default: one for this audit
    ``master``          where that one runs; default: here, or where spark-submit says
    ``settle_seconds``  how long to wait for open transactions to end
    ``allow_foreign``   records of others in the output topics are counted in the headline, and are no finding
    ``expect_faults``   a history without a kill is INCONCLUSIVE: it cannot show that kills are survived
    ``earlier``         directories that the job had before it began with a savepoint, maybe under another name: its
                        whole history is judged, not only what came after the savepoint
    What keeps the audit from judging is no exception but INCONCLUSIVE, with the reason and ``Verdict.traceback``.
    """
    plan = pipeline if isinstance(pipeline, Plan) else pipeline.plan()
    app = app or file_of(pipeline)
    ending = ReportWriter(report_dir, Context(job=plan.name, app=app.path.name))

    def judged() -> Verdict:
        if is_running(settings.job_dir(plan.name)):
            return judge(Observations(obstacles=[running(plan.name, app.path)]))
        place = settings.checkpoint_location(plan.name)
        storage = find_storage(place) or MemoryStorage()
        ledger = read_ledger(storage, plan.name, place)
        path, long = [str(app.path.parent)], sum(each.total for each in ledger.records.values()) > MANY_RECORDS
        ledger = whole_history(plan.name, ledger, earlier)
        with session(spark, progress, master=master, python_path=path, long=long) as live:
            ending.context = replace(ending.context, spark=live.version, events=ledger.events)
            with closing(_Audit(live, plan, settings, app, progress, storage, ledger)) as run:
                facts = run.facts(settle_seconds)
                ending.context = replace(ending.context, reads=run.reads())
        return judge(facts, allow_foreign=allow_foreign, expect_faults=expect_faults)

    return ending.of(judged)


def running(job: str, app: Path) -> str:
    return f"the job {job!r} is running: stop it (kafka-eos stop {app.name}), then audit again"


class _Audit:
    """One run of an audit."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        settings: Settings,
        app: AppRef,
        progress: Progress,
        storage: JobStorage,
        ledger: Ledger,
    ) -> None:
        self._spark = spark
        self._app = app
        self._progress = progress
        self._place = settings.checkpoint_location(plan.name)
        self._storage = storage
        self._ledger = ledger
        self._strict = settings.checkpoint_mode != "at-least-once"
        context = JobContext(plan.name, Term(0), settings.connector_defaults())
        began = beginning(ledger)
        self._subject: Subject = subject(plan, context, ledger.splits, job_names(ledger, began)).fit()
        self._counts: Counts = counts_of(ledger, self._subject)
        self._cut: Cut = cut(plan, self._ledger.parallelism)
        self._ground = PinnedInput(spark, self._subject, storage, self._place, ledger, began)

    def close(self) -> None:
        self._ground.close()

    def reads(self) -> list[dict[str, Any]]:
        """Return one entry per partition that was read, for the report."""
        return self._ground.reads()

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
        self._progress("waiting until no transaction is open")
        obstacles = self._ground.obstacles(settle_seconds)
        return replace(base, obstacles=obstacles) if obstacles else self._scan(base)

    # ------------------------------------------------------------ scan

    def _scan(self, base: Observations) -> Observations:
        from kafka_eos.audit.checks.audit_scope import Scope
        from kafka_eos.audit.checks.job_scan import Scan
        from kafka_eos.audit.facts.ledger_provenance import files

        ground = self._ground
        scope = Scope(
            app=str(self._app),
            subject=self._subject,
            cut=self._cut,
            ledger=self._ledger,
            inputs=ground.inputs(),
            ahead=ground.ahead(),
            outputs=ground.outputs(),
            files=ground.pinned.files,
            beginning=ground.beginning,
            strict=self._strict,
            provenance=files(self._ledger.provenance),
            windows=self._windows(),
            ruled=ruled(self._subject, self._cut, self._ledger, _starts(ground.inputs()), strict=self._strict),
            other_code=other_code(self._ledger, CodeFingerprint.compute(self._app.path, self._subject.plan).files),
            checkpoint=self._checkpoint(),
        )
        with closing(Scan(self._spark, scope)) as scan:
            facts = self._examine(scan, base)
            if not (wrong := _list_differing(facts)):
                return facts
            self._progress("running the functions of sinks that differ again")
            fickle = scan.compared.find_fickle(wrong)
        if not fickle.found:
            return facts
        with closing(Scan(self._spark, replace(scope, fickle=fickle))) as scan:
            return self._examine(scan, base)

    def _windows(self) -> JudgeableWindows:
        newest, job = self._ledger.newest, self._subject.plan.name
        manifest = None if newest is None else records.load(self._storage, Manifest, manifest_name(newest), job)
        return judged(self._subject, self._cut, self._ledger, manifest, strict=self._strict)

    def _checkpoint(self) -> Checkpoint | None:
        newest = self._ledger.newest
        place, job = str(self._place), self._subject.plan.name
        return None if newest is None else Checkpoint(place, job, manifest_name(newest))

    def _examine(self, scan: Scan, base: Observations) -> Observations:
        from kafka_eos.audit.checks.job_scan import ExpectedCounts

        compacted = self._subject.needed_whole(self._ground.pinned.compacted, self._ground.ahead())
        barred = impossible(self._subject, self._ledger, self._counts, compacted, strict=self._strict)
        self._progress("reading input and output")
        inputs, ahead = scan.inputs()
        visible, before = self._judged(as_committed(self._ledger, scan.visible()))
        barred = self._expired(visible, barred) | barred
        marked = sum(map(how_many, visible.values()))
        outputs, hidden = marked + scan.plain(), as_committed(self._ledger, scan.hidden())
        made = ExpectedCounts()
        if Check.LOST not in barred:
            self._progress(f"recomputing the outputs of {inputs} records")
            made = scan.expected(inputs)
        unsure = dict(scan.compared.not_recomputed)
        if Check.LOST not in barred:
            unsure |= scan.differing_by_code()
        blind = dict(unsure)
        if Check.LOST not in barred:
            doubtful = self._cut.unsteady if scan.compared.free else self._cut.unlasting
            doubtful = (doubtful - self._cut.timed) | self._cut.copied | scan.compared.chancy
            doubts = self._doubts(scan, doubtful - unsure.keys(), visible, barred)
            blind |= {s: why for s, why in doubts.items() if Check.WRONG_COUNT in barred}
            unsure |= doubts
        if len(blind) == len(self._subject.sinks):
            barred |= dict.fromkeys((Check.LOST, Check.UNEXPECTED), next(iter(blind.values())))
        facts = replace(
            base,
            rejected={} if Check.LOST in barred else scan.refused(),
            inputs=inputs,
            not_yet_processed=ahead,
            left_out=[*_left_out(self._ground.skipped(), ahead), *_of_others(scan.others())],
            outputs=outputs,
            before_savepoint=before,
            without_interval=undated(self._ledger, visible),
            uncounted=0 if Check.WRONG_COUNT in barred else self._counts.uncounted(),
            uncommitted=sum(map(how_many, hidden.values())),
            expected=made.outputs,
            keys=made.keys,
            not_audited={**base.not_audited, **{s: why for s, why in unsure.items() if s in self._subject.unmarked}},
            not_recomputed={s: why for s, why in unsure.items() if s not in self._subject.unmarked},
            uncompared=uncompared(
                self._subject,
                self._cut,
                made,
                {} if Check.LOST in barred else scan.untold(),
                {} if Check.LOST in barred else scan.excused(),
                unsure,
                scan.compared.ruled,
                scan.fickle,
            ),
            notes=notes(self._subject, self._cut, self._ledger, sum(made.loose.values()), unsure, before),
        )
        self._progress(f"comparing {facts.outputs} outputs with {made.outputs} expected")
        return replace(facts, evidence=self._evidence(scan, barred, visible, hidden, facts))

    def _judged(self, visible: ByEpoch) -> tuple[ByEpoch, int]:
        """Return the visible outputs of the job's own terms, and the number of those from terms before its
        savepoint.
        """
        if self._ground.beginning is None:
            return visible, 0
        term = self._ground.beginning.term
        own = {epoch: found for epoch, found in visible.items() if epoch is None or epoch.term > term}
        return own, sum(how_many(seen) for epoch, seen in visible.items() if epoch not in own)

    def _doubts(
        self, scan: Scan, sinks: frozenset[str], visible: ByEpoch, barred: Mapping[Check, str]
    ) -> dict[str, str]:
        """Return the sinks that the recompute cannot judge, with the reason: the order or the number of workers
        differs.

        Differing outputs are not a finding as long as every epoch shows as many outputs as it committed, each
        once. If no counts were recorded, nothing can be concluded.
        """
        differing = scan.differing(sinks) if sinks else {}
        counted = Check.WRONG_COUNT not in barred
        if not differing or (counted and (wrong_counts(self._counts, visible).count or scan.doubled())):
            return {}
        reason = f"which outputs exist may depend on {self._chance(differing.keys())}"
        others = "not the recomputed ones" + ("" if counted else ", and no record shows how many there should be")
        return {sink: f"{reason}; {n} are {others}" for sink, n in differing.items()}

    def _chance(self, differing: Collection[str]) -> str:
        if self._cut.copied.intersection(differing):
            return "the number of workers"
        if self._cut.timed.intersection(differing):
            return "the watermark at which rows arrived"
        return "when state expired" if self._cut.unlasting.intersection(differing) else "the order of records"

    def _evidence(
        self, scan: Scan, barred: Mapping[Check, str], visible: ByEpoch, hidden: ByEpoch, facts: Observations
    ) -> dict[AnyCheck, Evidence | SkippedCheck]:
        ledger, counted = self._ledger, Check.WRONG_COUNT not in barred
        wanted = [check for check in Check if check not in barred and check not in _BY_THE_LEDGER]
        partly = half_hidden(ledger, self._counts if counted else None, visible, hidden)
        excluded = {*facts.not_recomputed, *facts.not_audited}
        found = scan.find(wanted, undecided(ledger, visible), partly, excluded)
        evidence: dict[AnyCheck, Evidence | SkippedCheck] = {c: SkippedCheck(why) for c, why in barred.items()}
        for check in wanted:
            evidence[check] = replace(found.get(check, Evidence(0)), looked_at=_looked_at(check, facts))
        if counted:
            evidence[Check.WRONG_COUNT] = wrong_counts(self._counts, visible)
        if Check.ALTERED_CHECKPOINT not in barred:
            evidence[Check.ALTERED_CHECKPOINT] = altered(ledger)
        return evidence

    def _expired(self, visible: ByEpoch, barred: Impossible) -> Impossible:
        """Return the checks that would miss outputs which are not visible any more.

        None if every epoch shows everything that it committed: missing outputs then existed before the job.
        """
        cut = self._ground.expired()
        whole = Check.WRONG_COUNT not in barred and all_there(self._ledger, self._counts, visible)
        return {} if not cut or whole else by_expiry(self._subject, cut)


def _list_differing(facts: Observations) -> set[str]:
    """Return the sinks with outputs that differ from the recompute."""
    found = (
        facts.evidence.get(check) for check in (Check.LOST, Check.UNEXPECTED, Check.WRONG_VALUE, Check.WRONG_TOTAL)
    )
    return {sink for evidence in found if isinstance(evidence, Evidence) for sink in evidence.by_sink}


def _left_out(skipped: int, unread: int) -> list[str]:
    """Return the parts of the inputs that are not judged, for the headline."""
    parts = [f"{skipped:,} before the start (offsets)"] * (skipped > 0) + [f"{unread:,} unread"] * (unread > 0)
    return [f"not judged: {' and '.join(parts)} of the inputs"] if parts else []


def _of_others(records: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the records of other jobs in the output topics, for the headline."""
    return [
        f"{sum(by_job.values()):,} records of other jobs in {topic} not judged ({', '.join(by_job)})"
        for topic, by_job in records.items()
    ]


def _starts(inputs: Mapping[str, Bounds]) -> Offsets:
    return {source: {partition: start for partition, (start, _) in bounds.items()} for source, bounds in inputs.items()}


def _looked_at(check: Check, facts: Observations) -> int:
    others = {
        Check.LOST: facts.expected,
        Check.WRONG_TOTAL: facts.keys,
        Check.COMMITTED_HIDDEN: facts.uncommitted,
    }
    return others.get(check, facts.outputs)
