"""The steps of an audit of state: read the checkpoint, pin the input, recompute, compare, judge.

Rule: state that cannot be determined is counted and reported, never called wrong. The newest committed checkpoint is
judged, because the job would resume from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_eos.abc.context import JobContext
from kafka_eos.audit.checks.verdict import (
    SHOWN,
    AnyCheck,
    Evidence,
    Observations,
    SkippedCheck,
    StateCheck,
    StateFacts,
    UncomparedState,
    Verdict,
    Violation,
    judge,
)
from kafka_eos.audit.cluster.spark_session import PendingSession, session
from kafka_eos.audit.facts.audit_subject import Subject, subject
from kafka_eos.audit.facts.checkpoint_state import Checkpoint
from kafka_eos.audit.facts.code_changes import other_code
from kafka_eos.audit.facts.job_ledger import Ledger, read_ledger
from kafka_eos.audit.facts.starting_savepoint import beginning, job_names, whole_history
from kafka_eos.audit.job_audit import file_of, running
from kafka_eos.audit.report.audit_outcome import ReportWriter
from kafka_eos.audit.report.report_files import Context
from kafka_eos.audit.state.uncertain_state import Doubts, doubts, stored
from kafka_eos.audit.tables.pinned_input import PinnedInput
from kafka_eos.audit.tables.plan_cut import Cut, cut
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.job_requests import is_running
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.plan import Plan
from kafka_eos.runtime.program import CodeFingerprint, Program
from kafka_eos.storage import job_records as records
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.storage.object_names import manifest_name
from kafka_eos.storage.storage_factory import find_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafka_eos.audit.checks.job_scan import Scan
    from kafka_eos.audit.state.state_scan import Difference, StateScan

Progress = Callable[[str], None]
_LOOSE = "no record shows in which order the input of their keys was read"


def audit_state(
    pipeline: Plan | Program,
    settings: Settings,
    *,
    app: AppRef | None = None,
    report_dir: Path | None = None,
    progress: Progress = lambda _: None,
    spark: SparkSession | PendingSession | None = None,
    master: str | None = None,
    settle_seconds: float = 30.0,
    earlier: Sequence[Path | str] = (),
) -> Verdict:
    """Compare the state of a stopped job's newest committed checkpoint with a recompute from its input, key by key.

    The arguments and the handling of errors are those of ``audit``.
    """
    plan = pipeline if isinstance(pipeline, Plan) else pipeline.plan()
    app = app or file_of(pipeline)
    ending = ReportWriter(report_dir, Context(job=plan.name, app=app.path.name))

    def judged() -> Verdict:
        if is_running(settings.job_dir(plan.name)):
            return _invalid(running(plan.name, app.path))
        place = settings.checkpoint_location(plan.name)
        storage = find_storage(place) or MemoryStorage()
        ledger = read_ledger(storage, plan.name, place)
        if ledger.newest is None:
            return _invalid(f"no committed checkpoint of job {plan.name!r} in {place}")
        manifest = records.load(storage, Manifest, manifest_name(ledger.newest), plan.name)
        ledger = whole_history(plan.name, ledger, earlier)
        context, began = JobContext(plan.name, Term(0), settings.connector_defaults()), beginning(ledger)
        of_plan = subject(plan, context, ledger.splits, job_names(ledger, began))
        parts = cut(plan, ledger.parallelism)
        if not parts.one_to_one:
            of_plan = replace(of_plan, sinks=())  # only there do outputs tell an order
        if obstacles := _obstacles(of_plan, manifest, settings, app.path):
            return _invalid(*obstacles)
        with session(spark, progress, master=master, python_path=[str(app.path.parent)]) as live:
            ending.context = replace(ending.context, spark=live.version, events=ledger.events)
            progress("waiting until no transaction is open")
            with closing(PinnedInput(live, of_plan, storage, place, ledger, began)) as ground:
                if obstacles := [*ground.obstacles(settle_seconds), *_compacted(of_plan, ground)]:
                    return _invalid(*obstacles)
                run = _Run(live, str(app), of_plan, parts, ledger, manifest, ground, progress)
                facts = run.facts(str(place))
                ending.context = replace(ending.context, reads=ground.reads())
        return judge(facts, checks=StateCheck, vital=(StateCheck.WRONG_STATE,))

    return ending.of(judged)


def _invalid(*obstacles: str) -> Verdict:
    return judge(Observations(obstacles=obstacles), checks=StateCheck, vital=())


def _obstacles(of_plan: Subject, manifest: Manifest, settings: Settings, app: Path) -> list[str]:
    """Return the reasons in the checkpoint itself why it cannot be judged."""
    if not manifest.states and not any(node.keyed for node in of_plan.plan.nodes):
        return [f"the operators of job {manifest.job!r} keep no state: there is nothing to compare"]
    if manifest.in_flight:
        return [
            f"epoch {manifest.id} contains in-flight rows (from an unaligned checkpoint, or a loop), whose effect is "
            f"not in the state yet. Stop the job cleanly (kafka-eos run {app.name}, then kafka-eos stop "
            f"{app.name}): its last checkpoint contains none"
        ]
    if settings.checkpoint_mode == "at-least-once":
        return [
            'with checkpoint_mode="at-least-once" an epoch may contain input of the next one, so its state cannot be '
            "recomputed"
        ]
    if (blind := of_plan.why_blind) is not None:
        return [blind]
    return []


def _compacted(of_plan: Subject, ground: PinnedInput) -> list[str]:
    read = {source.topic for source in of_plan.sources}
    names = sorted(read.intersection(of_plan.needed_whole(ground.pinned.compacted, ground.ahead())))
    return [f"compaction may have removed records of input {', '.join(names)}"] if names else []


class _Run:
    """One run of an audit of state."""

    def __init__(
        self,
        spark: SparkSession,
        app: str,
        of_plan: Subject,
        parts: Cut,
        ledger: Ledger,
        manifest: Manifest,
        ground: PinnedInput,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._app = app
        self._progress = progress
        self._subject = of_plan
        self._ledger = ledger
        self._manifest = manifest
        self._ground = ground
        self._cut = parts

    def facts(self, address: str) -> Observations:
        """Gather everything ``judge`` needs. ``address``: of the job's checkpoints."""
        from kafka_eos.audit.checks import job_scan as jobs
        from kafka_eos.audit.checks.audit_scope import Scope
        from kafka_eos.audit.facts.ledger_provenance import files
        from kafka_eos.audit.state.state_rows import Form
        from kafka_eos.audit.state.state_scan import StateScan, StateScope

        ground, cut_, manifest, beginning = self._ground, self._cut, self._manifest, self._ground.beginning
        scope = Scope(
            self._app, self._subject, cut_, self._ledger, ground.inputs(), ground.ahead(), ground.outputs(),
            ground.pinned.files, beginning, provenance=files(self._ledger.provenance),
        )  # fmt: skip
        with closing(jobs.Scan(self._spark, scope)) as scans:
            several = scope.streams > 1 or (cut_.parallelism > 1 and bool(cut_.parted))
            code = CodeFingerprint.compute(AppRef.parse(self._app).path, self._subject.plan)
            unknown = doubts(cut_, self._ledger, manifest.states, several, other_code(self._ledger, code.files))
            scan = StateScan(
                self._spark,
                StateScope(
                    app=self._app,
                    workers=cut_.parallelism,
                    serial=cut_.serial,
                    seen=scans.seen,
                    compared=scans.compared,
                    checkpoint=Checkpoint(address, manifest.job, manifest.name),
                    handles=len(manifest.states),
                    savepoint=None if beginning is None else str(beginning.path),
                    form=Form(frozenset(unknown.blind), frozenset(fold.name for fold in cut_.merging)),
                    described=stored(manifest.states),
                ),
            )
            return self._examine(scans, scan, unknown)

    def _examine(self, scans: Scan, scan: StateScan, unknown: Doubts) -> Observations:
        self._progress("reading the checkpoint")
        rows = scan.stored()
        inputs, ahead = scans.inputs()
        self._progress(f"recomputing the state of {inputs} records")
        made, found = scan.made(), scan.differences()
        surely = [each for each in found if not each.loose and each.operator not in unknown.unsure]
        compared = sum(n for n, _ in rows.values())
        self._progress(f"comparing {compared} entries with {made} expected")
        facts = StateFacts(
            states=len([name for name, (n, _) in rows.items() if n]),
            stored=compared,
            made=made,
            epoch=self._manifest.epoch,
            uncompared=_uncompared({name: others for name, (_, others) in rows.items()}, found, unknown),
        )
        return Observations(
            inputs=inputs,
            not_yet_processed=ahead,
            committed_epochs=len(self._ledger.committed),
            kills=self._ledger.kills,
            restarts=self._ledger.restarts,
            evidence=_evidence(surely, facts, unknown),
            notes=self._notes(),
            state=facts,
        )

    def _notes(self) -> list[str]:
        lines = []
        if self._ledger.origin is not None:
            lines.append(
                f"The job began with savepoint {self._ledger.origin.savepoint} ({self._ledger.origin.path}): "
                "the recompute starts with its state, unless --earlier names the earlier directory."
            )
        if self._ledger.start is None:
            lines.append("No record shows where the job began to read; the audit assumes offset 0.")
        if self._cut.merging:
            names = ", ".join(fold.name for fold in self._cut.merging)
            lines.append(
                f"{names}: accumulators of a fold with merge= were compared, the numbers of outputs per key were not."
            )
        return lines


