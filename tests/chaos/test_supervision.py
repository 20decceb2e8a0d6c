"""Two supervisors, supervisors and workers that were paused and come back, and a clean stop under load."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from kafka_eos.storage import object_names as paths
from tests.chaos.feeding import feeding
from tests.chaos.harness import Job, check, open_transactions, read
from tests.chaos.running import check_all, frozen, has_output, manifests, outputs, refused, running, standing
from tests.marks import campaign
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]


def test_a_second_supervisor_is_refused(new_job: NewJob) -> None:
    job = new_job(300)
    with running(job) as first:
        first.until_output()

        said = refused(job, 2)

        assert "JobLocked" in said
        assert f"process {first.pid} " in said
        first.until_all_committed()
        first.drain()
    check_all(job)


@pytest.mark.parametrize(
    "point",
    [
        "commit.before",
        *(campaign(p) for p in ("manifest.synced", "coordinator.acked", "receipt.before")),
    ],
)
def test_a_paused_supervisor_that_wakes_up_is_fenced(new_job: NewJob, point: str) -> None:
    """Its lock file is gone, as on a file system without locks: only terms stand between the two."""
    job = new_job(600)
    # A zombie that has not begun yet would go on to an epoch of its own; one that has committed has nothing under way.
    under_way = (lambda: has_output(job)) if point == "receipt.before" else (lambda: open_transactions(job))
    with standing(job, point, under_way) as zombie:
        (job.checkpoints / job.name / paths.LOCK).unlink()
        job.run()
        check_all(job)
        before, visible = outputs(job), len(read(job.bootstrap, job.output))

        zombie.send(signal.SIGCONT)

        assert zombie.ended() == 1
        assert "Fenced" in zombie.log
    check(job)
    assert (outputs(job), len(read(job.bootstrap, job.output))) == (before, visible)
    job.run()
    check_all(job)


@pytest.mark.campaign
def test_a_worker_that_sends_no_heartbeat_is_replaced(new_job: NewJob) -> None:
    """What it had prepared is aborted, and another process takes its place."""
    job = new_job(600, KAFKA_EOS_CHECKPOINT_TIMEOUT="3s", KAFKA_EOS_TOLERATED_CHECKPOINT_FAILURES=20)
    with running(job, "sink.prepare.after=stop@5") as run:
        worker = run.worker
        with feeding(job):
            run.until(lambda: job.fired and frozen(worker), "stop the worker")
        run.until(lambda: any("no heartbeats" in e["reason"] for e in run.events("restarting")), "give it up")

        run.until_all_committed()
        run.drain()
        assert run.worker != worker
    check_all(job)


@pytest.mark.campaign
def test_a_stop_before_all_workers_are_ready_leaves_nothing_open(new_job: NewJob) -> None:
    """One worker restores for a long time, and the others wait for it."""
    job = new_job(600, KAFKA_EOS_PARALLELISM=3)
    with running(job, "recovery.restored=stop") as run:
        run.until(lambda: run.last("restoring").get("ready") == 2, "be ready, all but one")
        run.drain()
    assert (manifests(job)[-1].epoch, open_transactions(job)) == (0, [])
    job.run()
    check_all(job)


@pytest.mark.campaign
def test_a_stop_without_a_last_checkpoint_leaves_nothing_open(new_job: NewJob) -> None:
    job = new_job(900, TEST_PAUSE=0.002, KAFKA_EOS_CHECKPOINT_INTERVAL="3s")
    with running(job) as run, feeding(job):
        run.until_output()
        run.until(lambda: open_transactions(job), "begin the next epoch")
        stop = [sys.executable, "-m", "kafka_eos", "stop", str(job.app), "--now"]
        subprocess.run(stop, env=job.environ(), check=True, capture_output=True, timeout=PATIENCE)
        assert run.ended() == 3
    assert open_transactions(job) == []
    job.run()
    check_all(job)


@pytest.mark.campaign
def test_sigterm_drains(new_job: NewJob) -> None:
    job = new_job(6000, TEST_PAUSE=0.02)  # two minutes of work, however fast the machine is
    with running(job) as run:
        run.until_output()
        run.drain()

    read_up_to = manifests(job)[-1].sources["payments"]
    everything = read(job.bootstrap, job.input)
    taken = [m for m in everything if m.offset() < int(str(read_up_to[f"{job.input}/{m.partition()}"]["offset"]))]
    assert 0 < len(taken) < len(everything), "the stop was not under load, so it proves nothing"
    check(job, taken)
    assert open_transactions(job) == []
    job.environment["TEST_PAUSE"] = "0"
    job.run()
    check_all(job)
