"""One epoch as one Spark job: a chain of stages, a shuffle between two of them, one report per task.

Rule: an epoch's result is merged only from attempts that fit together. Each task's report must state that the task read
the rows of exactly those attempts whose reports are merged. After an executor is lost, Spark may run a task a second
time with other results, because the user's functions need not be deterministic. Such a mixture is discarded, never
decided.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from kafka_eos.abc.source import total_lag
from kafka_eos.core.errors import EnvironmentFailed, Fatal, RestartFromCheckpoint
from kafka_eos.core.failure_causes import RemoteUserError
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Position
from kafka_eos.core.records import RecordCounts
from kafka_eos.runtime.epoch_reports import EpochContents, merge_watermarks, spans_to_json, sum_by_name, sum_counters
from kafka_eos.spark.epoch_task import StageFunction
from kafka_eos.spark.messages import StageSpec, TaskReport, decode_report, encode
from kafka_eos.spark.row_frames import SPARK_SCHEMA
from kafka_eos.spark.spark_errors import SPARKS, translate_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_FATAL = {kind.__name__: kind for kind in Fatal.__subclasses__()}
"""Errors that a task may report, by name: the driver raises the same error as the task did."""


@dataclass(frozen=True, slots=True)
class EpochResult:
    """The merged reports of an epoch's tasks. ``retried``: an attempt failed and may have left output."""

    acked: EpochContents
    unread: Mapping[str, frozenset[SplitId]]
    """By source, splits that have something left before the epoch's ends."""
    records_in: Mapping[str, int]
    records_out: Mapping[str, int]
    lag: int | None
    wake: int | None
    """When the clock shows that, an epoch is to begin also if there is nothing to read."""
    seconds: Mapping[str, float]
    retried: bool
    operators: Mapping[str, Mapping[str, float]]
    """What each has done in the epoch, in all tasks: the fields of ``OperatorStats``."""
    spans: Sequence[Mapping[str, object]]
    """When each phase was; see ``handover.shown``."""
    counted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What functions of the user's have counted in the epoch, by operator and name."""


class EpochRunner:
    """Runs epochs in a session, one at a time. ``cancel`` may be called from another thread."""

    def __init__(self, session: SparkSession, job: str, depth: int) -> None:
        self._session = session
        self._job = job
        self._depth = depth
        self._group = ""

    def run(self, spec: StageSpec) -> EpochResult:
        """Return the epoch's result, which is not decided yet.

        Raise RefusedElsewhere and Fatal as a task reports them, RestartFromCheckpoint if the job failed.
        """
        context = self._session.sparkContext
        self._group = f"{self._job}-{spec.term}-{spec.epoch}"
        context.setJobGroup(self._group, f"{self._job}: epoch {spec.epoch} of term {spec.term}", True)
        try:
            rows = self._plan(spec).select("frame").collect()
        except SPARKS as error:
            raise translate_error(error) from error
        reports = [decode_report(bytes(row[0])) for row in rows]
        check_attempts(reports, self._depth, spec.parallelism)
        return merge_reports(reports, spec.parallelism, retried=self._retried())

    def cancel(self) -> None:
        """End what runs of the current epoch. Fatal if the session is gone."""
        try:
            self._session.sparkContext.cancelJobGroup(self._group)
        except SPARKS as error:
            raise translate_error(error) from error

    def _plan(self, spec: StageSpec) -> DataFrame:
        rows = self._session.range(0, spec.parallelism, 1, spec.parallelism).mapInArrow(
            StageFunction(_at(spec, 0, self._depth)), SPARK_SCHEMA
        )
        for level in range(1, self._depth):
            rows = (
                rows.repartitionById(spec.parallelism, "target")
                .sortWithinPartitions("origin", "seq")
                .mapInArrow(StageFunction(_at(spec, level, self._depth)), SPARK_SCHEMA)
            )
        return rows

    def _retried(self) -> bool:
        """Return whether an attempt failed or a stage ran again, from the figures that Spark keeps of finished jobs."""
        tracker = self._session.sparkContext.statusTracker()
        jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group))
        stages = itertools.chain.from_iterable(job.stageIds for job in jobs if job is not None)
        found = [tracker.getStageInfo(stage) for stage in stages]
        return any(info is None or info.numFailedTasks or info.currentAttemptId for info in found)


