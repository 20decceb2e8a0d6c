"""One epoch as one Spark job: a chain of stages, a shuffle between two of them, one report a task.

Rule: an epoch's result is put together only from attempts that fit: each task's report must say that it read the
rows of exactly those attempts whose reports are at hand. After a lost executor Spark may run a task a second time
with other results (the user's functions need not be deterministic); such a mixture is thrown away, never decided.
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
from kafka_eos.core.failure_causes import RefusedElsewhere
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Position
from kafka_eos.core.records import Tally
from kafka_eos.runtime.epoch_reports import Acked, by_operator, counted, shown, summed
from kafka_eos.spark.epoch_task import EpochTask
from kafka_eos.spark.messages import Report, Spec, decode_report, encode
from kafka_eos.spark.row_frames import SPARK_SCHEMA
from kafka_eos.spark.spark_errors import SPARKS, as_ours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_FATAL = {kind.__name__: kind for kind in Fatal.__subclasses__()}
"""What a task may report, by name: whoever started the job hears the same as if it had happened here."""


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What the tasks of an epoch did, put together. ``retried``: an attempt failed and may have left something."""

    acked: Acked
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
    """What each has done in the epoch, in all tasks: the fields of ``Did``."""
    spans: Sequence[Mapping[str, object]]
    """When each phase was; see ``handover.shown``."""
    counted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What functions of the user's have counted in the epoch, by operator and name."""


class EpochRunner:
    """Runs epochs in a session, one at a time. ``cancel`` may be called from another thread."""

    def __init__(self, session: SparkSession, job: str, depth: int) -> None:
        self._session, self._job, self._depth = session, job, depth
        self._group = ""

    def run(self, spec: Spec) -> EpochResult:
        """The epoch's result, not decided yet.

        Raises RefusedElsewhere and Fatal as a task reports them, RestartFromCheckpoint if the job failed.
        """
        context = self._session.sparkContext
        self._group = f"{self._job}-{spec.term}-{spec.epoch}"
        context.setJobGroup(self._group, f"{self._job}: epoch {spec.epoch} of term {spec.term}", True)
        try:
            rows = self._plan(spec).select("frame").collect()
        except SPARKS as error:
            raise as_ours(error) from error
        reports = [decode_report(bytes(row[0])) for row in rows]
        fitting(reports, self._depth, spec.parallelism)
        return together(reports, spec.parallelism, retried=self._retried())

    def cancel(self) -> None:
        """End what runs of the current epoch. Fatal if the session is gone."""
        try:
            self._session.sparkContext.cancelJobGroup(self._group)
        except SPARKS as error:
            raise as_ours(error) from error

    def _plan(self, spec: Spec) -> DataFrame:
        rows = self._session.range(0, spec.parallelism, 1, spec.parallelism).mapInArrow(
            EpochTask(_at(spec, 0, self._depth)), SPARK_SCHEMA
        )
        for level in range(1, self._depth):
            rows = (
                rows.repartitionById(spec.parallelism, "target")
                .sortWithinPartitions("origin", "seq")
                .mapInArrow(EpochTask(_at(spec, level, self._depth)), SPARK_SCHEMA)
            )
        return rows

    def _retried(self) -> bool:
        """Did an attempt fail, or a stage run again? Spark keeps the figures of finished jobs."""
        tracker = self._session.sparkContext.statusTracker()
        jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group))
        stages = itertools.chain.from_iterable(job.stageIds for job in jobs if job is not None)
        found = [tracker.getStageInfo(stage) for stage in stages]
        return any(info is None or info.numFailedTasks or info.currentAttemptId for info in found)


def fitting(reports: Sequence[Report], depth: int, parallelism: int) -> None:
    """Raise unless there is one report a task, and they tell of one and the same run of each task."""
    failures = [report.failure for report in reports if report.failure is not None]
    for failure in failures:
        if failure.kind == "user":
            raise RefusedElsewhere(failure.error, failure.reason, failure.operator, failure.where)
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
                f"task {report.subtask} of level {report.level} has read rows of attempts that were replaced: "
                "Spark ran a stage again after it was read (a lost executor)"
            )


def together(reports: Sequence[Report], parallelism: int, *, retried: bool) -> EpochResult:
    """What reports of all tasks say."""
    ordered = sorted(reports, key=lambda report: (report.level, report.subtask))
    positions: dict[str, dict[SplitId, Position]] = {}
    unread: dict[str, list[SplitId]] = {}
    for report in ordered:
        for source, left in report.unread.items():
            unread.setdefault(source, []).extend(left)
        for source, splits in report.positions.items():
            positions.setdefault(source, {}).update(splits)
    return EpochResult(
        Acked(
            positions,
            tuple(handle for report in ordered for handle in report.states),
            tuple(committable for report in ordered for committable in report.committables),
            parallelism=parallelism,
            tally=functools.reduce(Tally.plus, (report.tally for report in ordered), Tally()),
            watermarks=by_operator(report.watermarks for report in ordered),
            timers=summed(report.timers for report in ordered),
        ),
        unread={name: frozenset(splits) for name, splits in unread.items()},
        records_in=_sums(report.records_in for report in ordered),
        records_out=_sums(report.records_out for report in ordered),
        lag=total_lag(report.lag for report in ordered),
        wake=min((report.wake for report in ordered if report.wake is not None), default=None),
        seconds=_longest(report.seconds for report in ordered),
        retried=retried,
        operators=_operators(ordered),
        counted=counted(report.counted for report in ordered),
        spans=shown((report.subtask, span) for report in ordered for span in report.spans),
    )


def _operators(reports: Sequence[Report]) -> Mapping[str, Mapping[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for report in reports:
        for name, did in report.operators.items():
            so_far = found.get(name, {})
            found[name] = {figure: n + so_far.get(figure, 0) for figure, n in msgspec.structs.asdict(did).items()}
    return found


def _at(spec: Spec, level: int, depth: int) -> bytes:
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
