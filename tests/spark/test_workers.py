"""Workers in Spark's tasks that die, with their Python worker, executor or driver, or are too few: outputs stay exact.

Rule: each fault is done once by the code that it strikes, so that it is known to have occurred.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kafka_eos._util.retry import Retrier, RetryInterrupted
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.core.errors import CorruptCheckpoint, Fenced
from kafka_eos.core.failure_causes import RemoteUserError
from kafka_eos.core.ids import AppRef
from kafka_eos.spark import SparkEngine
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from tests.spark import kit
from tests.spark.cluster import cluster, decommission
from tests.spark.drivers import Run, fired
from tests.spark.kit import Job, feed, payment, rows, same, totals
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]
NewJob = Callable[..., Job]

TOTALS = """
def parent(pid):
    return int(Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[1])

def kill(generation):
    pid = os.getpid()
    for _ in range(generation):
        pid = parent(pid)
    os.kill(pid, signal.SIGKILL)

def step(total, payment):
    %s
    return add(total, payment)
""" + kit.TOTALS.replace("step=add", "step=step")


def run(job: Job, spark: Any, **settings: Any) -> None:
    job.on_spark(spark, **{"parallelism": 2, "batch_size": 20, **settings})


def check_totals(job: Job, count: int) -> None:
    same(rows(job.values("output")), totals(map(payment, range(count))))
    assert job.left_open() == []


def active_jobs(spark: Any) -> list[int]:
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


@pytest.mark.parametrize("generation", [0, 1], ids=["worker", "python-worker"])
def test_a_worker_that_is_killed_is_replaced_and_the_other_one_stays(
    new_job: NewJob, spark: Any, generation: int
) -> None:
    """The Python worker of Spark takes the worker along."""
    job = new_job(TOTALS % f"payment.id == 133 and once('killed') and kill({generation})", input=3, output=2)
    feed(job, "input", map(payment, range(200)))

    run(job, spark)

    assert (job.directory / "killed").exists()
    assert job.count("restarting") == 1
    first, second = [set(facts["workers"]) for event, facts in job.events if event == "running"]  # type: ignore[call-overload]
    assert len(first & second) == 1
    check_totals(job, 200)
    assert active_jobs(spark) == []


def test_a_job_of_which_one_stage_is_cancelled_ends_and_resumes_later(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS % "pass", input=2, output=1)
    feed(job, "input", map(payment, range(100)))

    def cancel_one() -> None:
        job_info = spark.sparkContext.statusTracker().getJobInfo(max(active_jobs(spark)))
        spark.sparkContext._jsc.sc().cancelStage(job_info.stageIds[0])

    canceling = threading.Thread(target=cancel_one)

    def cancel(event: str, facts: Mapping[str, object]) -> None:
        if event == "committed" and canceling.ident is None:
            canceling.start()

    job.watched_by = cancel
    with pytest.raises(RetryInterrupted, match="the Spark job of a worker was cancelled"):
        run(job, spark, until_caught_up=False)
    job.watched_by = None
    assert job.left_open() == []
    assert active_jobs(spark) == []
    feed(job, "input", map(payment, range(100, 200)))
    run(job, spark)

    check_totals(job, 200)


def test_an_application_that_fails_to_load_in_a_worker_is_named(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS % "pass", input=1, output=1)
    plan = job.plan()
    job.app.write_text("1 / 0")

    with pytest.raises(RemoteUserError, match="ZeroDivisionError"):
        SparkEngine(spark).run(plan, AppRef(job.app), job.settings(parallelism=1), until_caught_up=True)


@pytest.mark.campaign
def test_a_job_begins_with_fewer_workers_while_a_core_is_taken_and_grows_when_it_is_free(
    new_job: NewJob, spark: Any, tmp_path: Path
) -> None:
    """The worker that is missing waits in Spark's queue, so Spark itself tells when there is a core."""
    job = new_job(TOTALS % "pass", input=3, output=2)
    feed(job, "input", map(payment, range(200)))
    free = tmp_path / "free"

    def wait(path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.1)

    taken = threading.Thread(target=lambda: spark.sparkContext.parallelize([str(free)], 1).foreach(wait))
    taken.start()

    def go_on(event: str, facts: Mapping[str, object]) -> None:
        if event == "committed":
            free.touch()
        if event == "running" and facts["parallelism"] == 2:
            feed(job, "input", map(payment, range(200, 400)))
            signal.raise_signal(signal.SIGTERM)

    job.watched_by = go_on
    run(job, spark, until_caught_up=False)
    taken.join()
    job.watched_by = None
    run(job, spark)

    grown = [facts["parallelism"] for event, facts in job.events if event == "running"][:2]
    assert grown == [1, 2]
    assert job.count("restarting") == 0
    check_totals(job, 400)


def test_a_bad_record_stops_the_job_at_once_and_leaves_nothing_open(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS % "pass", input=1, output=1)
    feed(job, "input", [*map(payment, range(20)), b"not json"])

    with pytest.raises(RemoteUserError, match="Nothing was skipped") as refused:
        run(job, spark, parallelism=1, checkpoint_interval=60.0)  # no epoch ends before the bad record is read

    assert refused.value.error == "PoisonRecord"
    assert job.count("restarting") == 0
    assert job.values("output") == []
    assert job.left_open() == []


