"""Real processes: drivers that are killed at named steps, a clean stop, and what a cluster does differently."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.savepoint_files import newest_committed
from tests.contract import s3_server
from tests.otlp_receiver import receiving
from tests.spark.cluster import cluster, environment
from tests.spark.drivers import Run, fired
from tests.spark.kit import TOTALS, Job, feed, payment, rows, same, totals
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]
NewJob = Callable[..., Job]

IN_A_WORKER = "sink.prepare.after"
"""It kills a worker, which the driver replaces; the others kill the driver."""
STEPS = [IN_A_WORKER, "coordinator.acked", "manifest.published", "commit.before", "receipt.before"]
SUBMITTED = """
if __name__ == "__main__":
    from kafka_eos.spark import SparkEngine
    pipeline.run(SparkEngine(), until_caught_up=True)
"""


@pytest.mark.campaign
def test_a_driver_that_is_killed_at_each_step_of_the_protocol(new_job: NewJob) -> None:
    job = new_job(TOTALS, input=3, output=2)
    feed(job, "input", map(payment, range(400)))
    script = ";".join(f"{step}=kill" for step in STEPS)

    codes = []
    while len(codes) < len(STEPS) + 2 and (not codes or codes[-1] == -signal.SIGKILL):
        codes.append(Run(job, "local[2]", "--until-caught-up", failpoints=script).ended())

    assert codes[-1] == 0, codes
    assert fired(job) == STEPS
    assert codes.count(-signal.SIGKILL) == len(set(STEPS) - {IN_A_WORKER})
    same(rows(job.values("output")), totals(map(payment, range(400))))
    assert job.left_open() == []


@pytest.mark.slow
def test_a_stop_commits_what_was_read(new_job: NewJob) -> None:
    job = new_job(TOTALS, input=2, output=1)
    feed(job, "input", map(payment, range(100)))
    with receiving() as receiver:
        run = Run(job, "local[2]", "--checkpoint-interval", "100ms", "--otel", **receiver.environment)

        run.until("committed")
        run.send(signal.SIGTERM)

        assert run.ended() == 0, run.tail()
        assert receiver.metrics["kafka_eos_committed_records_total", "to-kafka"] == len(job.values("output"))
        assert {trace.error for trace in receiver.traces} == {None}
    same(rows(job.values("output")), totals(map(payment, range(100))))
    assert job.left_open() == []


@pytest.mark.slow
def test_a_checkpoint_dir_that_executors_do_not_share_is_noticed_before_anything_is_decided(
    new_job: NewJob, tmp_path: Path
) -> None:
    """One name, another place in each process: the driver's directory and the executors' are not the same."""
    job = new_job(TOTALS, input=2, output=1)
    feed(job, "input", map(payment, range(100)))
    job.checkpoints.mkdir()

    with cluster(tmp_path / "cluster", workers=2) as spark:
        run = Run(job, spark.address, "--until-caught-up", "--checkpoint-dir", "/proc/self/cwd/checkpoints")
        assert run.ended() == 2, run.tail()

    assert "ConfigError: checkpoint_dir is not the same location on every machine" in run.tail()
    assert not list((tmp_path / "cluster").rglob("checkpoints"))
    (before_all,) = (job.checkpoints / job.name / "manifests").iterdir()
    assert before_all.name == "000000000000-00000001.json"
    assert job.values("output") == []
    assert job.left_open() == []


@pytest.mark.slow
def test_without_a_parallelism_executors_are_counted_when_they_are_there(new_job: NewJob, tmp_path: Path) -> None:
    """Before the first has registered, Spark says 2; and by default it waits for none."""
    job = new_job(TOTALS, input=2, output=1)
    feed(job, "input", map(payment, range(100)))

    with cluster(tmp_path / "cluster", workers=1, cores=3) as spark:
        run = Run(job, spark.address, "--until-caught-up", PYSPARK_SUBMIT_ARGS="pyspark-shell")
        assert run.ended() == 0, run.tail()

    newest = newest_committed(LocalStorage(job.checkpoints / job.name), job.name)
    assert newest.parallelism == 3
    same(rows(job.values("output")), totals(map(payment, range(100))))


@pytest.fixture(params=["directory", "s3"])
def checkpoint_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Which the driver and all executors reach; they also have what is needed for it in their environment."""
    if request.param == "directory":
        yield str(tmp_path / "checkpoints")
        return
    with s3_server.reachable(tmp_path / "s3") as port:
        yield s3_server.address(port, "spark")


@pytest.mark.slow
def test_workers_restore_from_the_storage_what_another_machine_has_written(
    new_job: NewJob, tmp_path: Path, checkpoint_dir: str
) -> None:
    """Executors share no disk but the storage: each has a state_dir of its own, and each run has other executors."""
    job = new_job(TOTALS, input=4, output=2)
    options = ["--until-caught-up", "-p", "2", "--checkpoint-dir", checkpoint_dir]

    with cluster(tmp_path / "cluster", workers=2) as spark:
        for first in (0, 400):
            feed(job, "input", map(payment, range(first, first + 400)))
            run = Run(job, spark.address, *options, KAFKA_EOS_STATE_DIR="of-this-executor")
            assert run.ended() == 0, run.tail()

    same(rows(job.values("output")), totals(map(payment, range(800))))
    assert job.left_open() == []


@pytest.mark.slow
def test_a_submitted_job_and_both_audits_run_on_a_cluster(new_job: NewJob, tmp_path: Path) -> None:
    job = new_job(TOTALS + SUBMITTED, input=2, output=2)
    feed(job, "input", map(payment, range(200)))
    environ = {**environment(), "KAFKA_EOS_BOOTSTRAP_SERVERS": job.bootstrap,
               "KAFKA_EOS_CHECKPOINT_DIR": str(job.checkpoints)}  # fmt: skip
    del environ["JAVA_TOOL_OPTIONS"]  # a long audit chooses another garbage collector
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [sys.executable, "-m", "kafka_eos"]
    names = ["--input", job.topics["input"], "--output", job.topics["output"], "--where", "json.amount > 0"]
    by_provenance = [*names, "--id", "provenance", "--schema", "amount INT"]

    with cluster(tmp_path / "cluster", workers=2) as spark:
        for what in (
            [str(submit), "--master", spark.address, str(job.app)],
            [*command, "audit", str(job.app), "--master", spark.address],
            [*command, "audit", "topics", "--master", spark.address, *by_provenance],
        ):
            done = subprocess.run(what, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    same(rows(job.values("output")), totals(map(payment, range(200))))
    assert job.left_open() == []
