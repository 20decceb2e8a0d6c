"""A restore that takes longer than ``worker_timeout``: one that goes on is waited for, one that stands still is not.

Real processes, no broker. The stored files come back in pieces, with a pause before each.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import APPS, KEPT, Job
from tests.chaos.running import Running, running, signal_worker
from tests.marks import campaign

NOWHERE = "127.0.0.1:1"
TIMEOUT = 3.0
SOME, ALL = 4000, 6000
"""Numbers before and after the restart."""
KEYS = 4000
"""As many as in the app."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    environment = {"COLUMNS": "5000", "KAFKA_EOS_PARALLELISM": "2", "TEST_COUNT": str(SOME)}
    return Job("restored", NOWHERE, "", "", tmp_path, APPS / "restored.py", environment)


def _slow_from_now_on(job: Job, pause: float = 0.4, **environment: Any) -> None:
    environment |= {"KAFKA_EOS_WORKER_TIMEOUT": TIMEOUT, "TEST_COUNT": ALL, "TEST_FETCH_PAUSE": pause}
    job.environment |= {name: str(value) for name, value in environment.items()}


def _restoring(run: Running, least: int = 0) -> list[dict[str, Any]]:
    """The workers that restore, as status.json shows them, once one has more than so many bytes."""
    workers: list[dict[str, Any]] = run.last("restoring").get("workers", [])
    return workers if any(worker["bytes"] > least for worker in workers) else []


def _check(job: Job) -> None:
    """Every number made one row, with the sum of its key up to it."""
    sums: Counter[int] = Counter()
    wanted = []
    for number in range(ALL):
        sums[number % KEYS] += number
        wanted.append((number % KEYS, sums[number % KEYS]))
    lines = [line for part in job.files.glob("part-*") for line in part.read_bytes().splitlines()]
    assert sorted((row["key"], row["sum"]) for row in map(json.loads, lines)) == sorted(wanted)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "change",
    [
        {},
        campaign({"KAFKA_EOS_PARALLELISM": 1, "pause": 0.2}),
        campaign({"KAFKA_EOS_PARALLELISM": 3, "TEST_BACKEND": "memory"}),
    ],
)
def test_a_long_restore_is_waited_for_and_shown(job: Job, change: dict[str, Any]) -> None:
    job.run()
    _slow_from_now_on(job, **change)
    began = time.monotonic()
    with running(job, "", "--until-caught-up") as run:
        shown = run.until(lambda: _restoring(run, 10_000), "show how far it is")
        run.until(lambda: run.last("running"), "come up")
        took = time.monotonic() - began
        assert run.ended() == 0, run.log

    assert took > 3 * TIMEOUT, "the restore was not long, so it proves nothing"
    assert not run.events("restarting")
    assert shown[0]["operator"] == "sum"
    assert shown[0]["bytes"] < shown[0]["of_bytes"]
    assert "restores 'sum': " in run.log
    _check(job)


@pytest.mark.campaign
def test_a_worker_that_is_frozen_in_its_restore_is_replaced(job: Job) -> None:
    job.run()
    _slow_from_now_on(job)
    with running(job, "", "--until-caught-up") as run:
        frozen = int(run.until(lambda: _restoring(run, 5_000), "restore")[0]["process"])
        signal_worker(frozen, signal.SIGSTOP)
        run.until(lambda: run.events("restarting"), "notice it")
        workers = run.until(lambda: run.last("running").get("workers"), "come up")
        assert run.ended() == 0, run.log

    (restarting,) = run.events("restarting")
    assert "worker_timeout" in restarting["reason"]
    assert f"process {frozen}" in restarting["reason"]
    assert frozen not in workers
    _check(job)


@pytest.mark.campaign
def test_a_worker_that_restores_lets_go_when_another_one_dies(job: Job) -> None:
    """It keeps its interpreter: nobody has to wait for the end of a restore that is in vain, nor to kill it."""
    job.run()
    _slow_from_now_on(job, pause=0.2)
    with running(job, "", "--until-caught-up") as run:
        both = run.until(lambda: len(now := _restoring(run, 2_000)) == 2 and now, "restore")
        killed, kept = (int(worker["process"]) for worker in both)
        signal_worker(killed, signal.SIGKILL)
        workers = run.until(lambda: run.last("running").get("workers"), "come up")
        assert run.ended() == 0, run.log

    assert len(run.events("restarting")) == 1
    assert kept in workers
    _check(job)


def test_no_worker_begins_before_all_are_ready(job: Job) -> None:
    """What it wrote could not be committed, and its transaction would grow old over the restore of another."""
    with running(job, "recovery.restored=stop", "--until-caught-up") as run:
        run.until(lambda: run.last("restoring").get("ready") == 1, "be ready, all but one")
        time.sleep(1.0)

        assert run.last("progress")["records_in"] == 0
        assert [path.name for path in job.files.iterdir() if not path.name.startswith(KEPT)] == []