@pytest.mark.campaign
def test_altered_state_is_named_by_the_worker_that_opens_it(new_job: NewJob, spark: Any) -> None:
    """The driver reads no state: that of a whole cluster would pass through one machine."""
    job = new_job(TOTALS % "pass", input=2, output=1)
    feed(job, "input", map(payment, range(100)))
    run(job, spark)
    before = job.values("output")
    for path in (job.checkpoints / job.name / paths.SHARED).iterdir():
        data = path.read_bytes()
        path.unlink()  # it may have another name elsewhere
        path.write_bytes(bytes([data[0] ^ 1, *data[1:]]))
    feed(job, "input", map(payment, range(100, 200)))

    with pytest.raises(CorruptCheckpoint, match=r"shared/[0-9a-f]{64} .*does not match its checksum"):
        run(job, spark)

    assert job.count("restarting") == 0
    assert job.values("output") == before
    assert job.left_open() == []


@pytest.mark.campaign
def test_a_driver_that_was_replaced_stops_and_its_successor_goes_on(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS % "pass", input=2, output=1)
    feed(job, "input", map(payment, range(200)))

    def take_over(event: str, facts: Mapping[str, object]) -> None:
        if event == "committed" and job.count("committed") == 2:
            storage = LocalStorage(job.checkpoints / job.name)
            patience = Retrier(threading.Event(), lambda text: None)
            connectors = job.settings().connector_defaults()
            second = Coordinator(job.plan(), storage, History(storage, print), patience, connectors, retained=2)
            second.recovery.restore()
            second.close()

    job.watched_by = take_over
    with pytest.raises(Fenced):
        run(job, spark, until_caught_up=False)
    job.watched_by = None
    run(job, spark)

    check_totals(job, 200)


@pytest.mark.slow
def test_executors_and_drivers_that_die_on_a_cluster_lose_and_double_nothing(new_job: NewJob, tmp_path: Path) -> None:
    job = new_job(TOTALS % "payment.id == 133 and once('executor') and kill(3)", input=3, output=2)
    feed(job, "input", map(payment, range(400)))
    steps = ["coordinator.acked", "commit.before"]
    script = ";".join(f"{step}=kill" for step in steps)

    codes: list[int] = []
    with cluster(tmp_path / "cluster", workers=2) as spark:
        while len(codes) < 4 and (not codes or codes[-1] == -signal.SIGKILL):
            run = Run(job, spark.address, "--until-caught-up", "-p", "2", failpoints=script)
            codes.append(run.ended())

    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0], run.tail()
    assert fired(job) == steps and (job.directory / "executor").exists()
    check_totals(job, 400)


def signal_all(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(OSError):
            os.kill(process, number)


@pytest.mark.slow
def test_a_machine_that_was_frozen_and_replaced_does_no_harm_when_it_goes_on(new_job: NewJob, tmp_path: Path) -> None:
    job = new_job(TOTALS % "pass", input=3, output=2)
    feed(job, "input", map(payment, range(200)))

    with cluster(tmp_path / "cluster", workers=2) as spark:
        run = Run(job, spark.address, "-p", "2", "--checkpoint-interval", "100ms", KAFKA_EOS_WORKER_TIMEOUT="5")
        run.until("committed")
        frozen = spark.processes(0)
        assert len(frozen) >= 3, "the executor, its Python worker, and the worker in that"
        signal_all(frozen, signal.SIGSTOP)
        try:
            feed(job, "input", map(payment, range(200, 400)))
            run.until("running", 2)
        finally:
            signal_all(frozen, signal.SIGCONT)
        run.until("running", 3)  # with a worker in the slot of the one that was given up
        feed(job, "input", map(payment, range(400, 600)))
        eventually(lambda: len(job.values("output")) == len(totals(map(payment, range(600)))), "all output is visible")
        run.send(signal.SIGTERM)
        assert run.ended() == 0, run.tail()

    check_totals(job, 600)


@pytest.mark.slow
def test_the_worker_of_a_decommissioned_executor_moves_after_a_checkpoint_and_nothing_is_read_again(
    new_job: NewJob, tmp_path: Path
) -> None:
    """The interval is long, so the checkpoint is that of the decommission. A third machine has a free core."""
    job = new_job(TOTALS % "pass", input=3, output=2)
    feed(job, "input", map(payment, range(200)))

    with cluster(tmp_path / "cluster", workers=3) as spark:
        run = Run(job, spark.address, "-p", "2", "--checkpoint-interval", "600s", cores=3)
        run.until("running")
        decommission(spark)
        run.until("running", 2)
        run.until_so(lambda: run.status["last"]["running"]["parallelism"] == 2)
        feed(job, "input", map(payment, range(200, 400)))
        run.send(signal.SIGTERM)
        assert run.ended() == 0, run.tail()

    assert "is to be shut down: the next attempt moves it" in run.tail()
    assert "restarting" not in run.status["counts"]
    check_totals(job, 400)


@pytest.mark.slow
def test_a_worker_that_ended_is_replaced_on_its_machine_although_another_one_is_free(
    new_job: NewJob, tmp_path: Path
) -> None:
    """Its machine has the state. Spark alone would take the free machine about every other time."""
    job = new_job(TOTALS % "pass", input=3, output=2)
    feed(job, "input", map(payment, range(200)))
    machines = []

    with cluster(tmp_path / "cluster", workers=3) as spark:
        run = Run(job, spark.address, "-p", "2", "--checkpoint-interval", "100ms", cores=3)
        for kills in range(5):
            run.until("running", kills + 1)
            run.until("committed", run.status["counts"].get("committed", 0) + 1)
            worker = run.status["last"]["running"]["workers"][0]
            machines.append(next(number for number in range(3) if worker in spark.processes(number)))
            os.kill(worker, signal.SIGKILL)
        run.until("running", 6)
        run.send(signal.SIGTERM)
        assert run.ended() == 0, run.tail()

    assert len({*machines}) == 1, (machines, run.tail())
    check_totals(job, 200)
