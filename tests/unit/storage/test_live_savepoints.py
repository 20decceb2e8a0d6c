"""Savepoints of a running job are written beside its work: retention waits for them, attempts and commits do not."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import JOB, MANIFEST, SAVEPOINT

from kafka_eos.abc.committer import CommitOutcome
from kafka_eos.abc.state import InFlightRows
from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_requests import TakeSavepoint
from kafka_eos.coordination.request_queue import RequestHandler
from kafka_eos.coordination.savepoint_writer import SavepointWriter, list_recorded, record_savepoint
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import retention
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_records import Manifest, Receipt, TermBase, TermClaim, publish
from kafka_eos.storage.job_storage import LocalStorage

SECONDS = 20.0


class Slow:
    """A storage as far away as a test likes."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage
        self.asked, self.near = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def fetch(self, ref: FileRef, target: Path) -> None:
        self.asked.set()
        assert self.near.wait(SECONDS)
        self._storage.fetch(ref, target)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / JOB)


@pytest.fixture
def slow(storage: LocalStorage) -> Iterator[Slow]:
    made = Slow(storage)
    yield made
    made.near.set()


def _ours() -> None:
    """No newer term is claimed."""


def commit(storage: LocalStorage, tmp_path: Path, epoch: int) -> Manifest:
    """An epoch with one file of its own."""
    frames = tmp_path / f"frames-{epoch}"
    frames.write_bytes(b"rows under way in %d" % epoch)
    rows = InFlightRows("by-key", {"name": "msgpack"}, (storage.upload(frames, "0.frames"),), overtaken=True)
    made = {name: getattr(MANIFEST, name) for name in MANIFEST.__struct_fields__}
    manifest = Manifest(**{**made, "epoch": epoch, "states": (), "in_flight": (rows,)})
    publish(storage, manifest)
    publish(storage, Receipt(job=JOB, epoch=epoch, term=3, created_at=0, outcomes=(CommitOutcome.COMMITTED,)))
    return manifest


def test_retention_waits_for_a_savepoint_and_the_job_does_not(
    storage: LocalStorage, slow: Slow, home: Path, tmp_path: Path
) -> None:
    publish(storage, TermClaim(job=JOB, term=3, host="h", pid=1, at=0))
    publish(storage, TermBase(job=JOB, term=3, resumed=None, reason="first start", at=0))
    old = commit(storage, tmp_path, 7)
    target = tmp_path / "savepoint"
    writer: Any = SavepointWriter(home, slow)  # type: ignore[arg-type]
    desk = RequestHandler(home, writer)
    requests.submit(home, TakeSavepoint(path=str(target)))
    desk.poll(1.0)
    desk.on_triggered(old.id)
    desk.on_committed(old)
    assert slow.asked.wait(SECONDS)

    commit(storage, tmp_path, 8)
    retention.apply_retention(storage, JOB, 1, _ours, writer.pinned_files)
    (name,) = (paths.shared_name(sha256) for sha256 in old.files)
    assert name in storage.list(paths.SHARED)
    after_a_restart = RequestHandler(home, writer)
    after_a_restart.poll(1.0)
    assert after_a_restart.pending.checkpoint is None, "it is being written"

    slow.near.set()
    writer.close()

    assert (savepoints.read_savepoint(target).epoch, savepoints.find_damage(target)) == (7, [])
    (known,) = list_recorded(storage)
    assert (known.path, known.id, known.epoch) == (target, savepoints.read_savepoint(target).id, 7)
    assert requests.list_pending(home) == []
    assert (writer.in_progress, writer.pinned_files) == (frozenset(), frozenset())
    retention.apply_retention(storage, JOB, 1, _ours, writer.pinned_files)
    assert name not in storage.list(paths.SHARED)


def test_one_that_is_finished_while_the_desk_looks_is_not_made_again(
    storage: LocalStorage, slow: Slow, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is listed, and answered before anything else is asked."""
    old = commit(storage, tmp_path, 7)
    writer: Any = SavepointWriter(home, slow)  # type: ignore[arg-type]
    desk, listed = RequestHandler(home, writer), requests.list_pending
    requests.submit(home, TakeSavepoint(path=str(tmp_path / "savepoint")))
    desk.poll(1.0)
    desk.on_triggered(old.id)
    desk.on_committed(old)

    def and_then_it_is_made(directory: Path) -> Any:
        found = listed(directory)
        slow.near.set()
        writer.close()
        return found

    monkeypatch.setattr(requests, "list_pending", and_then_it_is_made)
    desk.poll(2.0)

    assert desk.pending.checkpoint is None
    assert savepoints.find_damage(tmp_path / "savepoint") == []


def test_a_savepoint_is_made_though_the_diary_cannot_be_written(home: Path, storage: LocalStorage) -> None:
    def full(name: str, line: str) -> None:
        raise OSError(errno.ENOSPC, "full")

    storage.append = full  # type: ignore[method-assign]

    record_savepoint(storage, SAVEPOINT, home)

    assert list_recorded(storage) == []
