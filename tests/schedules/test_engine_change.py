"""A job that goes from the embedded engine to Spark's driver, and takes the rows that were under way with it.

The driver and its coordinator are those of a run; tasks work in this process, and the other engine on its own thread.
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.request_queue import RequestHandler
from kafka_eos.coordination.savepoint_writer import SavepointWriter
from kafka_eos.core.ids import EpochId
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.runtime.program import CodeFingerprint
from kafka_eos.spark.driver import AttemptCallbacks, SparkAttempt
from kafka_eos.spark.messages import ReadLimit, StageSpec
from kafka_eos.storage import savepoint_files as savepoints
from tests.schedules import batches, row_order
from tests.schedules import single_thread_engine as embedded
from tests.schedules.job import IDENTITY, Job
from tests.schedules.pipelines import Case

TASKS = 2


def _coordinator(job: Job) -> Coordinator:
    patience = Retrier(threading.Event(), print)
    return Coordinator(
        job.plan, job.storage, History(job.storage, print), patience, job.settings.connector_defaults(), 3
    )


def _drive(job: Job, directory: Path) -> list[int]:
    """Go on from what the coordinator finds until all is read; the epochs that were committed."""
    coordinator, quota = _coordinator(job), ReadLimit(4, None)
    resumed = coordinator.recovery.restore()
    template = StageSpec(
        app="", pipeline=None, shipped=False, code=CodeFingerprint("", {}), settings="", identity=IDENTITY,
        term=resumed.term.n,
        claim=b"", epoch=0, finished=-1, generation=0, parallelism=TASKS, level=0, last=False, positions={}, ends={},
        quota=quota, states=(),
    )  # fmt: skip
    epochs: list[int] = []

    def observe(event: str, **facts: Any) -> None:
        if event == "committed":
            epochs.append(facts["epoch"])

    watch = AttemptCallbacks(lambda: False, lambda: False, observe)
    runner: Any = batches.TaskRunner(job.plan, job.settings, job.storage, directory)
    writer = SavepointWriter(directory, job.storage)
    desk = RequestHandler(directory, writer)
    newest = partial(savepoints.newest_committed, job.storage, job.plan.name)
    goal, cadence = coordinator.sources.end_positions(resumed.positions), Cadence(0.0, 0.0, 60.0)
    driver = SparkAttempt(coordinator, resumed, runner, template, cadence, watch, goal, (), {}, (), desk, newest)
    driver.run()
    writer.close()
    return epochs


@pytest.mark.limits("tiny")
def test_rows_under_way_are_taken_up_in_the_first_epoch_on_spark_and_in_no_other(tmp_path: Path) -> None:
    """Some ten epochs follow, and operators with state would see each row that comes again."""
    case = Case(Pipeline("moves"), Random(2), max_rows=20)
    row_order.ordered(case)
    settings = Settings(checkpoint_mode="unaligned", aligned_timeout=0.0, batch_size=2, state_backend="memory")
    job = Job(case.pipeline.plan(), tmp_path, case.chance, settings, longest_run=1.7)
    while not job.decided.in_flight:
        assert job.term < 100, "nothing is ever under way"
        embedded.run(job, 3, to_the_end=False)
    for sink in job.sinks:
        sink.forget()
    coordinator, decided = _coordinator(job), job.decided
    resumed = coordinator.recovery.restore()
    moved = EpochContents(decided.positions, decided.states, (), decided.in_flight, parallelism=3)
    coordinator.epochs.commit(coordinator.epochs.decide(EpochId(resumed.first_epoch, resumed.term), moved))
    epochs = _drive(job, tmp_path)

    assert len(epochs) > 5
    case.check()