def _uncompared(
    blind: dict[tuple[str, str], int], found: Sequence[Difference], unknown: Doubts
) -> tuple[UncomparedState, ...]:
    """Return the state that the verdict does not cover: rows not compared, and differences that prove nothing."""
    left = [UncomparedState(f"{name[1]} of {name[0]}", n, unknown.blind[name]) for name, n in blind.items() if n]
    open_: Counter[tuple[str, str, str]] = Counter()
    for each in found:
        why = unknown.unsure.get(each.operator, _LOOSE if each.loose else None)
        if why is not None:
            open_[each.operator, each.state, why] += each.count
    return (*left, *(UncomparedState(f"{state} of {op}", n, why) for (op, state, why), n in open_.items()))


def _evidence(
    found: Sequence[Difference], facts: StateFacts, unknown: Doubts
) -> dict[AnyCheck, Evidence | SkippedCheck]:
    if not facts.stored and not facts.made and unknown.blind:
        why = "; ".join(f"state {state} of {operator}: {why}" for (operator, state), why in unknown.blind.items())
        return dict.fromkeys(StateCheck, SkippedCheck(f"none of the state can be compared: {why}"))
    kinds = {
        "wrong": StateCheck.WRONG_STATE,
        "missing": StateCheck.LOST_STATE,
        "unexpected": StateCheck.UNEXPECTED_STATE,
    }
    evidence: dict[AnyCheck, Evidence | SkippedCheck] = {}
    for kind, check in kinds.items():
        some = [each for each in found if each.kind == kind]
        first = [Violation(f"{each.operator}.{each.state}", -1, -1, text) for each in some for text in each.first]
        by_state = {f"{each.operator}.{each.state}": each.count for each in some}
        looked_at = facts.made if check is StateCheck.LOST_STATE else facts.stored
        evidence[check] = Evidence(looked_at, sum(by_state.values()), tuple(first[:SHOWN]), by_state)
    return evidence
