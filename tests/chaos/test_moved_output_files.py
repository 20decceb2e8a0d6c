"""A reader takes files away as soon as they are there, and the job dies before it has written that they are committed.

What is gone looks the same whether it was never there or was taken: only a trace tells. Real processes, no broker.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.harness import APPS, Job
from tests.chaos.running import events, manifests, refused, running
from tests.marks import campaign

NOWHERE = "127.0.0.1:1"
COUNT = 3000


def _moved(part: Path, target: Path) -> None:
    part.rename(target)


def _copied_and_deleted(part: Path, target: Path) -> None:
    shutil.copy(part, target)
    part.unlink()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    environment = {"COLUMNS": "5000", "TEST_COUNT": str(COUNT)}
    return Job("taken", NOWHERE, "", "", tmp_path, APPS / "taken.py", environment)


def _take(job: Job, take: Callable[[Path, Path], None]) -> None:
    """What every file of ``part-*`` holds goes to the reader's own directory. A name that comes again is a mistake."""
    taken = job.directory / "taken"
    taken.mkdir(exist_ok=True)
    for part in job.files.glob("part-*"):
        assert not (taken / part.name).exists()
        take(part, taken / part.name)


def _rows(job: Job) -> list[int]:
    """What readers have got in the end: what they took, and what is still there."""
    parts = [*(job.directory / "taken").glob("part-*"), *job.files.glob("part-*")]
    return sorted(json.loads(line)["id"] for part in parts for line in part.read_bytes().splitlines())


def _killed(job: Job, failpoint: str) -> None:
    with running(job, failpoint, "--until-caught-up") as run:
        assert run.ended() == -9
    assert manifests(job)[-1].committables, "the epoch has no output, so it proves nothing"


@pytest.mark.parametrize("take", [_moved, campaign(_copied_and_deleted)])
def test_rows_that_were_taken_before_the_receipt_do_not_come_again(
    job: Job, take: Callable[[Path, Path], None]
) -> None:
    _killed(job, "receipt.before=kill@4")
    assert list(job.files.glob("part-*"))
    _take(job, take)

    job.run()

    assert [event for event in events(job) if event["event"] == "revoked"] == []
    assert _rows(job) == list(range(COUNT))


@pytest.mark.campaign
def test_without_a_trace_the_job_stops_until_a_person_says_what_became_of_the_rows(job: Job) -> None:
    """Somebody emptied the directory, hidden files too. The message names the file that says so."""
    _killed(job, "receipt.before=kill@4")
    _take(job, _moved)
    for hidden in job.files.glob(".*"):
        hidden.unlink()

    for _ in range(2):  # asking again does not change the answer
        said = refused(job, 1)
        assert "CommittableLost" in said and "unknown whether this was committed" in said
    answers = [word.strip("():;,") for word in said.split() if "/.committed." in word]
    assert len(set(answers)) == len(manifests(job)[-1].committables)
    for answer in answers:
        Path(answer).touch()
    job.run()

    assert _rows(job) == list(range(COUNT))
