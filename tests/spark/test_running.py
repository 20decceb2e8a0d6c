"""A running job that is asked for things, and jobs that bring from the embedded engine what is not only state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kafka_eos.coordination.job_requests import is_running
from kafka_eos.core.failure_causes import RemoteUserError
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from tests.spark.cluster import environment
from tests.spark.kit import Job, feed, payment, rows, same, totals
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
NewJob = Callable[..., Job]
T = TypeVar("T")

TOTALS = """
def slowly(total, payment):
    time.sleep(float(os.environ.get("TEST_PAUSE", "0")))
    return add(total, payment)

pipeline = Pipeline("{name}")
(
    pipeline.source(KafkaSource("{input}", value=Payment), name="payments")
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account, KEYS)
    .fold(name="total", init=lambda: Total("", 0, -1), step=slowly, emit=lambda account, total: total)
    .sink(KafkaSink("{output}", value=Total, key=lambda total: total.account), name="to-kafka")
)
"""
SHUFFLED = TOTALS.replace("KEYS", "values=Payment")
LOCAL = TOTALS.replace("KEYS", "local=True")


class Shell:
    """``kafka-eos`` commands for one job."""

    def __init__(self, job: Job) -> None:
        self.job, self.log = job, job.directory / "run.log"

    @contextmanager
    def running(self, *options: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
        """``kafka-eos run``; the process is gone afterwards."""
        with self.log.open("ab") as log:
            command = [*self._command("run"), "-b", self.job.bootstrap, *options]
            process = subprocess.Popen(command, env={**environment(), "COLUMNS": "500", **environ}, stdout=log,
                                       stderr=log, cwd=self.job.directory)  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def ask(self, *command: str) -> str:
        """The standard output of a command that must end well."""
        done = subprocess.run(self._command(*command), cwd=self.job.directory, capture_output=True, text=True,
                              check=False, timeout=PATIENCE, env={**os.environ, "COLUMNS": "500"})  # fmt: skip
        assert done.returncode == 0, done.stderr + self.tail()
        return done.stdout.strip()

    def until(self, process: subprocess.Popen[bytes], condition: Callable[[], T]) -> T:
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert process.poll() is None and time.monotonic() < deadline, self.tail()
            time.sleep(0.05)
        return found

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]

    def _command(self, *words: str) -> list[str]:
        split = 2 if words[0] in ("savepoint", "checkpoints") else 1
        return [sys.executable, "-m", "kafka_eos", *words[:split], str(self.job.app),
                "--checkpoint-dir", str(self.job.checkpoints), *words[split:]]  # fmt: skip


def manifests(job: Job) -> list[Manifest]:
    """The stored ones, oldest first."""
    directory = job.checkpoints / job.name
    if not (directory / paths.MANIFESTS).exists():
        return []
    storage = LocalStorage(directory)
    return [records.load(storage, Manifest, name, job.name) for name in storage.list(paths.MANIFESTS)]


def read_records(savepoint: Path) -> int:
    """How much of the input a savepoint has behind it."""
    positions = savepoints.read_savepoint(savepoint).sources["payments"].values()
    return sum(int(str(at["offset"])) for at in positions)


WAITING = """
from kafka_eos import ProcessFunction

class Waiting(ProcessFunction):
    def open(self, ctx):
        self.ctx, self.timers, self.latest = ctx, ctx.processing_timers(), ctx.value_state("latest", int)

    def process(self, key, payment):
        if self.latest.get() is None:
            self.timers.register(self.ctx.processing_time + 3000)
        self.latest.put(payment.id)
        return []

    def on_processing_timer(self, key, at):
        yield Total(key, 0, self.latest.get())
        self.latest.clear()