def check_attempts(reports: Sequence[TaskReport], depth: int, parallelism: int) -> None:
    """Raise unless the reports describe one consistent attempt of each task."""
    failures = [report.failure for report in reports if report.failure is not None]
    for failure in failures:
        if failure.kind == "user":
            raise RemoteUserError(failure.error, failure.reason, failure.operator, failure.where)
        if failure.kind == "restart":
            raise RestartFromCheckpoint(f"{failure.error}: {failure.reason}")
        if failure.kind == "environment":
            raise EnvironmentFailed(failure.reason)
        if failure.error == Fatal.__name__:
            raise Fatal(failure.reason)
        raise _FATAL.get(failure.error, Fatal)(f"{failure.error}: {failure.reason}\n{failure.details}")
    attempts = {(report.level, report.subtask): report.attempt for report in reports}
    if len(reports) != depth * parallelism or len(attempts) != len(reports):
        raise RestartFromCheckpoint(f"the job has {len(reports)} reports of {depth * parallelism} tasks")
    for report in reports:
        sent = {subtask: attempts[report.level - 1, subtask] for subtask in range(parallelism) if report.level}
        if report.inputs != sent:
            raise RestartFromCheckpoint(
                f"task {report.subtask} of stage {report.level} read the output of a replaced attempt: Spark reran a "
                "stage after it was read (a lost executor)"
            )


def merge_reports(reports: Sequence[TaskReport], parallelism: int, *, retried: bool) -> EpochResult:
    """Merge the reports of all tasks into the result of the epoch."""
    ordered = sorted(reports, key=lambda report: (report.level, report.subtask))
    positions: dict[str, dict[SplitId, Position]] = {}
    unread: dict[str, list[SplitId]] = {}
    for report in ordered:
        for source, left in report.unread.items():
            unread.setdefault(source, []).extend(left)
        for source, splits in report.positions.items():
            positions.setdefault(source, {}).update(splits)
    return EpochResult(
        EpochContents(
            positions,
            tuple(handle for report in ordered for handle in report.states),
            tuple(committable for report in ordered for committable in report.committables),
            parallelism=parallelism,
            tally=functools.reduce(RecordCounts.plus, (report.tally for report in ordered), RecordCounts()),
            watermarks=merge_watermarks(report.watermarks for report in ordered),
            timers=sum_by_name(report.timers for report in ordered),
        ),
        unread={name: frozenset(splits) for name, splits in unread.items()},
        records_in=_sums(report.records_in for report in ordered),
        records_out=_sums(report.records_out for report in ordered),
        lag=total_lag(report.lag for report in ordered),
        wake=min((report.next_timer for report in ordered if report.next_timer is not None), default=None),
        seconds=_longest(report.seconds for report in ordered),
        retried=retried,
        operators=_operators(ordered),
        counted=sum_counters(report.counted for report in ordered),
        spans=spans_to_json((report.subtask, span) for report in ordered for span in report.spans),
    )


def _operators(reports: Sequence[TaskReport]) -> Mapping[str, Mapping[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for report in reports:
        for name, did in report.operators.items():
            so_far = found.get(name, {})
            found[name] = {figure: n + so_far.get(figure, 0) for figure, n in msgspec.structs.asdict(did).items()}
    return found


def _at(spec: StageSpec, level: int, depth: int) -> bytes:
    return encode(msgspec.structs.replace(spec, level=level, last=level == depth - 1))


def _sums(counts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _longest(times: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    longest: dict[str, float] = {}
    for each in times:
        for name, seconds in each.items():
            longest[name] = max(longest.get(name, 0.0), seconds)
    return longest
