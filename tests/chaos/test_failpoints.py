"""Kill the job at every named step, and again while it recovers; then look at every output.

Each test runs real processes against the real broker. Points of recovery need a first death that makes a
recovery, so their plan begins with one: after the decision and before the first commit.
"""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from kafka_eos._util.failpoints import POINTS
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


ELSEWHERE = {
    "savepoint": "test_savepoints.py",
    "micro-batch": "tests/structured_streaming",
    "timers": "test_timers.py",
    "bootstrap": "test_backfill.py",
    "async-map": "test_service_requests.py",
    "lake": "test_lake.py",
    "outbox": "test_http.py",
    "scratch": "test_local_aggregation.py",
    "in-flight": "test_parallel.py and test_loops.py",
    "packing": "tests/contract/test_storage.py and tests/audit/test_packs.py",
}
"""Families of points that are not on the way of this job, and where they are hit."""
FAMILIES = {
    "worker": ("source", "snapshot", "sink", "align", "worker"),
    "decision": ("coordinator", "manifest", "commit"),
    "end-of-an-epoch": ("receipt", "retention"),
    "recovery": ("recovery",),
}
"""Where one job dies again and again."""


def family(point: str) -> str:
    return point.split(".")[0]


def points(*families: str) -> list[str]:
    """A single worker has no barriers to align: that is in test_parallel.py."""
    return [point for point in POINTS if family(point) in families and point != "align.barrier"]


def plans() -> list[tuple[str, str]]:
    """(test id, value of KAFKA_EOS_FAILPOINTS) for each point × {killed, killed again}."""
    out = {}
    for point in points(*SECOND_DEATH):
        out[f"{point}-killed"] = f"{point}=kill@2"
        out[f"{point}-killed-again"] = f"{point}=kill@2;{second_death(point)}=kill"
    for point in points("recovery"):
        # Once finished, an epoch is not finished again: to get there twice takes another decided one.
        between = "commit.before=kill;" if point == "recovery.committed" else ""
        out[f"{point}-killed"] = f"{DECIDED};{point}=kill"
        out[f"{point}-killed-again"] = f"{DECIDED};{point}=kill;{between}{point}=kill"
    return list(out.items())


def script(families: tuple[str, ...]) -> str:
    """Every point of these families, one after the other."""
    if families == ("recovery",):
        return ";".join([DECIDED, *(f"{point}=kill" for point in points(*families))])
    return ";".join(f"{point}=kill@2" for point in points(*families))


def second_death(point: str) -> str:
    """Where the successor of a job that died at ``point`` dies."""
    before_the_decision = point in ("manifest.staged", "manifest.synced")
    return "recovery.aborted" if before_the_decision else SECOND_DEATH[family(point)]


@pytest.fixture
def job(bootstrap: str, tmp_path: Path) -> Job:
    name = f"chaos-{uuid4().hex[:10]}"
    job = Job(name, bootstrap, f"{name}-in", f"{name}-out", tmp_path)
    create_topic(bootstrap, job.input, 3)
    create_topic(bootstrap, job.output, 3)
    feed(bootstrap, job.input, RECORDS)
    return job


def test_every_point_is_hit_somewhere() -> None:
    hit = [each for families in FAMILIES.values() for each in families]

    assert sorted([*hit, *ELSEWHERE]) == sorted(set(map(family, POINTS)))
    assert sorted([*SECOND_DEATH, "recovery"]) == sorted(hit)


@pytest.mark.chaos
@pytest.mark.limits("tiny")
@pytest.mark.parametrize("families", FAMILIES.values(), ids=FAMILIES)
def test_a_job_that_dies_at_every_step_loses_and_doubles_nothing(job: Job, families: tuple[str, ...]) -> None:
    job.run(script(families))

    unchanged_by_a_recovery(job)
    assert "sink" not in families or aborted(job) > 0, "nobody was killed with output in the topic"


@pytest.mark.chaos
@pytest.mark.parametrize("failpoints", [campaign(plan, named=name) for name, plan in plans()])
def test_nothing_is_lost_or_doubled(job: Job, failpoints: str) -> None:
    job.run(failpoints)

    unchanged_by_a_recovery(job)


def unchanged_by_a_recovery(job: Job) -> None:
    check(job)
    before = outputs(job)
    job.run()  # one recovery more, which must change nothing
    check(job)
    assert outputs(job) == before