pipeline = Pipeline("{name}")
(
    pipeline.source(KafkaSource("{input}", value=Payment), name="payments")
    .key_by(lambda payment: payment.account, values=Payment)
    .process(Waiting, name="waiting")
    .sink(KafkaSink("{output}", value=Total, key=lambda total: total.account), name="to-kafka")
)
"""


@pytest.mark.campaign
def test_timers_of_the_clock_begin_an_epoch_where_nothing_is_read(new_job: NewJob) -> None:
    job = new_job(WAITING, input=2, output=1)
    feed(job, "input", map(payment, range(40)))
    shell = Shell(job)

    with shell.running("--engine", "spark", "--master", "local[2,3]") as process:
        shell.until(process, lambda: len(job.values("output")) >= 20)
        epochs = manifests(job)[-1].epoch
        feed(job, "input", [payment(40)])
        shell.until(process, lambda: len(job.values("output")) > 20)

    found = [(row["account"], row["id"]) for row in job.values("output")]
    assert sorted(found) == sorted([*((f"a{n % 20}", n) for n in range(20, 40)), ("a0", 40)])
    assert epochs <= 6, "epochs were begun that had nothing to do"


@pytest.mark.campaign
def test_a_running_job_serves_what_it_is_asked(new_job: NewJob) -> None:
    """With almost an hour between epochs: whatever is read after the first epoch was read because somebody asked."""
    job = new_job(SHUFFLED, input=2, output=1)
    feed(job, "input", map(payment, range(60)))
    shell = Shell(job)
    options = ("--engine", "spark", "--master", "local[2,3]", "--checkpoint-interval", "50m")

    with shell.running(*options) as process:
        shell.until(process, lambda: is_running(job.checkpoints / job.name) and len(job.values("output")) > 0)
        feed(job, "input", map(payment, range(60, 100)))
        first = shell.ask("checkpoints", "trigger")
        same(rows(job.values("output")), totals(map(payment, range(100))))
        assert shell.ask("checkpoints", "trigger") == first, "nothing is new, and yet there was an epoch"

        feed(job, "input", map(payment, range(100, 150)))
        taken = Path(shell.ask("savepoint", "trigger"))
        assert read_records(taken) == 150
        assert process.poll() is None

        feed(job, "input", map(payment, range(150, 180)))
        last = Path(shell.ask("stop", "--savepoint"))
        assert process.wait(PATIENCE) == 0, shell.tail()

    assert savepoints.find_damage(taken) == savepoints.find_damage(last) == []
    assert read_records(last) == 150, "a stop begins no epoch"
    same(rows(job.values("output")), totals(map(payment, range(150))))
    assert job.left_open() == []
    job.embedded()
    same(rows(job.values("output")), totals(map(payment, range(180))))


def test_rows_under_way_are_taken_up(new_job: NewJob, spark: Any) -> None:
    """The embedded engine is killed when its newest checkpoint holds rows between its workers."""
    job = new_job(SHUFFLED, input=3, output=2)
    feed(job, "input", map(payment, range(1500)))
    shell = Shell(job)
    options = ("-p", "2", "--checkpoint-mode", "unaligned", "--checkpoint-interval", "100ms")

    with shell.running(*options, TEST_PAUSE="0.02", KAFKA_EOS_BATCH_SIZE="50") as process:
        shell.until(process, lambda: len(found := manifests(job)) > 1 and found[-1].in_flight)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = manifests(job)[-1]
    assert before.in_flight, "the last decided epoch has no rows under way: the test proves nothing"

    job.on_spark(spark, parallelism=3)

    after = manifests(job)[-1]
    assert (after.in_flight, after.parallelism) == ((), 3)
    same(rows(job.values("output")), totals(map(payment, range(1500))))
    assert job.left_open() == []


@pytest.mark.campaign
def test_local_state_moves_between_engines_at_the_same_parallelism(new_job: NewJob, spark: Any) -> None:
    """Payments of an account are in one partition, and its state is where that is read, on either engine."""
    job = new_job(LOCAL, input=3, output=2)
    runs: list[Callable[[], None]] = [
        lambda: job.embedded(parallelism=3),
        lambda: job.on_spark(spark, parallelism=3),
        lambda: job.on_spark(spark, parallelism=3),
        lambda: job.embedded(parallelism=3),
    ]
    for turn, run in enumerate(runs):
        feed(job, "input", map(payment, range(turn * 60, turn * 60 + 60)))
        run()
    with pytest.raises(RemoteUserError, match="parallelism=3 .*or omit local=True"):
        job.on_spark(spark, parallelism=2)

    job.app.write_text(job.app.read_text().replace("local=True", "values=Payment"))
    feed(job, "input", map(payment, range(240, 300)))
    job.on_spark(spark, parallelism=2)

    same(rows(job.values("output")), totals(map(payment, range(300))))
    assert job.left_open() == []
