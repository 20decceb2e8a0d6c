"""Checkpoints that fail without a death: full disk, I/O errors. And the second state backend under kills."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.chaos.feeding import feeding
from tests.chaos.harness import Job, aborted, open_transactions
from tests.chaos.running import check_all, events, refused, running

NewJob = Callable[..., Job]

DECLINED = "snapshot.upload=enospc@2"
"""State that cannot be stored: the checkpoint is given up, and the job runs on."""
FAILURES = (
    "manifest.staged=error@2",
    "sink.prepare.before=error@3",  # passed twice an epoch: by Kafka's output and by the files'
    "snapshot.flush=error@2",
)
KILLS = ("snapshot.uploaded=kill@2", "manifest.published=kill@2", "commit.between=kill@2", "recovery.restored=kill")


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_declined_checkpoints_among_several_at_once(new_job: NewJob, mode: str) -> None:
    """Then death: what is committed must be what the state says."""
    job = new_job(
        3000,
        KAFKA_EOS_PARALLELISM=3,
        KAFKA_EOS_CHECKPOINT_MODE=mode,
        KAFKA_EOS_CHECKPOINT_INTERVAL="20ms",
        KAFKA_EOS_TOLERATED_CHECKPOINT_FAILURES=20,
        TEST_PAUSE=0.001,
        TEST_PAUSE_AFTER=0.001,
    )
    faults = [f"snapshot.upload=enospc@{at}" for at in (5, 4, 7)] + ["manifest.published=kill@2"]
    for incarnation in (1, 2):
        with running(job, ";".join(faults * 2)) as run, feeding(job):
            assert run.ended() == -signal.SIGKILL
            assert run.count("aborted") >= 1
        assert len(job.fired) == incarnation * len(faults)
    job.run()

    check_all(job)


def test_a_failed_checkpoint_aborts_its_output_and_the_worker_goes_on(new_job: NewJob) -> None:
    job = new_job(800, TEST_PAUSE=0.001, KAFKA_EOS_TOLERATED_CHECKPOINT_FAILURES=20)
    with running(job, ";".join((DECLINED, *FAILURES))) as run:
        with feeding(job):
            run.until(lambda: len(job.fired) == 1 + len(FAILURES), "fail as planned")
            run.until(lambda: run.count("running") > len(FAILURES), "go on after the last failure")
        run.until_all_committed()
        run.drain()
        assert len({tuple(event["workers"]) for event in run.events("running")}) == 1, "nothing died"
        happened = [event["event"] for event in events(job)]
    declined, failed = happened.index("aborted"), happened.index("restarting")
    assert "committed" in happened[declined:failed], "a declined checkpoint is no reason to restart"
    assert aborted(job) > 0, "no output was ever aborted, so it proves nothing"
    check_all(job)


@pytest.mark.campaign
def test_too_many_failed_checkpoints_in_a_row_stop_the_job(new_job: NewJob) -> None:
    job = new_job(400, KAFKA_EOS_TOLERATED_CHECKPOINT_FAILURES=1)

    said = refused(job, 1, ";".join(["snapshot.upload=enospc"] * 4))

    assert len(job.fired) == 4, "two declined checkpoints end an attempt, two such attempts the job"
    assert "Fatal" in said
    assert "2 times in a row" in said
    assert "Errno 28" in said, "no space left"
    assert open_transactions(job) == [], "what a stopped job leaves open hides what others write behind it"
    job.run()
    check_all(job)


@pytest.mark.campaign
def test_state_in_memory_survives_kills_as_well(new_job: NewJob) -> None:
    job = new_job(600, TEST_BACKEND="memory")

    job.run(";".join(KILLS))

    check_all(job)
