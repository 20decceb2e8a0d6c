"""The steps of an audit of topics: settle, pin, scan, look up what is shown, judge, report.

Rule: what was not asked, or cannot be known from the topics alone, is listed as not checked with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_eos.audit.checks.verdict import (
    SHOWN,
    AnyCheck,
    Check,
    Evidence,
    Observations,
    SkippedCheck,
    Verdict,
    Violation,
    judge,
)
from kafka_eos.audit.cluster.cluster_admin import ClusterAdmin, Ranges, settle
from kafka_eos.audit.cluster.cluster_pair import ClusterPair, Clusters
from kafka_eos.audit.cluster.spark_session import MANY_RECORDS, session
from kafka_eos.audit.cluster.topic_size import count_offsets
from kafka_eos.audit.facts.job_ledger import read_directory
from kafka_eos.audit.facts.ledger_provenance import files
from kafka_eos.audit.report.audit_outcome import ReportWriter
from kafka_eos.audit.report.report_files import Context
from kafka_eos.audit.tables.partition_placement import PartitionPlacement
from kafka_eos.audit.topics import findings as shown
from kafka_eos.audit.topics import offset_window as window
from kafka_eos.audit.topics.findings import PARTITION, write_rows
from kafka_eos.audit.topics.partitioning_history import placings
from kafka_eos.audit.topics.question import TopicAuditOptions, expression
from kafka_eos.audit.topics.topic_scan import FINDING, IdComparison, Suspects, Tally, TopicScan
from kafka_eos.audit.topics.topic_tables import RECORDS_PER_TASK, OffsetWindow
from kafka_eos.core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str], None]
_FINDINGS = "findings.jsonl"
_NAME_THE_LEDGER = "name the directory of its job's checkpoints with --ledger"
_PARTITIONER_UNKNOWN = f"no ledger records how the topics were partitioned: {_NAME_THE_LEDGER}"
_JOB_ONLY = (
    Check.WRONG_VALUE, Check.WRONG_TOTAL, Check.UPDATE_GAP, Check.WRONG_COUNT, Check.WRONG_EPOCH,
    Check.ALTERED_CHECKPOINT, Check.MALFORMED,
)  # fmt: skip


@dataclass(frozen=True)
class TopicFindings:
    """The result of an audit of topics as Spark tables, which are computed when they are used."""

    verdict: Verdict
    findings: DataFrame
    """Every record that breaks a check; see ``topic_scan.FINDING``. Empty without findings, and if nothing was judged.
    """
    partitions: DataFrame
    """The number of records of each partition or directory, and their fingerprint."""


def audit_topics(
    question: TopicAuditOptions,
    *,
    report_dir: Path | None = None,
    all_findings: bool = False,
    progress: Progress = lambda _: None,
    spark: SparkSession | None = None,
    master: str | None = None,
    settle_seconds: float = 30.0,
    plans: list[str] | None = None,
) -> Verdict:
    """Audit topics and return the verdict; with ``report_dir`` also write report.json and report.html there.

    ``all_findings``  write every finding to findings.jsonl in ``report_dir``, and not only the first ones to the report
    ``spark``  a session to use (it needs the jars of ``session.open_session``); default: one for this audit
    ``master``  where that one runs; default: here, or where spark-submit says
    ``plans``  gets the physical plan of everything that Spark ran
    What keeps the audit from judging is no exception but INCONCLUSIVE, with the reason and ``Verdict.traceback``.
    """
    use = None if report_dir is None or not all_findings else partial(write_rows, report_dir / _FINDINGS)
    verdict, _ = _judge(
        question, spark, progress, use, report_dir=report_dir, master=master, settle_seconds=settle_seconds, plans=plans
    )
    return verdict


def tabulate_findings(
    spark: SparkSession, question: TopicAuditOptions, *, settle_seconds: float = 30.0
) -> TopicFindings:
    """Audit topics in a session and return the verdict with all findings as tables, for notebooks and programs.

    ``spark``  needs the jars of ``session.open_session``
    """
    tables: list[DataFrame] = []
    verdict, partitions = _judge(question, spark, lambda _: None, tables.append, settle_seconds=settle_seconds)
    found = tables[0] if tables else spark.createDataFrame([], FINDING)
    return TopicFindings(verdict, found, spark.createDataFrame(partitions, PARTITION))


def _judge(
    question: TopicAuditOptions,
    spark: SparkSession | None,
    progress: Progress,
    use: Callable[[DataFrame], None] | None,
    *,
    report_dir: Path | None = None,
    master: str | None = None,
    settle_seconds: float,
    plans: list[str] | None = None,
) -> tuple[Verdict, list[dict[str, Any]]]:
    """Return the verdict and the counts by partition. ``use`` gets the findings while Spark holds what was read."""
    ending = ReportWriter(report_dir, Context(job=", ".join(question.outputs), app="topics"))
    partitions: list[dict[str, Any]] = []

    def judged() -> Verdict:
        if report_dir is not None:  # those of an earlier audit are not of this one
            (report_dir / _FINDINGS).unlink(missing_ok=True)
        long = spark is None and _is_large(question)
        with session(spark, progress, master=master, long=long) as live:
            ending.context = replace(ending.context, spark=live.version)
            run = _Run(live, question, progress, use)
            facts = run.facts(settle_seconds)
        partitions.extend(run.partitions)
        if plans is not None:
            plans.extend(run.plans)
        ending.context = shown.reported(ending.context, question, facts, run.partitions, run.window, run.identity)
        return judge(facts, vital=run.vital)

    return ending.of(judged), partitions


def _is_large(question: TopicAuditOptions) -> bool:
    """Return whether the audit may take minutes: lines of files are not counted before they are read."""
    if question.directories:
        return True
    sizes = [
        None if access.command_config else count_offsets(access.bootstrap, access.config, topics)
        for access, topics in question.clusters
    ]
    return None in sizes or sum(size or 0 for size in sizes) > MANY_RECORDS


class _Run:
    """One run of an audit of topics."""

    def __init__(
        self,
        spark: SparkSession,
        question: TopicAuditOptions,
        progress: Progress,
        use: Callable[[DataFrame], None] | None,
    ) -> None:
        self._spark = spark
        self._question = question
        self._progress = progress
        self._use = use
        self.window = OffsetWindow({}, {}, {})
        self.identity: Mapping[str, Any] = {}
        """The ids of the cluster and of its topics."""
        self.partitions: list[dict[str, Any]] = []
        self.plans: list[str] = []
        self.vital: tuple[AnyCheck, ...] = ()
        self._placed: Mapping[str, PartitionPlacement] = {}
        """The placement of records by topic, for topics with a ledger."""

    def facts(self, settle_seconds: float) -> Observations:
        question = self._question
        base = Observations(inputs=0 if question.inputs else None, committed_epochs=None)
        ranges: Ranges = {}
        compacted: list[str] = []
        if question.topics:
            with closing(self._clusters()) as cluster:
                self.identity = window.identity(question, cluster)
                done = None if question.group is None else cluster.group_offsets(question.group)
                self._progress("waiting until no transaction is open")
                ranges, busy = settle(
                    cluster, question.topics, settle_seconds, partial(window.reading_ends, question, cluster)
                )
                if busy:
                    return replace(base, obstacles=[f"{line}, or judge what was before it (--to)" for line in busy])
                self.window = window.window(question, cluster, ranges, done)
                compacted = cluster.compacted(question.topics)
        else:
            self.window = window.window(question, None, ranges)
        if not any(self.window.read.values()) and not any(self.window.files.values()):
            return replace(base, obstacles=["there is nothing to read"])
        base = replace(base, left_out=window.left_out(question, ranges, self.window))
        with shown.sized(self._spark, _records(ranges) // RECORDS_PER_TASK), closing(self._scan()) as scan:
            try:
                if late := self._late(scan, ranges):
                    return replace(base, obstacles=late)
                facts = self._examine(scan, base, compacted)
                if self._use is not None:
                    self._progress("collecting all findings")
                    self._use(scan.findings(_broken(facts)))
                return facts
            finally:
                self.plans += scan.plans

    def _clusters(self) -> Clusters:
        question = self._question
        first, *others = (ClusterAdmin(self._spark, access.java(self._spark)) for access, _ in question.clusters)
        return ClusterPair(first, others[0], question.inputs) if others else first

    def _scan(self) -> TopicScan:
        ledgers = [read_directory(place) for place in self._question.ledgers]
        if lacking := [p for p, one in zip(self._question.ledgers, ledgers, strict=True) if not one.provenance]:
            raise ConfigError(
                f'the job in {lacking[0]} has no provenance in its ledger: none of its sinks has provenance="ledger"'
            )
        kept = {place: some for one in ledgers for place, some in one.provenance.items()}
        outputs = {topic: len(bounds) for topic, bounds in self.window.of(self._question.outputs).items()}
        self._placed = placings([one.regimes for one in ledgers], outputs)
        return TopicScan(self._spark, self._question, self.window, files(kept), self._placed)

    def _late(self, scan: TopicScan, ranges: Ranges) -> list[str]:
        """Return the partitions with records behind the end of the range that are older than that end."""
        end = self._question.end
        if not isinstance(end, datetime):
            return []
        before = end - timedelta(seconds=self._question.slack)
        return [
            f"{place} has {n} records older than --to after a newer record, so the time determines no range. "
            "Judge offsets (--to with JSON)"
            for place, n in scan.older(window.behind(self._question, ranges, self.window), before).items()
        ]

    def _examine(self, scan: TopicScan, base: Observations, compacted: list[str]) -> Observations:
        question = self._question
        self._progress("reading inputs and outputs")
        with shown.explained():
            tallies = scan.tallies
            uncommitted = scan.uncommitted()
        self.partitions = shown.partitions(question, tallies, uncommitted)
        seen = _total(tallies, question.inputs), _total(tallies, question.outputs)
        if question.id is not None and (nameless := _nameless(question, tallies)):
            return replace(base, obstacles=nameless)
        visible = sum(tallies[place].records for place in uncommitted if place in tallies)
        earlier = (question.resume or {}).get("resume", {}).get("records", (0, 0))
        facts = replace(
            base,
            inputs=seen[0] + earlier[0] if question.inputs else None,
            outputs=seen[1] + earlier[1],
            uncommitted=max(0, sum(uncommitted.values()) - visible),
            obstacles=[*_unknown(question, tallies), *_several_jobs(question, scan)],
            left_out=[*base.left_out, *_excluded(question, tallies, compacted)],
            notes=_notes(question, tallies),
        )
        self._progress(f"comparing {seen[0]} inputs and {seen[1]} outputs")
        found, expected = self._found(scan, facts), 0
        if question.id is not None and not question.by_provenance and question.inputs:
            facts = replace(
                facts,
                obstacles=[*facts.obstacles, *_unrelated(question, scan.ids, seen)],
                left_out=[*facts.left_out, *_repeated(scan), *_allowed(question)],
            )
        if question.key is None and not question.unordered and (keys := scan.scattered(self._placed)):
            scattered = f"{keys:,} keys are in several partitions: order was compared within each"
            facts = replace(facts, left_out=[*facts.left_out, scattered])
        texts: Mapping[Check, tuple[int, tuple[str, ...]]] = {}
        if question.sql is not None:
            with shown.explained():
                expected, texts = scan.recomputed()
        evidence = self._evidence(scan, found, texts, facts)
        doubtful = _compacted_away(question, compacted, evidence)
        self.vital += tuple(doubtful)
        return replace(facts, expected=expected, evidence=evidence | doubtful)

    def _found(self, scan: TopicScan, facts: Observations) -> dict[Check, Suspects | SkippedCheck]:
        question = self._question
        found: dict[Check, Suspects | SkippedCheck] = {}
        if question.id is not None:
            found |= scan.ids.found
            found |= {
                check: shown.untold(scan, question, check, suspects)
                for check, suspects in scan.ids.untold.items()
                if suspects[0] and found[check] == (0, ())
            }
        if scan.in_order:
            found[Check.REORDERED] = scan.reordered()
        if question.key is None:
            found[Check.MISPLACED] = scan.misplaced() if self._placed else SkippedCheck(_PARTITIONER_UNKNOWN)
        if question.by_provenance:
            found[Check.FOREIGN] = scan.unnamed()
            found |= shown.attempts(scan, facts.uncommitted > 0)
        elif question.inputs and question.id is not None and question.expected.least:
            found[Check.COMMITTED_HIDDEN] = scan.hidden() if facts.uncommitted else (0, ())
        return found

    def _evidence(
        self,
        scan: TopicScan,
        found: Mapping[Check, Suspects | SkippedCheck],
        texts: Mapping[Check, tuple[int, tuple[str, ...]]],
        facts: Observations,
    ) -> dict[AnyCheck, Evidence | SkippedCheck]:
        question = self._question
        asked = {
            Check.DUPLICATE: (question.id and question.expected.most) or question.sql,
            Check.LOST: (question.id and question.inputs and question.expected.least) or question.sql,
            Check.REORDERED: question.order,
        }
        self.vital = tuple(check for check, wanted in asked.items() if wanted)
        evidence: dict[AnyCheck, Evidence | SkippedCheck] = {c: SkippedCheck(_why_not(c, question)) for c in Check}
        for check, (n, first) in texts.items():
            offenders = tuple(Violation("query", 0, -1, text) for text in first)
            evidence[check] = Evidence(facts.outputs, n, offenders)
        for check, suspects in found.items():
            if isinstance(suspects, SkippedCheck):
                evidence[check] = suspects
                continue
            n, offenders = shown.offenders(scan, question, check, suspects)
            also = evidence[check]
            if isinstance(also, Evidence):  # the query found some too
                n, offenders = n + also.count, (*offenders, *also.examples)[:SHOWN]
            looked_at = {Check.LOST: facts.inputs or 0, Check.REORDERED: scan.in_order}.get(check, facts.outputs)
            evidence[check] = Evidence(looked_at, n, offenders)
        return evidence


def _compacted_away(
    question: TopicAuditOptions, compacted: list[str], evidence: Mapping[AnyCheck, Evidence | SkippedCheck]
) -> dict[AnyCheck, SkippedCheck]:
    """Return the checks that compaction makes unreliable: it removes records and leaves their counterparts."""
    of_inputs = (Check.UNEXPECTED,) if question.by_provenance else (Check.UNEXPECTED, Check.DUPLICATE)
    cut: set[Check] = set()
    if {*compacted} & {*question.inputs}:
        cut |= {*of_inputs, *((Check.LOST,) if question.sql else ())}
    if {*compacted} & {*question.outputs}:
        cut |= {Check.LOST, Check.COMMITTED_HIDDEN}
    return {
        check: SkippedCheck(
            f"compaction of {', '.join(compacted)} may have removed the counterparts of {found.count} records "
            f"(the first: {found.examples[0]}): choose a range that it has not reached (--from)"
        )
        for check in Check
        if check in cut and isinstance(found := evidence[check], Evidence) and found.count
    }


def _why_not(check: Check, question: TopicAuditOptions) -> str:
    if check in _JOB_ONLY:
        return (
            "only an audit of a pipeline or a query can check this"
            if check is not Check.MALFORMED
            else "only file sinks have lines"
        )
    if check is Check.ABORTED_VISIBLE:
        return "without provenance it is unknown which transaction wrote a visible record"
    if check in (Check.LOST, Check.UNEXPECTED, Check.COMMITTED_HIDDEN) and not question.inputs:
        return "no input was given"
    if question.id is not None and check in (Check.LOST, Check.COMMITTED_HIDDEN, Check.DUPLICATE):
        return f"--expect {question.expect} allows it"
    if check is Check.FOREIGN and question.id is not None:
        return "records are compared by another id than provenance"
    if check is Check.MISPLACED and question.key is not None:
        return "partitions follow the record's key, but another key was given"
    if check is Check.REORDERED and question.unordered:
        return "--unordered was given"
    if check is Check.REORDERED and (question.order is not None or question.id is not None):
        return "no output has both a key and an order"
    return "no id was given"


def _nameless(question: TopicAuditOptions, tallies: Mapping[tuple[str, int], Tally]) -> list[str]:
    """Return a reason if no record has an id, so that nothing can be compared: the expression or the topics are
    wrong.
    """
    asked = {"outputs": (question.outputs, question.id), "inputs": (question.inputs, question.input_id or question.id)}
    return [
        f"none of the {n} {role} has an id: {_look(question, expression)}"
        for role, (names, expression) in asked.items()
        if (n := _sum(tallies, names, "compared")) and n == _sum(tallies, names, "unnamed")
    ]


def _look(question: TopicAuditOptions, expression: str | None) -> str:
    if question.by_provenance and not question.ledgers:
        return f'if their sink has provenance="ledger", {_NAME_THE_LEDGER}'
    return f"check {expression!r}"


def _unknown(question: TopicAuditOptions, tallies: Mapping[tuple[str, int], Tally]) -> list[str]:
    """Return a reason if it is unknown whether some records were lost or duplicated."""
    asked = {
        "inputs": (question.inputs, "where", question.where, question.input_id or question.id),
        "outputs": (question.outputs, "output-where", question.output_where, question.id),
    }
    reasons = []
    for role, (names, option, condition, name) in asked.items():
        if n := _sum(tallies, names, "unknown"):
            reasons.append(
                f"--{option} is NULL for {n} {role}, so it is unknown whether to compare them: use "
                f"coalesce(({condition}), false), or true"
            )
        if name is None or question.by_provenance or not (n := _sum(tallies, names, "unnamed")):
            continue
        topic, partition, offset = min(
            (topic, partition, tally.first_unnamed)
            for (topic, partition), tally in tallies.items()
            if topic in names and tally.first_unnamed is not None
        )
        reasons.append(
            f"{n} {role} have no valid id {name!r}; the first is {topic}/{partition}/{offset}: use an id that they "
            f"have (for tombstones the key: coalesce({expression(name)}, key)), or exclude them with --{option}"
        )
    return reasons


def _several_jobs(question: TopicAuditOptions, scan: TopicScan) -> list[str]:
    """Return a reason if outputs that are compared together are of several jobs: each may have made outputs from the
    same records. An input is compared with the outputs in all topics.
    """
    if not question.by_provenance or question.jobs:
        return []
    jobs: dict[str, set[str]] = {}
    for topic, attempt in scan.attempts:
        jobs.setdefault(topic, set()).add(attempt.partition(".")[0])
    together = {", ".join(sorted(jobs)): set().union(*jobs.values())} if question.inputs else jobs
    return [
        f"jobs {', '.join(sorted(some))} wrote to {where}: name one of them with --job (if renamed, by all its names)"
        for where, some in together.items()
        if len(some) > 1
    ]


def _unrelated(question: TopicAuditOptions, ids: IdComparison, seen: tuple[int, int]) -> list[str]:
    """Return a reason if inputs and outputs have no common id: the expressions differ, and nothing is lost."""
    if ids.shared or not all(seen):
        return []
    return [
        "no output has the id of an input, so these are different ids (a number and its text are two ids, see "
        f"--input-id): check {question.id!r}"
    ]


def _repeated(scan: TopicScan) -> list[str]:
    """Return how many ids belong to several inputs; by groups only an estimate is known."""
    several, n = "", scan.ids.repeated
    if (per_id := scan.inputs_per_id) is not None:
        several = f"ids are of about {per_id:,.1f} inputs each"
    elif n:
        several = "1 id is of several inputs" if n == 1 else f"{n:,} ids are of several inputs"
    return [f"{several}: only the number of their outputs was compared"] if several else []


def _allowed(question: TopicAuditOptions) -> list[str]:
    """Return what the expectation allows, for the headline."""
    if question.expect == "one":
        return []
    lacking = {"lost": question.expected.least, "duplicate": question.expected.most}
    unchecked = [name for name, bound in lacking.items() if not bound]
    tail = f", so {' and '.join(unchecked)} was not checked" if unchecked else ""
    return [f"expected of each {'id' if question.expected.by_id else 'input'}: {question.expect}{tail}"]


def _excluded(question: TopicAuditOptions, tallies: Mapping[tuple[str, int], Tally], compacted: list[str]) -> list[str]:
    """Return the excluded records, for the headline."""
    by = ["--output-where"] * (question.output_where is not None) + ["--job"] * bool(question.jobs)
    conditions = {
        "inputs excluded by --where": _sum(tallies, question.inputs, "excluded"),
        f"outputs excluded by {' or '.join(by)}": _sum(tallies, question.outputs, "excluded"),
    }
    texts = [f"{n:,} {what}" for what, n in conditions.items() if n]
    if question.order is not None and (n := _sum(tallies, question.outputs, "unordered")):
        texts.append(f"order of {n:,} outputs not compared: --order is NULL for them, or neither a number nor a time")
    if question.unordered:
        texts.append("order of outputs not compared (--unordered)")
    if n := _sum(tallies, question.topics, "older"):
        texts.append(f"not judged: {n:,} records older than --from by more than the slack, after newer ones")
    if question.by_provenance and question.inputs:
        texts.append(
            "each input was expected to have an output, in any of the outputs; only an audit of the job knows how many "
            "it should have"
        )
    if compacted:
        texts.append(f"not judged: records of {', '.join(compacted)} that compaction removed")
    return texts


def _notes(question: TopicAuditOptions, tallies: Mapping[tuple[str, int], Tally]) -> list[str]:
    notes = []
    if question.resume is not None:
        notes.append("Only records after the earlier audit were read; an output of an earlier input is unexpected.")
    if question.by_provenance and question.inputs and question.where is None:
        notes.append("Every input was expected to have an output; exclude filtered inputs with a condition (where).")
    if question.by_provenance and not question.ledgers and _sum(tallies, question.outputs, "unnamed"):
        notes.append(f'Outputs without a header may be those of a sink with provenance="ledger": {_NAME_THE_LEDGER}.')
    return notes


def _broken(facts: Observations) -> list[Check]:
    """Return the checks that found something."""
    return [check for check in Check if isinstance(found := facts.evidence.get(check), Evidence) and found.count]


def _records(ranges: Ranges) -> int:
    """Return an upper bound of the number of records, to choose the number of tasks."""
    return sum(at.end - at.begin for parts in ranges.values() for at in parts.values())


def _total(tallies: Mapping[tuple[str, int], Tally], names: tuple[str, ...]) -> int:
    """Return the number of judged records."""
    return _sum(tallies, names, "judged")


def _sum(tallies: Mapping[tuple[str, int], Tally], names: tuple[str, ...], what: str) -> int:
    return sum(getattr(tally, what) for (name, _), tally in tallies.items() if name in names)
