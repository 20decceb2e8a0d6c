"""Random schedules over every kind of sink: whole jobs fall asleep or die in a commit, others take over, sleepers wake.

A sleeper is a supervisor with its workers, all stopped (SIGSTOP) where a failpoint stopped one of them, and without its
lock, as on another machine. Each run has a number of workers of its own, so what one has prepared is often committed
by a job of another size. ``SEEDS=20 make chaos TESTS=tests/chaos/test_frozen_commits.py`` tries more.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from kafka_eos.storage import object_names as paths
from tests.chaos import test_http, test_lake, test_lake_in_bucket
from tests.chaos.feeding import feeding
from tests.chaos.harness import Job, expected, read
from tests.chaos.running import Running, frozen, running, signal_worker
from tests.receiver import receiving
from tests.waiting import eventually

Check = Callable[[Job], None]
WRITTEN = re.compile(r"/part-\d{12}-(\d+)-[^/]+\.parquet$")
"""A data file of a table, with its term."""
SEEDS = int(os.environ.get("SEEDS", "3"))
RUNS = 4
IN_A_WORKER = ("sink.seal", "sink.flush.before", "sink.flush.after", "sink.prepare.after", "worker.ack.before")
IN_A_SUPERVISOR = (
    "coordinator.acked", "manifest.published", "commit.before", "commit.between", "commit.after", "receipt.before",
)  # fmt: skip
OF_A_TABLE = ("lake.commit.before", "lake.replaced", "lake.commit.after")
OF_A_RECEIVER = ("outbox.before", "outbox.between", "outbox.after")


@dataclass
class Schedule:
    """One job's runs, as ``chance`` has them."""

    job: Job
    chance: Random
    points: tuple[str, ...]
    sleepers: list[Running] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """What has happened, for whoever reads of a failure."""

    def run(self, runs: int) -> None:
        """After so many runs one takes over for good, the others wake up, and the last one clears up behind them."""
        with ExitStack() as ends:
            for each in range(runs):
                self._live(each, ends)
            self.job.run()
            while self.sleepers:
                self._wake()
        self.job.run()

    def _live(self, number: int, ends: ExitStack) -> None:
        """A run until its fault has acted. It is killed, or falls asleep; another one may wake up beside it."""
        workers, action = self.chance.randint(1, 3), self.chance.choice(["stop", "stop", "kill"])
        fault = f"{self.chance.choice(self.points)}={action}@{self.chance.randint(2, 5)}"
        self.told.append(f"{workers} workers, {fault}")
        # A log of its own: a sleeper may hold the lock of the one that it has.
        log = self.job.directory / f"failpoints-{number}.log"
        self.job.environment |= {"KAFKA_EOS_PARALLELISM": str(workers), "KAFKA_EOS_FAILPOINT_LOG": str(log)}
        run = ends.enter_context(running(self.job, fault))
        with feeding(self.job):
            _until(run, lambda: log.exists() and log.stat().st_size > 0, f"reach {fault}: {self.told}")
            if self.sleepers and self.chance.random() < 0.5:
                self._wake()
        if action == "stop":
            # It has noted that it stops, and does so a moment later: stopped in between it would do so when it wakes.
            eventually(lambda: frozen(int(log.read_text().rpartition("pid=")[2])), f"{fault} stops its process")
            self._to_sleep(run)
        else:
            run.end()

    def _to_sleep(self, run: Running) -> None:
        run.send(signal.SIGSTOP)
        for pid in workers_of(run):
            signal_worker(pid, signal.SIGSTOP)
        (self.job.checkpoints / self.job.name / paths.LOCK).unlink()
        self.sleepers.append(run)

    def _wake(self) -> None:
        """It finds out that it was replaced, whatever it was at, and ends with its workers."""
        run = self.sleepers.pop(self.chance.randrange(len(self.sleepers)))
        self.told.append("one wakes up")
        workers = workers_of(run)
        for pid in workers:
            signal_worker(pid, signal.SIGCONT)
        run.send(signal.SIGCONT)
        assert run.ended() == 1, (self.told, run.log[-6000:])
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "its workers end with it")


