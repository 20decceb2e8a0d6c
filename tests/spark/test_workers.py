"""Workers in Spark's tasks that die, with their Python worker, executor or driver, or are too few: outputs stay exact.

Rule: each fault is done once by the code that it strikes, so that it is known to have occurred.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.core.failure_causes import RemoteUserError
from kafka_eos.core.ids import AppRef
from kafka_eos.spark import SparkWorkers
from tests.spark import kit
from tests.spark.cluster import cluster
from tests.spark.drivers import Run, fired
from tests.spark.kit import Job, feed, payment, rows, same, totals

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


def run(job: Job, spark: Any, *, until_caught_up: bool = True, **settings: object) -> None:
    given = job.settings(**{"parallelism": 2, "batch_size": 20, **settings})
    SparkWorkers(spark).run(
        job.plan(), AppRef(job.app), given, observers=(job.observe,), until_caught_up=until_caught_up
    )


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


def test_a_job_whose_spark_job_is_cancelled_ends_and_resumes_later(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS % "pass", input=2, output=1)
    feed(job, "input", map(payment, range(100)))

    def cancel(event: str, facts: Mapping[str, object]) -> None:
        if event == "committed":
            threading.Thread(target=spark.sparkContext.cancelAllJobs).start()

    job.watched_by = cancel
    with pytest.raises(RetryInterrupted, match="the Spark job of a worker was cancelled"):
        run(job, spark, until_caught_up=False)
    job.watched_by = None
    assert job.left_open() == []
    feed(job, "input", map(payment, range(100, 200)))
    run(job, spark)

    check_totals(job, 200)


def test_an_application_that_fails_to_load_in_a_worker_is_named(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS % "pass", input=1, output=1)
    plan = job.plan()
    job.app.write_text("1 / 0")

    with pytest.raises(RemoteUserError, match="ZeroDivisionError"):
        SparkWorkers(spark).run(plan, AppRef(job.app), job.settings(parallelism=1), until_caught_up=True)


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


@pytest.mark.slow
def test_executors_and_drivers_that_die_on_a_cluster_lose_and_double_nothing(new_job: NewJob, tmp_path: Path) -> None:
    job = new_job(TOTALS % "payment.id == 133 and once('executor') and kill(3)", input=3, output=2)
    feed(job, "input", map(payment, range(400)))
    steps = ["coordinator.acked", "commit.before"]
    script = ";".join(f"{step}=kill" for step in steps)

    codes: list[int] = []
    with cluster(tmp_path / "cluster", workers=2) as master:
        while len(codes) < 4 and (not codes or codes[-1] == -signal.SIGKILL):
            run = Run(job, master, "--until-caught-up", "-p", "2", failpoints=script, engine="spark-workers")
            codes.append(run.ended())

    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0], run.tail()
    assert fired(job) == steps and (job.directory / "executor").exists()
    check_totals(job, 400)
