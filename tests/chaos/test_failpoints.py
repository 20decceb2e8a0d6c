"""Kill the job at every named step, and again while it recovers; then look at every output.

Each test runs real processes against the real broker. Points of recovery need a first death that makes a
recovery, so their plan begins with one: after the decision and before the first commit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_eos.failpoints import POINTS
from tests.chaos.harness import Job, aborted, check, create_topic, feed
from tests.chaos.running import outputs
from tests.marks import campaign

RECORDS = range(2000)
DECIDED = "commit.before=kill@2"

# Where a second death does most harm: before the decision the epoch must vanish, after it it must be finished.
SECOND_DEATH = {
    "source": "recovery.aborted",
    "snapshot": "recovery.restored",
    "align": "recovery.opened",
    "sink": "recovery.aborted",
    "worker": "recovery.opened",
    "coordinator": "recovery.aborted",
    "manifest": "recovery.looked",
    "commit": "recovery.probed",
    "receipt": "recovery.based",
    "retention": "recovery.resolved",
}


BETWEEN_WORKERS = ("align.barrier", "in-flight.logged", "in-flight.stored", "in-flight.replayed")
"""A single worker without loops has no barriers to align, and nothing under way."""


def plans() -> list[tuple[str, str]]:
    """(test id, value of KAFKA_EOS_FAILPOINTS) for each point × {killed, killed again}."""
    out = []
    for point in POINTS:
        family = point.split(".")[0]
        if family in ("savepoint", "micro-batch"):
            continue  # not on the way of a running job; see test_savepoints.py and tests/structured_streaming
        if point in BETWEEN_WORKERS:
            continue  # see test_parallel.py and test_loops.py
        if family == "timers":
            continue  # see test_timers.py
        if family == "scratch":
            continue  # see test_local_aggregation.py
        if family == "recovery":
            out.append((f"{point}-killed", f"{DECIDED};{point}=kill"))
            # Once finished, an epoch is not finished again: to get there twice takes another decided one.
            between = "commit.before=kill;" if point == "recovery.committed" else ""
            out.append((f"{point}-killed-again", f"{DECIDED};{point}=kill;{between}{point}=kill"))
        else:
            out.append((f"{point}-killed", f"{point}=kill@2"))
            out.append((f"{point}-killed-again", f"{point}=kill@2;{second_death(point, family)}=kill"))
    return out


def second_death(point: str, family: str) -> str:
    """Where the successor of a job that died at ``point`` dies."""
    before_the_decision = point in ("manifest.staged", "manifest.synced")
    return "recovery.aborted" if before_the_decision else SECOND_DEATH[family]


@pytest.fixture
def job(request: pytest.FixtureRequest, bootstrap: str, tmp_path: Path) -> Job:
    name = f"chaos-{abs(hash(request.node.name)) % 10**10}"
    job = Job(name, bootstrap, f"{name}-in", f"{name}-out", tmp_path)
    create_topic(bootstrap, job.input, 3)
    create_topic(bootstrap, job.output, 3)
    feed(bootstrap, job.input, RECORDS)
    return job


USUAL = {
    "snapshot.linked-killed",
    "sink.prepare.after-killed",
    "manifest.published-killed-again",
    "commit.between-killed",
    "retention.between-killed",
    "recovery.claimed-killed",
    "recovery.looked-killed",
}
"""A cell of each phase; all others are left to the campaign."""


def _cells() -> list[Any]:
    cells = plans()
    assert {name for name, _ in cells} >= USUAL
    return [pytest.param(plan, id=name) if name in USUAL else campaign(plan, named=name) for name, plan in cells]


@pytest.mark.chaos
@pytest.mark.parametrize("failpoints", _cells())
def test_nothing_is_lost_or_doubled(job: Job, failpoints: str) -> None:
    job.run(failpoints)

    check(job)
    before = outputs(job)
    job.run()  # one recovery more, which must change nothing
    check(job)
    assert outputs(job) == before


@pytest.mark.chaos
def test_aborted_attempts_are_in_the_topic_and_nobody_reads_them(job: Job) -> None:
    job.run("sink.prepare.after=kill@2")

    assert aborted(job) > 0
    check(job)
