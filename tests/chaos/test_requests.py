"""What is asked of a job under back-pressure, or while something fails, is answered with the truth and does no harm.

No broker: rows come from a list and go into files. Unless a test says otherwise each worker soon has seconds of rows
under way, a barrier that waits for them gets one second, and the job bears one failed checkpoint.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_requests import RequestUnanswered, StopJob
from kafka_eos.storage import savepoint_files as savepoints
from tests.chaos.harness import APPS, KEPT, Job
from tests.chaos.running import Running, manifests, running
from tests.chaos.test_savepoints import kafka_eos

NewJob = Callable[..., Job]
KEYS, SPLITS = 40, 4
BACKLOG = 30_000
"""Bytes of rows under way that take both workers clearly longer than checkpoint_timeout."""
IN_TIME = {"TEST_PAUSE": "0", "TEST_TIMEOUT": "60", "TEST_INTERVAL": "600"}
"""No barrier is late, and the only checkpoint that the job takes by itself is its last one."""


@pytest.fixture
def new_job(tmp_path: Path) -> NewJob:
    def made(**environment: str) -> Job:
        shown = {"COLUMNS": "5000", **environment}
        return Job(f"backlog-{uuid4().hex[:8]}", "127.0.0.1:1", "", "", tmp_path, APPS / "backlog.py", shown)

    return made


def until_backlogged(run: Running) -> None:
    run.until(lambda: run.last("decided").get("in_flight_bytes", 0) > BACKLOG, "fall behind")


def until_reading(run: Running) -> None:
    run.until(lambda: run.last("running") and run.last("progress").get("records_out"), "process rows")


def check(job: Job) -> None:
    """What the newest checkpoint says was read is in the files: each row once, and counted in its key."""
    newest = manifests(job)[-1]
    assert newest.in_flight == ()
    ends: dict[str, Any] = {str(split): at["index"] for split, at in newest.sources["rows"].items()}
    read = [n for split in range(SPLITS) for n in range(split, SPLITS * ends[f"list/{split}"], SPLITS)]
    rows = [json.loads(line) for part in job.files.glob("part-*") for line in part.read_bytes().splitlines()]
    counts = Counter(n % KEYS for n in read)
    assert Counter(row["id"] for row in rows) == Counter(read)
    assert sorted((r["id"] % KEYS, r["seen"]) for r in rows) == sorted(
        (key, seen) for key, most in counts.items() for seen in range(1, most + 1)
    )
    assert [p.name for p in job.files.glob(".*") if not p.name.startswith(KEPT)] == [], "staged files left"


@pytest.mark.campaign
def test_a_savepoint_that_is_late_is_refused_and_a_last_checkpoint_that_is_late_is_taken_again(
    new_job: NewJob,
) -> None:
    job = new_job()
    with running(job) as run:
        until_backlogged(run)
        code, _, said = kafka_eos(job, "savepoint", "trigger", str(job.app), "--path", str(job.directory / "one"))
        assert code == 2, said
        assert "was not acknowledged in time (checkpoint_timeout)" in said and "the job continues" in said
        run.until_committed(2)
        before = run.count("aborted")
        assert (before > 0, run.count("restarting")) == (True, 0)

        until_backlogged(run)
        target = job.directory / "two"
        code, out, said = kafka_eos(job, "stop", str(job.app), "--savepoint", "--path", str(target))
        assert (code, out.strip(), run.ended()) == (0, str(target), 0), said
        assert run.count("aborted") > before + 1, "the last checkpoint was soon in time, so this proves nothing"
        assert run.count("restarting") == 0
    assert (savepoints.read_savepoint(target).epoch, savepoints.find_damage(target)) == (manifests(job)[-1].epoch, [])
    assert not (job.directory / "one").exists()
    check(job)


@pytest.mark.campaign
def test_a_stop_that_takes_its_time_can_still_be_cut_short(new_job: NewJob) -> None:
    job = new_job()
    home = job.checkpoints / job.name
    with running(job) as run:
        until_backlogged(run)
        stop = requests.submit(home, StopJob())
        run.until(lambda: run.count("aborted"), "give up its last checkpoint")
        assert requests.wait(home, requests.submit(home, StopJob(drain=False)), 30).epoch is None
        assert run.ended() == 3
        with pytest.raises(RequestUnanswered, match="ended or was restarted"):
            requests.wait(home, stop, 30)
        assert run.count("restarting") == 0


def test_a_savepoint_whose_checkpoint_is_declined_is_refused_and_the_job_goes_on(new_job: NewJob) -> None:
    job = new_job(**IN_TIME)
    trigger = ("savepoint", "trigger", str(job.app), "--path", str(job.directory / "one"))
    with running(job, "snapshot.upload=enospc") as run:
        until_reading(run)
        code, _, said = kafka_eos(job, *trigger)
        assert code == 2 and "declined" in said and "the job continues" in said, said
        assert kafka_eos(job, *trigger)[0] == 0
        run.drain()
        assert (run.count("aborted"), run.count("restarting")) == (1, 0)
    assert savepoints.find_damage(job.directory / "one") == []
    check(job)


@pytest.mark.campaign
@pytest.mark.parametrize("fault", ["source.capture.before=kill", "manifest.staged=error@2", "snapshot.upload=enospc"])
def test_a_stop_whose_last_checkpoint_fails_takes_another_one(new_job: NewJob, fault: str) -> None:
    job = new_job(**IN_TIME)
    with running(job, fault) as run:
        until_reading(run)
        run.drain()
        assert job.fired == [fault.partition("=")[0]]
        assert run.events("committed")[-1]["epoch"] > 0
    check(job)


def test_a_stop_that_could_not_take_its_last_checkpoint_says_so(new_job: NewJob) -> None:
    """A worker dies over it, and one that is to begin again stands still until stop_timeout."""
    job = new_job(**IN_TIME, KAFKA_EOS_STOP_TIMEOUT="3s")
    with running(job, "source.capture.before=kill;recovery.restored=stop") as run:
        until_reading(run)
        run.send(signal.SIGTERM)
        assert run.ended() == 3, run.log
        assert len(job.fired) == 2
        assert "stopped before the last checkpoint was committed" in run.log
    assert manifests(job)[-1].epoch == 0
