"""Durable objects that were altered, cut off, exchanged or removed while the job was not running.

Rule: the job refuses to start and names the object, or starts exactly where it must. It never starts elsewhere.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafka_eos.cli import app
from kafka_eos.storage import object_names as paths
from tests.chaos.harness import Job, feed, open_transactions
from tests.chaos.running import (
    check_all,
    events,
    has_output,
    make_job,
    manifests,
    refused,
    running,
    standing,
    storage,
)
from tests.marks import campaign

NewJob = Callable[..., Job]
pytestmark = pytest.mark.xdist_group("damage")


def _flip(target: Path, _: Path) -> None:
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    _replace(target, bytes(data))


def _truncate(target: Path, _: Path) -> None:
    _replace(target, target.read_bytes()[:-1])


def _swap(target: Path, other: Path) -> None:
    _replace(target, other.read_bytes())


def _remove(target: Path, _: Path) -> None:
    target.unlink()


def _replace(target: Path, data: bytes) -> None:
    """Under a new inode: stored files may be linked elsewhere."""
    target.unlink()
    target.write_bytes(data)


DAMAGES = {"flipped": _flip, "truncated": _truncate, "swapped": _swap, "removed": _remove}


@pytest.fixture(scope="module")
def finished(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job that ran twice and ended cleanly each time; its last two epochs are stored."""
    job = make_job(bootstrap, tmp_path_factory.mktemp("damage"), 300, "totals.py")
    job.run()
    feed(bootstrap, job.input, range(300, 600))
    job.run()
    return job


@pytest.fixture
def stopped(finished: Job) -> Iterator[Job]:
    """The finished job; what a test does to its directory is undone."""
    directory, copy = finished.checkpoints / finished.name, finished.directory / "copy"
    shutil.copytree(directory, copy)
    yield finished
    shutil.rmtree(directory)
    copy.rename(directory)


def _victims(job: Job) -> dict[str, tuple[str, str]]:
    """By kind: the newest object that a start needs, and another of its kind (or, for want of one, of another)."""
    stored = storage(job)
    older, newest = manifests(job)[-2:]
    base = stored.list(paths.TERMS)[-2:]
    assert base[-1].endswith(".claim.json"), "the last term has a base and a claim"
    mine, *others = sorted(newest.files)
    return {
        "manifest": (newest.name, older.name),
        "base": (base[0], base[1]),
        "shared": (f"{paths.SHARED}/{mine}", f"{paths.SHARED}/{others[0]}"),
    }


def _verify(job: Job) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["checkpoints", "verify", job.name, "--checkpoint-dir", str(job.checkpoints)])
    return answer.exit_code, f"{answer.output} {answer.exception or ''}"


def test_nothing_is_wrong_with_a_job_that_ended_cleanly(stopped: Job) -> None:
    assert _verify(stopped)[0] == 0
    check_all(stopped)


def damaged() -> Iterator[Any]:
    """Every kind of object with every damage; each of either once by default."""
    usual = {("manifest", "flipped"), ("manifest", "removed"), ("base", "swapped"), ("shared", "truncated")}
    for kind in ("manifest", "base", "shared"):
        for damage in DAMAGES:
            yield (kind, damage) if (kind, damage) in usual else campaign(kind, damage)


@pytest.mark.parametrize(("kind", "damage"), damaged())
def test_a_damaged_object_is_named_and_nothing_starts(stopped: Job, kind: str, damage: str) -> None:
    name, other = _victims(stopped)[kind]
    root = stopped.checkpoints / stopped.name
    before = len(events(stopped))
    DAMAGES[damage](root / name, root / other)

    code, verified = _verify(stopped)
    said = refused(stopped, 1)

    assert code == 1
    assert name in verified
    assert "CorruptCheckpoint" in said
    assert name in said
    done = [event["event"] for event in events(stopped)[before:]]
    assert [event for event in done if event not in ("leftovers-aborted", "recovered")] == ["started", "failed"]


@pytest.mark.campaign
def test_a_damaged_receipt_costs_nothing(new_job: NewJob) -> None:
    """Whether everything is committed is asked again, and the answer is the same."""
    job = new_job(200)
    job.run()
    for damage in (_flip, _remove):
        receipt = paths.receipt_name(manifests(job)[-1].id)
        damage(storage(job).root / receipt, Path())
        assert damage is _remove or receipt in _verify(job)[1]
        job.run()
        check_all(job)


@pytest.mark.parametrize("damage", [_truncate, campaign(_remove)])
def test_an_uncommitted_epoch_with_incomplete_state_is_revoked(
    new_job: NewJob, damage: Callable[[Path, Path], None]
) -> None:
    """Nothing of it can have been seen, so the epoch before it is the right place to go on from."""
    job = new_job(600, TEST_PAUSE=0.001)
    with standing(job, "commit.before", lambda: has_output(job) and _own_files(job)):
        pass  # and it is killed there
    decided = manifests(job)[-1]
    damage(storage(job).root / paths.shared_name(_own_files(job)[0]), Path())

    job.run()

    revoked = [event for event in events(job) if event["event"] == "revoked"]
    assert [(event["epoch"], event["term"]) for event in revoked] == [(decided.epoch, decided.term)]
    check_all(job)


@pytest.mark.campaign
def test_a_decided_epoch_is_committed_before_its_state_is_read(new_job: NewJob) -> None:
    """Damage that only the checksum shows is found afterwards: what is decided is done, and the file is named."""
    job = new_job(600, TEST_PAUSE=0.001)
    with standing(job, "commit.before", lambda: has_output(job) and _own_files(job)):
        pass  # and it is killed there
    decided = manifests(job)[-1]
    victim = storage(job).root / paths.shared_name(_own_files(job)[0])
    whole = victim.read_bytes()
    _flip(victim, Path())

    said = refused(job, 1)

    assert "CorruptCheckpoint" in said
    assert victim.name in said
    assert paths.receipt_name(decided.id) in storage(job).list(paths.RECEIPTS)
    assert open_transactions(job) == []
    _replace(victim, whole)
    job.run()
    check_all(job)


@pytest.mark.campaign
def test_a_revoked_epoch_cannot_be_committed_by_who_was_allowed_to(new_job: NewJob) -> None:
    """A supervisor sleeps between its permit and its first commit, and wakes up while its epoch is being revoked."""
    job = new_job(600, TEST_PAUSE=0.001)
    # An epoch without output has nothing to revoke.
    with standing(job, "commit.before", lambda: has_output(job) and _own_files(job)) as zombie:
        (job.checkpoints / job.name / paths.LOCK).unlink()
        _truncate(storage(job).root / paths.shared_name(_own_files(job)[0]), Path())
        fired = job.fired
        script = ";".join(f"{point}=stop" for point in (*fired, "recovery.based"))
        with running(job, script, "--until-caught-up") as successor:
            successor.until_stopped(len(fired) + 1)

            zombie.send(signal.SIGCONT)

            assert zombie.ended() == 1
            assert "Fenced" in zombie.log
            successor.send(signal.SIGCONT)
            assert successor.ended() == 0, successor.log
    check_all(job)


def _own_files(job: Job) -> list[str]:
    """Tables of the newest epoch that the one before it does not need. Other files come again with the same content."""
    previous, newest = manifests(job)[-2:]
    tables = {
        file.object.sha256
        for state in newest.states
        for file in state.files
        if file.name.endswith(paths.IMMUTABLE_SUFFIX)
    }
    return sorted(tables - previous.files)
