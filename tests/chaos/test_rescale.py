"""The number of workers changes in a storm: 1, 3, 2. Output is exact, and so is every stored checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.feeding import feeding
from tests.chaos.harness import Job
from tests.chaos.offline import check_checkpoints
from tests.chaos.running import Running, check_all, events, manifests, running
from tests.chaos.storm import Storm
from tests.marks import campaign

NewJob = Callable[..., Job]

PAYMENTS = 300
BACKLOG = 2000
"""Payments that arrive together, so that there are rows under way for some checkpoints."""
MANY = 60_000
"""Bytes of rows under way that take one worker longer than it may take to be ready."""
STEPS = (
    (1, ("commit.before=kill@2",)),
    (3, ("align.complete=kill@4", "recovery.opened=kill")),
    (2, ("worker.ack.after=kill@3", "manifest.published=kill@2")),
)


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize("mode", [campaign("aligned"), "unaligned"])
def test_rescale_in_a_storm(new_job: NewJob, tmp_path: Path, mode: str) -> None:
    """Behind the exchange it is slow: rows pile up, and an unaligned checkpoint has them."""
    job = new_job(
        PAYMENTS,
        KAFKA_EOS_CHECKPOINT_MODE=mode,
        KAFKA_EOS_RETAINED_CHECKPOINTS=6,
        TEST_PAUSE=0.0002,
        TEST_PAUSE_AFTER=0.003,
    )
    storm = Storm(job, PAYMENTS)
    for workers, faults in STEPS:
        with storm.through(*faults, KAFKA_EOS_PARALLELISM=workers) as running:
            storm.feed(BACKLOG)
            with feeding(job):
                _frozen_under_load(running, job, rows=mode == "unaligned" and workers > 1)
        stored = check_checkpoints(job, tmp_path)
        assert stored[-1].parallelism == workers
        assert mode == "unaligned" or not any(manifest.in_flight for manifest in stored)

    job.environment["TEST_PAUSE_AFTER"] = "0"
    job.run()

    check_all(job)
    check_checkpoints(job, tmp_path)
    assert not manifests(job)[-1].in_flight, "the last checkpoint of a job left rows under way"
    assert mode == "aligned" or _moved(job), "no rows under way were taken up by another number of workers"


@pytest.mark.campaign
def test_one_worker_takes_its_time_over_what_three_had_under_way(new_job: NewJob) -> None:
    """Longer than a worker may take to be ready: what was under way is input like any other."""
    job = new_job(
        8000,
        KAFKA_EOS_PARALLELISM=3,
        KAFKA_EOS_CHECKPOINT_MODE="unaligned",
        KAFKA_EOS_WORKER_TIMEOUT="3s",
        TEST_PAUSE=0,
        TEST_PAUSE_AFTER=0.004,
    )
    with running(job) as run, feeding(job):
        run.freeze_when(lambda: _under_way(job) > MANY, "pile up rows")
    job.environment["KAFKA_EOS_PARALLELISM"] = "1"
    with running(job) as run:
        run.until_committed(2)
        assert _under_way(job) > 0, "all of it was processed at once"
        assert not run.count("restarting")
    job.environment["TEST_PAUSE_AFTER"] = "0"

    job.run()

    check_all(job)
    assert _under_way(job) == 0


def _under_way(job: Job) -> int:
    """Bytes of rows under way in the newest checkpoint."""
    return next((event["in_flight_bytes"] for event in reversed(events(job)) if event["event"] == "decided"), 0)


def _frozen_under_load(running: Running, job: Job, rows: bool) -> None:
    """Frozen when the newest checkpoint is in the middle of the input, with rows under way if it can have them."""
    before = manifests(job)[-1].epoch
    running.until(lambda: manifests(job)[-1].epoch > before + 1, "decide two more epochs")
    running.freeze_when(lambda: not rows or manifests(job)[-1].in_flight, "store rows under way")


def _moved(job: Job) -> bool:
    """Did a session with another number of workers continue a checkpoint that has rows under way?"""
    under_way: dict[int, int] = {}
    workers, decided_by = 0, {0: 0}
    for event in events(job):
        if event["event"] == "running":
            if under_way.get(event["base"]) and decided_by[event["base"]] != event["parallelism"]:
                return True
            workers = event["parallelism"]
        elif event["event"] == "decided":
            under_way[event["epoch"]], decided_by[event["epoch"]] = event["in_flight_bytes"], workers
    return False
