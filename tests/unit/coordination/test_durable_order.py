"""In which order a coordinator does what lasts.

Each step may be the last one of its process: the next start goes on with what was done by then, whoever else runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos.coordination import terms
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.core.errors import CommittableLost, CorruptCheckpoint
from kafka_eos.core.ids import Term
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.runtime.state import canonical_savepoint as savepoints
from kafka_eos.savepoints import SavepointBuilder, Snapshot
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from tests.unit.coordination.noted_job import JOB, NotedJob

HOLD = ["hold left", "hold right"]
SIGNS = ["signs left", "signs right"]
ABORT = ["abort left", "abort right"]
PROBE = ["probe left", "probe right"]
COMMIT = ["commit left", "commit right"]
LOOK = ["look at state"]


@pytest.fixture
def job(tmp_path: Path) -> NotedJob:
    return NotedJob(tmp_path)


def test_a_first_start_is_nobody_before_it_has_looked_for_others_twice(job: NotedJob) -> None:
    """It has no identity in its directory before epoch 0 is decided with it, and reads nothing before."""
    job.coordinator().recovery.restore()

    assert job.noted() == [
        "claim 1", "base 1", *SIGNS, *HOLD, *SIGNS, "delete origin.json",
        "manifest 0/1", "identity.json", "ledger", "receipt 0/1", *ABORT,
    ]  # fmt: skip
    assert (job.root / paths.IDENTITY).exists()


def test_a_start_that_takes_over_ends_the_other_incarnation_when_its_own_registration_is_left(job: NotedJob) -> None:
    job.begun()
    job.incarnation = "b"

    job.coordinator(take_over=True).recovery.restore()

    assert job.noted() == [
        "claim 1", "base 1", *SIGNS, *HOLD, *SIGNS, "succeed left", "succeed right", "delete origin.json",
        "manifest 0/1", "identity.json", "ledger", "receipt 0/1", *ABORT,
    ]  # fmt: skip


def test_an_epoch_is_decided_before_anything_of_it_is_committed_and_told_before_its_receipt(job: NotedJob) -> None:
    running = job.begun()

    manifest = job.decided(running, "two")
    assert job.noted() == ["manifest 2/1"]
    finished = running.epochs.commit(manifest)

    assert job.noted() == [*HOLD, *PROBE, *COMMIT, "ledger", "receipt 2/1"]
    assert finished.commits.keys() == {"memory:left", "memory:right"}
    assert job.output == (["one-0", "one-1", "two-0", "two-1"],) * 2


def test_an_epoch_without_output_asks_no_sink(job: NotedJob) -> None:
    running = job.begun()

    running.epochs.commit(running.epochs.decide(running.ownership.next_epoch(), EpochContents(job.positions, (), ())))

    assert job.noted() == ["manifest 2/1", "ledger", "receipt 2/1"]


def test_a_recovery_after_a_committed_epoch_bases_its_term_before_it_aborts(job: NotedJob) -> None:
    job.begun()

    job.coordinator().recovery.restore()

    assert job.noted() == ["claim 2", *HOLD, "base 2", *ABORT, *LOOK]


def test_a_recovery_commits_what_is_decided_before_its_term_goes_on_from_it(job: NotedJob) -> None:
    job.decided(job.begun(), "two")
    job.noted()

    job.coordinator().recovery.restore()

    assert job.noted() == [
        "claim 2", *HOLD, *LOOK, *PROBE, *COMMIT, "ledger", "receipt 2/1", "base 2", *ABORT, *LOOK,
    ]  # fmt: skip
    assert job.output == (["one-0", "one-1", "two-0", "two-1"],) * 2


def test_an_epoch_is_revoked_when_nobody_can_commit_it_any_more(job: NotedJob) -> None:
    """The way back is looked at first, every byte; then what is prepared is aborted, and found to be lost."""
    _lose_state(job, job.begun())

    resumed = job.coordinator().recovery.restore()

    assert job.noted() == [
        "claim 2", *HOLD, *LOOK, *PROBE, "read state", *ABORT, *PROBE, "base 2", *ABORT, *LOOK,
    ]  # fmt: skip
    assert str(resumed.base) == "1/1"
    assert job.output == (["one-0", "one-1"],) * 2
    assert (job.left.prepared, job.right.prepared) == ([], [])


def test_nothing_is_aborted_if_the_epoch_to_go_back_to_is_damaged(job: NotedJob) -> None:
    running = job.begun()
    lost = _lose_state(job, running)
    for path in (job.root / paths.SHARED).iterdir():
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(bytes([content[0] ^ 1, *content[1:]]))

    with pytest.raises(CorruptCheckpoint, match="damaged"):
        job.coordinator().recovery.restore()

    assert job.noted() == ["claim 2", *HOLD, *LOOK, *PROBE, "read state"]
    assert not (job.root / lost).exists()
    assert sorted(job.left.prepared) == ["two-0", "two-1"]


def _lose_state(job: NotedJob, running: Coordinator) -> str:
    """Another epoch is decided, and a file of its state is gone. Its name."""
    manifest = job.decided(running, "two")
    name = paths.shared_name(manifest.states[-1].files[0].sha256)
    (job.root / name).unlink()
    job.noted()
    return name


@pytest.mark.parametrize("sink", ["left", "right"])
def test_an_epoch_that_somebody_commits_while_it_is_revoked_is_not_revoked(
    job: NotedJob, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that was replaced has a permit for it, and is faster than the one that aborts."""
    running = job.begun()
    _lose_state(job, running)
    target = getattr(job, sink)
    abort, (name, *_) = target.abort, [*target._prepared]

    def late(*args: object) -> object:
        target.commit(name)
        return abort(*args)

    monkeypatch.setattr(target, "abort", late)
    with pytest.raises(CommittableLost, match="was committed in part while it was revoked"):
        job.coordinator().recovery.restore()

    assert "base 2" not in job.noted()


