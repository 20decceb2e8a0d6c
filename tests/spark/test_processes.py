"""Real processes: drivers that are killed at named steps, a clean stop, and executors that die on a cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.coordinator.history import read
from kafka_eos.coordinator.status import read_status
from tests.spark.cluster import cluster, environment
from tests.spark.kit import Job, feed, payment, rows, same, totals

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200), pytest.mark.xdist_group("spark")]
NewJob = Callable[..., Job]
PATIENCE = 300.0

TOTALS = """
pipeline = Pipeline("{name}")
(
    pipeline.source("payments", KafkaSource("{input}", value=Payment))
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account)
    .fold("total", init=lambda: Total("", 0, -1), step=add, emit=lambda account, total: total)
    .sink("to-kafka", KafkaSink("{output}", value=Total, key=lambda total: total.account))
)
"""

RANDOM = """
import random
from pyspark import TaskContext

def kill_executor():
    '''The JVM that runs this task, and with it the rows that it has sent to other tasks.'''
    daemon = os.getppid()
    executor = int(Path(f"/proc/{{daemon}}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{{executor}}/cmdline").read_bytes()
    os.kill(executor, signal.SIGKILL)

def step(total, payment):
    # Of four tasks on two cores the last: others have ended, with rows that are lost now and will come out different.
    if TaskContext.get().partitionId() == 3 and once("executor"):
        kill_executor()
    return Total(payment.account, total.total + 1, payment.id)

pipeline = Pipeline("{name}")
(
    pipeline.source("payments", KafkaSource("{input}", value=Payment))
    .map(lambda payment: Payment(payment.id, "r" + str(random.randrange(8)), 1))
    .key_by(lambda payment: payment.account, values=Payment)
    .fold("total", init=lambda: Total("", 0, -1), step=step, emit=lambda account, total: total)
    .sink("to-kafka", KafkaSink("{output}", value=Total, key=lambda total: total.account))
)
"""


class Run:
    """``kafka-eos run --engine spark`` of a job, as a process."""

    def __init__(self, job: Job, master: str, *options: str, failpoints: str = "") -> None:
        self.job, self.log = job, job.directory / "driver.log"
        command = [sys.executable, "-m", "kafka_eos", "run", str(job.app), "--engine", "spark", "--master", master,
                   "-b", job.bootstrap, "--checkpoint-dir", str(job.checkpoints), *options]  # fmt: skip
        armed = {"KAFKA_EOS_FAILPOINTS": failpoints, "KAFKA_EOS_FAILPOINT_LOG": str(job.directory / "fired")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env={**environment(), **armed, "COLUMNS": "500"}, stdout=log, stderr=log, cwd=job.directory
            )

    def ended(self) -> int:
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the job hung:\n{self.tail()}") from None

    def until(self, event: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            status: Any = read_status(self.job.checkpoints / self.job.name) or {"counts": {}}
            if status["counts"].get(event):
                return
            assert self._process.poll() is None, self.tail()
            assert time.monotonic() < deadline, self.tail()
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]


def fired(job: Job) -> list[str]:
    path = job.directory / "fired"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_driver_that_is_killed_at_each_step_of_the_protocol(new_job: NewJob) -> None:
    job = new_job(TOTALS, input=3, output=2)
    feed(job, "input", map(payment, range(400)))
    steps = ["sink.prepare.after", "coordinator.acked", "manifest.published", "commit.before", "receipt.before"]
    script = ";".join(f"{step}=kill" for step in steps)

    codes = []
    while len(codes) < len(steps) + 2 and (not codes or codes[-1] == -signal.SIGKILL):
        codes.append(Run(job, "local[2,3]", "--until-caught-up", failpoints=script).ended())

    assert codes[-1] == 0, codes
    assert fired(job) == steps  # the first of them in a Python worker, the others in the driver
    assert codes.count(-signal.SIGKILL) == len(steps) - 1
    same(rows(job.values("output")), totals(map(payment, range(400))))
    assert job.left_open() == []


@pytest.mark.slow
def test_a_stop_finishes_the_epoch_at_hand(new_job: NewJob) -> None:
    job = new_job(TOTALS, input=2, output=1)
    feed(job, "input", map(payment, range(100)))
    run = Run(job, "local[2,3]", "--checkpoint-interval", "100ms")

    run.until("committed")
    run.send(signal.SIGTERM)

    assert run.ended() == 0, run.tail()
    same(rows(job.values("output")), totals(map(payment, range(100))))
    assert job.left_open() == []


@pytest.mark.slow
def test_an_executor_that_dies_on_a_cluster_with_functions_that_are_not_deterministic(
    new_job: NewJob, tmp_path: Path
) -> None:
    job = new_job(RANDOM, input=4, output=2)
    feed(job, "input", map(payment, range(400)))

    with cluster(tmp_path / "cluster", workers=2) as master:
        run = Run(job, master, "--until-caught-up", "-p", "4")
        assert run.ended() == 0, run.tail()

    assert (job.directory / "executor").exists()
    events = read(LocalStorage(job.checkpoints / job.name))
    # Spark sees by itself that rows of the lost tasks would come out different, and gives the job up.
    assert [event["event"] for event in events].count("restarting") == 1
    found = rows(job.values("output"))
    assert Counter(number for _, _, number in found) == Counter(range(400))
    by_account = defaultdict(list)
    for account, total, _ in found:
        by_account[account].append(total)
    assert all(sorted(counts) == list(range(1, len(counts) + 1)) for counts in by_account.values())
    assert job.left_open() == []
