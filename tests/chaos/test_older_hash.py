"""A job from before the hash of key groups: in place it goes on by its old one, and a rescale or a savepoint ends that.

Under the old one all twenty accounts are on one of two workers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos.state.keygroups import OLDEST, PRESENT
from tests.aged import age, hashes
from tests.chaos.feeding import feeding
from tests.chaos.harness import Job, feed
from tests.chaos.offline import check_checkpoints
from tests.chaos.running import check_all, manifests, running, storage
from tests.chaos.test_savepoints import second_life, trigger

NewJob = Callable[..., Job]

PAYMENTS = 300


def older(new_job: NewJob, scratch: Path, **environment: object) -> Job:
    """A job of two workers that was killed with rows under way, with its newest checkpoint as it was stored then."""
    job = new_job(
        PAYMENTS,
        KAFKA_EOS_PARALLELISM=2,
        KAFKA_EOS_CHECKPOINT_MODE="unaligned",
        TEST_PAUSE_AFTER=0.003,
        **environment,
    )
    with running(job) as run, feeding(job):
        run.until(lambda: manifests(job), "begin")
        run.freeze_when(lambda: manifests(job)[-1].in_flight, "store rows under way")
    aged = age(storage(job), job.name, scratch)
    assert aged.in_flight and hashes(aged) == {OLDEST}
    job.environment["TEST_PAUSE_AFTER"] = "0"
    return job


def go_on(job: Job, workers: int, scratch: Path, failpoints: str = "") -> set[str]:
    """Run to the end of the input with so many workers; the hashes of the last checkpoint."""
    job.environment["KAFKA_EOS_PARALLELISM"] = str(workers)
    (job.directory / "failpoints.log").unlink(missing_ok=True)  # the script begins anew
    before = manifests(job)[-1].epoch
    feed(job.bootstrap, job.input, range(10_000 * before, 10_000 * before + 100))
    job.run(failpoints)
    (*_, last) = check_checkpoints(job, scratch)
    assert last.epoch > before and last.parallelism == workers
    return hashes(last)


@pytest.mark.campaign
@pytest.mark.chaos
def test_output_is_exact_in_place_and_regrouped(new_job: NewJob, tmp_path: Path) -> None:
    job = older(new_job, tmp_path)

    assert go_on(job, 2, tmp_path, "recovery.restored=kill") == {OLDEST}
    assert go_on(job, 3, tmp_path) == {PRESENT}

    check_all(job)


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize("scenario", ["in place, then rescaled", "rescaled at once"])
def test_output_is_exact_whoever_dies_in_place_and_regrouped(new_job: NewJob, tmp_path: Path, scenario: str) -> None:
    """With kills in the first restore by either hash, and after it."""
    job = older(new_job, tmp_path)
    kills = "recovery.restored=kill; commit.before=kill@2"

    if scenario == "in place, then rescaled":
        assert go_on(job, 2, tmp_path, kills) == {OLDEST}
        check_all(job)
        assert go_on(job, 2, tmp_path) == {OLDEST}
    assert go_on(job, 3, tmp_path, kills) == {PRESENT}
    check_all(job)
    assert go_on(job, 2, tmp_path) == {PRESENT}

    check_all(job)


@pytest.mark.campaign
@pytest.mark.chaos
def test_output_is_exact_from_a_savepoint(new_job: NewJob, tmp_path: Path) -> None:
    """At the same number of workers: what begins is regrouped, and the old life was not."""
    job = older(new_job, tmp_path)
    assert go_on(job, 2, tmp_path) == {OLDEST}
    savepoint = trigger(job, job.directory / "savepoint")
    shutil.rmtree(job.checkpoints)
    life = second_life(job, savepoint)

    assert _grown(life) == {PRESENT}

    check_all(life)


@pytest.mark.campaign
@pytest.mark.chaos
def test_local_state_keeps_its_worker(new_job: NewJob, tmp_path: Path) -> None:
    """Behind ``key_by(local=True)`` a key is where its records are read, by whatever hash it is stored."""
    job = new_job(PAYMENTS, KAFKA_EOS_PARALLELISM=3, TEST_LOCAL=1)
    job.run()
    assert hashes(age(storage(job), job.name, tmp_path)) == {OLDEST}

    assert go_on(job, 3, tmp_path) == {OLDEST}
    job.environment["TEST_BACKEND"] = "memory"
    assert go_on(job, 3, tmp_path) == {PRESENT}

    check_all(job)


def _grown(job: Job) -> set[str]:
    feed(job.bootstrap, job.input, range(900_000, 900_100))
    job.run()
    return hashes(manifests(job)[-1])