def test_a_revocation_waits_until_everything_is_aborted(job: NotedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort that is answered, and not carried out yet, is asked for again."""
    _lose_state(job, job.begun())
    abort, calls = job.right.abort, list[object]()

    def late(*args: object) -> object:
        calls.append(args)
        return [] if len(calls) < 3 else abort(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(job.right, "abort", late)
    job.coordinator().recovery.restore()

    assert job.noted() == [
        "claim 2", *HOLD, *LOOK, *PROBE, "read state", *[*ABORT, *PROBE] * 3, "base 2", *ABORT, *LOOK,
    ]  # fmt: skip
    assert len([text for text in job.said if "still prepared: " in text]) == 2


def test_who_leaves_nothing_open_commits_what_is_decided_before_it_aborts_the_rest(job: NotedJob) -> None:
    running = job.begun()
    job.decided(running, "two")
    job.prepared(running, running.ownership.next_epoch(), "three")
    job.noted()

    job.coordinator().abort_open_output()

    assert job.noted() == ["claim 2", *HOLD, *LOOK, *PROBE, *COMMIT, "ledger", "receipt 2/1", "base 2", *ABORT]
    assert job.output == (["one-0", "one-1", "two-0", "two-1"],) * 2
    assert (job.left.prepared, job.right.prepared) == ([], [])


def test_a_system_is_asked_what_it_lacks_before_a_term_leaves_its_registration(tmp_path: Path) -> None:
    job = NotedJob(tmp_path, remembers=("left", "right"))
    job.begun()

    job.coordinator().recovery.restore()

    assert job.noted() == ["claim 2", "lacks left", "lacks right", *HOLD, "base 2", *ABORT, *LOOK]


def _savepoint(job: NotedJob) -> Path:
    """Of a job that has decided two epochs, with state of two operators."""
    running = job.begun()
    manifest = running.epochs.decide(running.ownership.next_epoch(), EpochContents(job.positions, (), ()))
    running.epochs.commit(manifest)
    savepoints.begin_savepoint(LocalStorage(job.root), manifest, job.directory / "empty").write_savepoint()
    with SavepointBuilder.from_snapshot(Snapshot.open(job.directory / "empty")) as builder:
        for operator in ("total-left", "total-right"):
            builder.bootstrap_fold(operator, [("1", 1)], accumulator=int)
        builder.write(job.directory / "savepoint")
    job.noted()
    return job.directory / "savepoint"


def test_a_job_that_begins_with_a_savepoint_has_its_files_before_the_incarnation_of_that_ends(job: NotedJob) -> None:
    """Its term and its epochs are newer than those of the savepoint: what the sinks know of these must look older."""
    savepoint = _savepoint(job)
    job.incarnation = "b"

    resumed = job.coordinator(start_from=savepoint).recovery.restore()

    assert job.noted() == [
        "claim 1", "base 1", *SIGNS, "upload", "delete origin.json", "origin.json", "claim 2", "base 2",
        *SIGNS, *HOLD, *SIGNS, "succeed left", "succeed right",
        "manifest 3/2", "identity.json", "ledger", "receipt 3/2", *ABORT, *LOOK,
    ]  # fmt: skip
    assert (str(resumed.base), resumed.term.n, str(resumed.first_epoch)) == ("3/2", 2, "4")
    assert {handle.operator: len(handle.files) for handle in resumed.states} == {"total-left": 1, "total-right": 1}
    assert set(resumed.positions) == {"n", "m"}


def test_a_start_whose_term_is_newer_than_that_of_the_savepoint_takes_no_other(job: NotedJob) -> None:
    """A start before it in its directory has died with a term, which is closed first."""
    savepoint = _savepoint(job)
    job.incarnation = "b"
    terms.claim(job.storage, JOB, Term(0))
    job.noted()

    job.coordinator(start_from=savepoint).recovery.restore()

    assert job.noted() == [
        "claim 2", "base 1", "base 2", *SIGNS, "upload", "delete origin.json", "origin.json",
        *SIGNS, *HOLD, *SIGNS, "succeed left", "succeed right",
        "manifest 3/2", "identity.json", "ledger", "receipt 3/2", *ABORT, *LOOK,
    ]  # fmt: skip
