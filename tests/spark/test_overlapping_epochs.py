"""Overlapped epochs: one runs while the one before it is committed, whatever ends then."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kafka_eos.coordination.job_history import read_events
from kafka_eos.core.ids import AppRef
from kafka_eos.monitoring.metrics.epoch_traces import EpochTrace, EpochTracer
from kafka_eos.spark import SparkEngine
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_storage import LocalStorage
from tests.spark.drivers import Run, fired
from tests.spark.kit import TOTALS, Job, feed, payment, rows, same, totals

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
NewJob = Callable[..., Job]

WATCHED = """
from kafka_eos.core.errors import RestartFromCheckpoint

def prepared(epoch):
    return Path({directory!r}) / f"prepared-{{epoch}}"

def wait_for(path):
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"{{path}}: no epoch runs while another is committed"
        time.sleep(0.01)

class Watched(KafkaSink):
    '''Leaves a file when output of an epoch is prepared; the first commit waits for that of the epoch after it.'''

    def writer(self, ctx):
        writer = super().writer(ctx)
        seal = writer.seal

        def told(epoch):
            prepare = seal(epoch)

            def preparing():
                made = prepare()
                if made:
                    prepared(epoch.epoch).touch()
                return made

            return preparing

        writer.seal = told
        return writer

    def committer(self, ctx):
        committer = super().committer(ctx)
        commit = committer.commit

        def late(permit, committable):
            if once("committing"):
                wait_for(prepared(permit.epoch.epoch.n + 1))
                once("overlapped")
                FAULT
            return commit(permit, committable)

        committer.commit = late
        return committer
"""
APP = WATCHED + TOTALS.replace("KafkaSink(", "Watched(")

ASK = """
                from kafka_eos.coordination import job_requests as requests
                home = Path({directory!r})
                stop = requests.TakeSavepoint(str(home / "taken"), stop=True)
                requests.submit(home / "checkpoints" / "{name}", stop)
"""


def check(job: Job, count: int) -> None:
    assert (job.directory / "overlapped").exists(), "no epoch ran while another was committed"
    same(rows(job.values("output")), totals(map(payment, range(count))))
    assert job.left_open() == []


def history(job: Job, kind: str) -> list[Any]:
    return [event for event in read_events(LocalStorage(job.checkpoints / job.name)) if event["event"] == kind]


def aborted(job: Job) -> str:
    return str([event["names"] for event in history(job, "leftovers-aborted")])


def test_an_epoch_runs_while_the_one_before_it_is_committed(new_job: NewJob, spark: Any) -> None:
    """The commit of the first waits for output of the second: one after the other they would never end."""
    job = new_job(APP.replace("FAULT", "pass"), input=3, output=2)
    feed(job, "input", map(payment, range(200)))

    traces: list[EpochTrace] = []
    job.watched_by = EpochTracer(traces.append, time.time)

    job.on_spark(spark, max_records_per_epoch=50)

    decided, committed = ([event["epoch"] for event in history(job, kind)] for kind in ("decided", "committed"))
    assert len(decided) > 2 and committed == [0, *decided]
    assert job.count("restarting") == 0
    assert aborted(job) == "[]", "an epoch that ran was taken for what is left open"
    check(job, 200)
    assert [trace.epoch for trace in traces] == decided
    for trace in traces:
        parts = {part.name: part for part in trace.parts}
        assert parts.keys() >= {"trigger", "open", "work", "upload", "prepare", "decide", "commit"}
        assert trace.began == parts["trigger"].began <= parts["prepare"].ended <= parts["decide"].ended <= trace.ended
    first, second = traces[:2]
    assert second.began < first.ended, "they did not run at the same time"


@pytest.mark.campaign
def test_a_commit_that_fails_ends_the_epoch_that_runs(new_job: NewJob, spark: Any) -> None:
    job = new_job(APP.replace("FAULT", "raise RestartFromCheckpoint('not now')"), input=3, output=2)
    feed(job, "input", map(payment, range(200)))

    job.on_spark(spark, max_records_per_epoch=50)

    assert job.count("restarting") == 1
    assert "Ongoing" in aborted(job)
    check(job, 200)


@pytest.mark.campaign
def test_old_epochs_go_while_there_is_always_more_to_read(new_job: NewJob, spark: Any) -> None:
    job = new_job(APP.replace("FAULT", "pass"), input=2, output=1)
    feed(job, "input", map(payment, range(400)))
    stored: list[int] = []

    def count(event: str, facts: Mapping[str, object]) -> None:
        if event == "decided":
            stored.append(len(LocalStorage(job.checkpoints / job.name).list(paths.MANIFESTS)))

    settings = job.settings(max_records_per_epoch=20, retained_checkpoints=1)
    SparkEngine(spark).run(job.plan(), AppRef(job.app), settings, observers=(count,), until_caught_up=True)

    assert len(stored) > 16 and 2 < max(stored) <= 10, stored
    check(job, 400)


def test_a_stop_between_two_epochs_finishes_both(new_job: NewJob, spark: Any) -> None:
    """It is asked for while one runs and one is committed: the savepoint is of the last, and nothing comes after it."""
    job = new_job(APP.replace("FAULT", ASK), input=2, output=1)
    feed(job, "input", map(payment, range(400)))

    job.on_spark(spark, max_records_per_epoch=20)

    decided, committed = ([event["epoch"] for event in history(job, kind)] for kind in ("decided", "committed"))
    assert 2 <= len(decided) < 15 and committed == [0, *decided]
    taken = savepoints.read_savepoint(job.directory / "taken")
    assert (taken.epoch, savepoints.find_damage(job.directory / "taken")) == (decided[-1], [])
    job.on_spark(spark)
    check(job, 400)


@pytest.mark.campaign
def test_a_driver_that_is_killed_while_it_commits_and_runs_and_again_while_it_recovers(new_job: NewJob) -> None:
    job = new_job(APP.replace("FAULT", "os.kill(os.getpid(), signal.SIGKILL)"), input=3, output=2)
    feed(job, "input", map(payment, range(200)))
    script, environ = "recovery.probed=kill;recovery.committed=kill", {"KAFKA_EOS_MAX_RECORDS_PER_EPOCH": "50"}

    codes = [Run(job, "local[2,3]", "--until-caught-up", failpoints=script, **environ).ended() for _ in range(4)]

    assert codes == [-signal.SIGKILL] * 3 + [0]
    assert fired(job) == ["recovery.probed", "recovery.committed"]
    assert "Ongoing" in aborted(job)
    check(job, 200)
