"""Epochs of the Spark engine without Spark: each task of each level in its turn, and the rows between them in the order
that Spark is asked for.

Up to where an epoch reads, and whether it is lost before it is decided, is chance.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kafka_eos.abc.services import Resources
from kafka_eos.config.settings import Settings
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import Plan
from kafka_eos.runtime.program import CodeFingerprint
from kafka_eos.spark.epoch_job import EpochResult, merge_reports
from kafka_eos.spark.messages import ReadLimit, StageSpec, TaskReport, decode_watermark
from kafka_eos.spark.row_frames import FRAME, WATERMARK, Row, ShuffleWriter
from kafka_eos.spark.stage_task import SparkTaskEnvironment, StageTask
from kafka_eos.spark.stages import split_into_stages
from kafka_eos.storage.job_storage import MemoryStorage
from tests.schedules.job import IDENTITY, Job


def run(job: Job, tasks: int, *, to_the_end: bool) -> None:
    """Some epochs; ``to_the_end``: until all is read and committed."""
    run = _BatchRun(job, tasks)
    for _ in range(job.chance.randint(1, 4)):
        run.epoch(whole=False, dies=job.chance.random() < 0.3)
    while to_the_end:
        run.epoch(whole=True, dies=False)
        if not job.held.waiting_sources and job.has_read_all:
            return


class _BatchRun:
    """``parallelism`` tasks in each level."""

    def __init__(self, job: Job, parallelism: int) -> None:
        self._job, self._parallelism, self._term = job, parallelism, job.begin()
        self._runner = TaskRunner(job.plan, job.settings, job.storage, job.directory)

    def epoch(self, *, whole: bool, dies: bool) -> None:
        """One Spark job. ``whole``: it reads all that there is."""
        job, decided = self._job, self._job.decided
        spec = StageSpec(
            app="", pipeline=None, shipped=False, code=CodeFingerprint("", {}), settings="",
            identity=IDENTITY, term=self._term,
            claim=b"",
            epoch=decided.epoch + 1, finished=decided.epoch, generation=0, parallelism=self._parallelism,
            level=0, last=False, positions=dict(decided.positions), ends=dict(self._ends(whole=whole)),
            quota=ReadLimit(job.chance.choice([5, 1000]), None), states=decided.states, in_flight=decided.in_flight,
        )  # fmt: skip
        acked = self._runner.run(spec).acked
        if dies:
            for sink in job.sinks:
                sink.forget()
            return
        job.decide(spec.epoch, acked.positions, acked.states, acked.committables)
        job.counts["batches"] += 1

    def _ends(self, *, whole: bool) -> Mapping[str, Positions]:
        known = self._job.decided.positions
        return {
            source: known[source]
            if source in self._job.held.waiting_sources
            else self._up_to(known[source], ends, whole)
            for source, ends in self._job.ends.items()
        }

    def _up_to(self, at: Positions, ends: Positions, whole: bool) -> Positions:
        """All, or some of what is left."""
        return ends if whole else {split: {"index": self._some(at[split], end)} for split, end in ends.items()}

    def _some(self, at: Mapping[str, Any], end: Mapping[str, Any]) -> int:
        return self._job.chance.randint(at["index"], end["index"])


class TaskRunner:
    """Runs the tasks of epochs in this process, as ``EpochRunner`` has Spark do it."""

    def __init__(self, plan: Plan, settings: Settings, storage: MemoryStorage, directory: Path) -> None:
        self._plan, self._settings, self._storage, self._directory = plan, settings, storage, directory
        self._attempt = 0
        self._routers: dict[Any, Any] = {}

    def run(self, spec: StageSpec) -> EpochResult:
        """The epoch's result, not decided yet."""
        depth = len(split_into_stages(self._plan))
        reports: list[TaskReport] = []
        rows: list[list[Row]] = [[] for _ in range(spec.parallelism)]
        for level in range(depth):
            here = msgspec.structs.replace(spec, level=level, last=level == depth - 1)
            sent: list[list[Row]] = [[] for _ in rows]
            for subtask, mine in enumerate(rows):
                report, out = self._task(here, subtask, sorted(mine, key=_order))
                reports.append(report)
                for row in out:
                    sent[row[0]].append(row)
            rows = sent
        return merge_reports(reports, spec.parallelism, retried=False)

    def cancel(self) -> None:
        """An epoch runs to its end: nobody waits for it here."""

    def _task(self, spec: StageSpec, subtask: int, rows: Sequence[Row]) -> tuple[TaskReport, list[Row]]:
        self._attempt += 1
        place = self._directory / f"{spec.term}-{self._attempt}"
        place.mkdir()
        outbox = ShuffleWriter(spec.level, subtask, spec.parallelism, self._attempt)
        given = (self._plan, self._settings, self._storage, place, subtask, self._attempt, Resources(), self._routers)
        opened = StageTask(spec, SparkTaskEnvironment(*given), outbox)
        try:
            report = _worked(opened, spec.level, outbox, rows)
        finally:
            opened.close()
            shutil.rmtree(place)
        return report, [tuple(row.values()) for batch in outbox.flush() for row in batch.to_pylist()]


def _worked(opened: StageTask, level: int, outbox: ShuffleWriter, rows: Sequence[Row]) -> TaskReport:
    """As ``spark.epoch_task`` does it."""
    if not level:
        opened.replay()
    for _ in opened.read():
        pass
    for row in rows:
        if row[1] == level and row[2] == FRAME:
            opened.push(row[5], row[6])
        elif row[1] == level and row[2] == WATERMARK:
            opened.on_watermark(row[5], row[3], decode_watermark(row[6]))
        else:
            outbox.forward(row)
    return opened.finish()


def _order(row: Row) -> tuple[int, int]:
    return row[3], row[4]
