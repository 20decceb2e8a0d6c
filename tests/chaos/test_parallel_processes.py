"""Three workers as processes: frozen ones, dead ones, all dead at once, and slow ones that slow down the sources."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos.storage import object_names as paths
from tests.chaos.feeding import feeding
from tests.chaos.harness import Job, feed, open_transactions, read
from tests.chaos.running import (
    Running,
    check_all,
    events,
    frozen,
    has_output,
    manifests,
    outputs,
    running,
    signal_worker,
    standing,
)
from tests.waiting import eventually

NewJob = Callable[..., Job]

WORKERS = 3
CAMPAIGN = pytest.mark.campaign
ALIGNED = pytest.mark.parametrize("mode", ["aligned", pytest.param("unaligned", marks=CAMPAIGN)])
UNALIGNED = pytest.mark.parametrize("mode", ["unaligned", pytest.param("aligned", marks=CAMPAIGN)])
"""One mode in `make test`, the other one in `make chaos` as well."""


def workers_of(run: Running) -> list[int]:
    """Process ids of the workers that run now, by subtask."""
    return list(run.until(lambda: run.last("running").get("workers"), "run"))


@pytest.mark.chaos
@ALIGNED
@pytest.mark.campaign
def test_a_worker_that_is_frozen_beyond_every_timeout_is_replaced(new_job: NewJob, mode: str) -> None:
    job = new_job(
        600,
        KAFKA_EOS_PARALLELISM=WORKERS,
        KAFKA_EOS_CHECKPOINT_MODE=mode,
        KAFKA_EOS_CHECKPOINT_TIMEOUT="3s",
        KAFKA_EOS_WORKER_TIMEOUT="10s",
    )
    with running(job, "sink.prepare.after=stop@3") as run:
        before = workers_of(run)
        with feeding(job):
            run.until(lambda: any(map(_is_frozen, before)), "freeze a worker")
        (asleep,) = [pid for pid in before if _is_frozen(pid)]

        run.until(lambda: run.last("running")["workers"] != before, "replace it")

        after = workers_of(run)
        assert asleep not in after
        assert len(set(before) & set(after)) == WORKERS - 1, "workers that are well were started again"
        assert not Path(f"/proc/{asleep}").exists(), "it could wake up beside its replacement"
        run.until_all_committed()
        run.drain()
    check_all(job)


@pytest.mark.campaign
@pytest.mark.chaos
@UNALIGNED
def test_a_whole_job_that_wakes_up_beside_its_successor_writes_nothing_that_counts(new_job: NewJob, mode: str) -> None:
    """Supervisor and workers sleep in the middle of an epoch; its lock is gone, as on another machine."""
    job = new_job(600, KAFKA_EOS_PARALLELISM=WORKERS, KAFKA_EOS_CHECKPOINT_MODE=mode, TEST_PAUSE_AFTER=0.002)
    with running(job, "worker.ack.before=stop@3") as zombie:
        asleep = workers_of(zombie)
        with feeding(job):
            zombie.until(lambda: any(map(_is_frozen, asleep)), "freeze a worker")
        zombie.send(signal.SIGSTOP)
        for pid in asleep:
            signal_worker(pid, signal.SIGSTOP)
        (job.checkpoints / job.name / paths.LOCK).unlink()
        job.run()
        check_all(job)
        before = _visible(job)

        for pid in asleep:
            signal_worker(pid, signal.SIGCONT)
        eventually(lambda: not any(map(_is_frozen, asleep)), "they wake up")
        zombie.send(signal.SIGCONT)

        assert zombie.ended() == 1, zombie.log[-3000:]
        assert "Fenced" in zombie.log
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in asleep), "they end with their supervisor")
    assert _visible(job) == before
    assert open_transactions(job) == []
    job.run()  # what they staged meanwhile is removed
    check_all(job)
    assert _visible(job) == before


@pytest.mark.chaos
@ALIGNED
@pytest.mark.campaign
def test_supervisor_and_all_workers_die_at_once(new_job: NewJob, mode: str) -> None:
    job = new_job(600, KAFKA_EOS_PARALLELISM=WORKERS, KAFKA_EOS_CHECKPOINT_MODE=mode, TEST_PAUSE_AFTER=0.002)
    for _ in range(2):
        with running(job) as run, feeding(job):
            workers = workers_of(run)
            run.until_committed(1)
            run.send(signal.SIGKILL)
            for pid in workers:
                _kill(pid)
            assert run.ended() == -9

    job.run()

    check_all(job)


@CAMPAIGN
def test_workers_go_on_while_an_epoch_is_committed(new_job: NewJob) -> None:
    job = new_job(600, KAFKA_EOS_PARALLELISM=2, TEST_PAUSE=0.002)
    with standing(job, "commit.before", lambda: has_output(job)) as run:
        feed(job.bootstrap, job.input, range(600, 1200))
        eventually(lambda: _written_to_kafka(job) > _decided(job), "a worker writes rows of the next epoch")
        run.send(signal.SIGKILL)


@pytest.mark.slow
def test_a_slow_operator_slows_down_the_sources_and_memory_stays_flat(new_job: NewJob) -> None:
    """Behind the exchange a row takes 5 ms, before it next to nothing: a hundred times as fast, and it has to wait."""
    rows, most_under_way = 60_000, 20_000
    job = new_job(
        rows,
        KAFKA_EOS_PARALLELISM=WORKERS,
        KAFKA_EOS_CHECKPOINT_MODE="unaligned",
        KAFKA_EOS_EXCHANGE_MEMORY=1 << 20,
        TEST_PAUSE=0,
        TEST_PAUSE_AFTER=0.005,
    )
    with running(job) as run:
        run.until_output()
        workers = workers_of(run)
        first, began = list(map(_memory, workers)), _written(run)
        seen: list[int] = []

        def enough() -> bool:
            seen.append(run.last("progress")["records_in"] - _written(run))
            return _written(run) > began + 1500

        run.until(enough, "write 1500 rows")
        grown = [after - before for before, after in zip(first, map(_memory, workers), strict=True)]

        assert workers_of(run) == workers, "a worker was replaced, so its memory says nothing"
        assert run.last("progress")["lag"] > rows - most_under_way - _written(run), "the sources were not slowed down"
        assert max(seen) < most_under_way
        assert max(grown) < 24 << 20, f"memory of the workers grew by {grown} bytes"
        assert manifests(job)[-1].in_flight
    job.environment["TEST_PAUSE_AFTER"] = "0"
    job.run()
    check_all(job)


def _visible(job: Job) -> tuple[list[tuple[str, bytes]], int]:
    """Committed files, and the number of committed messages."""
    return [file for file in outputs(job) if not file[0].startswith(".")], len(read(job.bootstrap, job.output))


def _written_to_kafka(job: Job) -> int:
    """Rows in the output, committed or not."""
    return len(read(job.bootstrap, job.output, "read_uncommitted"))


def _decided(job: Job) -> int:
    """Rows of the output that belong to decided epochs."""
    decided = {event["epoch"]: event["records"] for event in events(job) if event["event"] == "committed"}
    newest = manifests(job)[-1]
    decided[newest.epoch] = {c.scope: 0 for c in newest.committables}
    for committable in newest.committables:
        decided[newest.epoch][committable.scope] += committable.records
    return sum(n for records in decided.values() for scope, n in records.items() if scope.startswith("kafka:"))


def _written(run: Running) -> int:
    """Rows that came out of the slow operator: every row goes to two sinks."""
    return int(run.last("progress").get("records_out", 0)) // 2


def _memory(pid: int) -> int:
    """Bytes that a process has in memory (VmRSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has ended")


def _is_frozen(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and frozen(pid)


def _kill(pid: int) -> None:
    """SIGKILL a worker, unless the death of its supervisor has already killed it."""
    try:
        signal_worker(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, AssertionError):
        assert not Path(f"/proc/{pid}/exe").exists()