def workers_of(run: Running) -> list[int]:
    """The workers that a supervisor has now, whether or not it says so."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    command = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    return [int(pid) for pid, line in command.items() if b"kafka_eos.embedded.worker_main" in line]


def _until(run: Running, condition: Callable[[], bool], what: str) -> None:
    """As ``Running.until``, of a job that may die of what it waits for."""
    run.until(lambda: condition() or not run.alive, what)
    assert condition(), f"the job ended before it did {what}; log:\n{run.log[-6000:]}"


@pytest.fixture
def directories(lake: Callable[..., Job]) -> tuple[Job, Check, tuple[str, ...]]:
    """Files, Delta and Iceberg tables in directories; rows of PostgreSQL wait in staging tables."""
    return lake(), check_tables, (*IN_A_WORKER, *IN_A_SUPERVISOR, *OF_A_TABLE)


@pytest.fixture
def objects(lake: Callable[..., Job], s3: str) -> tuple[Job, Check, tuple[str, ...]]:
    """The same with files in a bucket."""
    return lake(where=s3), check_tables, (*IN_A_WORKER, *IN_A_SUPERVISOR)


@pytest.fixture
def prepared(lake: Callable[..., Job], preparing_database: Callable[[], str]) -> tuple[Job, Check, tuple[str, ...]]:
    """Rows of PostgreSQL wait in prepared transactions, of a system alone: its steps are the ones that are hit."""
    job = lake(TEST_ALONE="to-rows", TEST_DATABASE=preparing_database())
    return job, check_rows, (*IN_A_WORKER, "manifest.published", "commit.before", "commit.after", "receipt.before")


@pytest.fixture
def tables_in_a_bucket(in_bucket: Callable[..., Job]) -> tuple[Job, Check, tuple[str, ...]]:
    return in_bucket(), check_bucket, (*IN_A_WORKER, *IN_A_SUPERVISOR, *OF_A_TABLE)


@pytest.fixture
def receiver(new_job: Callable[..., Job]) -> Iterator[tuple[Job, Check, tuple[str, ...]]]:
    """It honours keys, and gets each row once, however often it is sent."""
    with receiving() as found:
        job = new_job(150, app="sends.py", TEST_URL=found.url, TEST_ROWS=5)
        job.environment["TEST_OUTBOX"] = str(job.directory / "outbox")
        yield job, lambda of: test_http.check(of, found), (*IN_A_WORKER, *IN_A_SUPERVISOR, *OF_A_RECEIVER)


def check_tables(job: Job) -> None:
    """What a sleeper was writing as it woke up may stay, named by nothing, until VACUUM takes it; nothing else may."""
    for name in of_sleepers(job, test_lake.data_files(job)):
        Path(name).unlink()
    test_lake.check(job)


def check_bucket(job: Job) -> None:
    """As ``check_tables``."""
    test_lake_in_bucket.check_rows(job)
    of_sleepers(job, test_lake_in_bucket.left(job))


def of_sleepers(job: Job, left: list[str]) -> list[str]:
    """What is left over, all of it data files of those that were replaced."""
    newest = max(int(path.name.partition(".")[0]) for path in (job.checkpoints / job.name / paths.TERMS).iterdir())
    for name in left:
        written = WRITTEN.search(name)
        assert written is not None and int(written[1]) < newest, name
    return left


def check_rows(job: Job) -> None:
    assert test_lake.in_table(job) == sorted(expected(read(job.bootstrap, job.input)))
    assert test_lake.staged_rows(job) == []


@pytest.mark.chaos
@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("sinks", ["directories", "objects", "prepared", "tables_in_a_bucket", "receiver"])
def test_whoever_falls_asleep_in_a_commit_and_wakes_up_late_neither_loses_nor_doubles_a_row(
    sinks: str, seed: int, request: pytest.FixtureRequest
) -> None:
    job, check, points = request.getfixturevalue(sinks)
    schedule = Schedule(job, Random(f"{sinks}-{seed}"), points)

    schedule.run(RUNS)

    print("; ".join(schedule.told))
    check(job)
