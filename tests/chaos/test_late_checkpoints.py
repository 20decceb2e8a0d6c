"""A checkpoint that takes too long is given up while the job runs on: its output is committed with the next one's."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.chaos.feeding import feeding
from tests.chaos.harness import Job, feed
from tests.chaos.running import audit_passes, check_all, frozen, running, signal_worker
from tests.marks import campaign

NewJob = Callable[..., Job]


@pytest.mark.parametrize("audited", [False, campaign(True)])
def test_its_output_is_committed_once_and_the_audit_knows_by_whom(new_job: NewJob, audited: bool) -> None:
    job = new_job(
        600,
        KAFKA_EOS_PARALLELISM=2,
        KAFKA_EOS_CHECKPOINT_TIMEOUT="1s",
        KAFKA_EOS_TOLERATED_CHECKPOINT_FAILURES=1000,
        TEST_PAUSE=0.002,
    )
    with running(job, "sink.prepare.after=stop@3") as run:
        workers = run.until(lambda: run.last("running").get("workers"), "run")
        with feeding(job):
            (asleep,) = run.until(lambda: [pid for pid in workers if frozen(pid)], "freeze a worker")
        run.until(lambda: run.count("aborted"), "give up a checkpoint")
        signal_worker(asleep, signal.SIGCONT)
        feed(job.bootstrap, job.input, range(600, 900))
        run.until_all_committed()
        run.drain()
        assert not run.count("restarting"), "the job should have run on"
        assert _went_into_a_later_one(run.events("aborted"), run.events("committed"))
    check_all(job)
    if audited:
        audit_passes(job)


def _went_into_a_later_one(given_up: list[dict[str, int]], committed: list[dict[str, int]]) -> bool:
    return all(any(c["epoch"] > g["epoch"] and c["term"] == g["term"] for c in committed) for g in given_up)
