"""Power cuts while durable objects are made and removed: every state that they may leave is opened with the real code.

Each test records the real operations (see ``tests/power_cuts.py``) and states what holds in every state after them.
Rule: a claim that no omission can break proves nothing, so each is shown to fail when one fsync is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from checkpoint_samples import JOB, MANIFEST, SAVEPOINT

from kafka_eos.abc.committer import UnstoredCommittable
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Epoch
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage import retention
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage import verification as verify
from kafka_eos.storage.job_records import Manifest, Receipt, TermBase, TermClaim, load, publish
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.provenance_compaction import ProvenancePacker
from kafka_eos.storage.provenance_files import ProvenanceReader
from kafka_eos.storage.savepoint_files import SavepointFiles
from kafka_eos.storage.upload_batch import UploadBatch
from tests.power_cuts import Operation, Recording, Synced, after, breaks, broken, recorded

Check = Callable[[Path], None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def _names(refs: list[FileRef], epoch: int = 7) -> Manifest:
    """A manifest that needs these files."""
    states = (StateHandle("total", "rocksdb", (0, 127), tuple(refs), ()),)
    return msgspec.structs.replace(MANIFEST, epoch=epoch, states=states)


def _private(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def _holds_after(recording: Recording, check: Check, tmp_path: Path) -> bool:
    """Whether it holds in every state once all was done."""
    for number, tree in enumerate(after(recording)):
        tree.write(tmp_path / "after" / str(number))
        check(tmp_path / "after" / str(number))
    return True


# ---------------------------------------------------------------- publish


def _published(root: Path) -> Recording:
    storage = LocalStorage(root / "job")
    with recorded(root) as recording:
        publish(storage, MANIFEST)
    return recording


def _manifests(root: Path) -> list[Manifest]:
    storage = LocalStorage(root / "job")
    storage.prepare_run()
    return [load(storage, Manifest, name, JOB) for name in storage.list(paths.MANIFESTS)]


def _absent_or_whole(root: Path) -> None:
    assert _manifests(root) in ([], [MANIFEST])


def _whole(root: Path) -> None:
    assert _manifests(root) == [MANIFEST]


def test_a_manifest_is_absent_or_whole_and_whole_once_publish_has_returned(root: Path, tmp_path: Path) -> None:
    recording = _published(root)

    assert broken(recording, _absent_or_whole, tmp_path / "states") == []
    assert breaks(recording, _whole, tmp_path / "states"), "no state is without the manifest: nothing was enumerated"
    assert _holds_after(recording, _whole, tmp_path)


def test_publish_needs_both_of_its_syncs(root: Path, tmp_path: Path) -> None:
    """Of the file, before it gets its name; of the directory, before it counts."""
    recording = _published(root)

    assert len(recording.syncs) == 2
    assert breaks(recording.forgetting(0), _absent_or_whole, tmp_path / "states")
    with pytest.raises(AssertionError):
        _holds_after(recording.forgetting(1), _whole, tmp_path)


# ---------------------------------------------------------------- provenance


def _provenance(number: int) -> tuple[FileRef, bytes]:
    content = b"of epoch %d" % number
    return FileRef(f"{number}-0", hashlib.sha256(content).hexdigest(), len(content)), content


def _all_provenance(root: Path) -> None:
    storage = LocalStorage(root / "job")
    storage.prepare_run()
    shelf = ProvenanceReader(storage)
    for number in range(3):
        ref, content = _provenance(number)
        assert shelf.load(ref, Epoch(number)) == content


@pytest.mark.limits(files_per_pack=3)
def test_files_of_provenance_that_are_packed_are_there_alone_or_in_a_pack(root: Path, tmp_path: Path) -> None:
    storage = LocalStorage(root / "job")
    for number in range(3):
        ref, content = _provenance(number)
        provenance.store_provenance(storage, Epoch(number), UnstoredCommittable("kafka", {}, 1, {}, {}, ref, content))
    with recorded(root) as recording:
        ProvenancePacker(storage, pytest.fail).pack()

    assert broken(recording, _all_provenance, tmp_path / "states") == []
    for forgotten in (0, 1):  # the pack; its directory
        assert breaks(recording.forgetting(forgotten), _all_provenance, tmp_path / "states")


# ---------------------------------------------------------------- upload


def _every_file_is_there(root: Path) -> None:
    """What recovery needs: a manifest that is there has all of its files, whole."""
    storage = LocalStorage(root / "job")
    storage.prepare_run()
    assert verify.verify_job(storage, JOB) == []


@pytest.mark.parametrize("private", [True, False], ids=["linked", "copied"])
def test_a_published_manifest_has_all_of_its_files(root: Path, tmp_path: Path, private: bool) -> None:
    storage = LocalStorage(root / "job")
    with recorded(root) as recording:
        file = _private(root / "state", b"rows of an epoch")
        if not private:
            file.chmod(0o644)
        publish(storage, _names([storage.upload(file, "1.rows")]))

    assert broken(recording, _every_file_is_there, tmp_path / "states") == []
    for forgotten in (0, 1):  # the file; its directory
        assert breaks(recording.forgetting(forgotten), _every_file_is_there, tmp_path / "states")


@pytest.mark.parametrize("when", ["before it is looked for", "while it is stored"])
def test_content_that_another_process_has_just_stored_is_durable_when_upload_returns(
    root: Path, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has written and linked it, and has not synced anything: it may never come to that."""
    mine, other = LocalStorage(root / "job"), LocalStorage(root / "job")
    file = _private(root / "mine", b"the same rows")
    others = slice(0, 0)

    def store() -> None:
        nonlocal others
        begin = len(recording.operations)
        other.upload(_private(root / "other", b"the same rows"), "1.rows")
        others = slice(begin, len(recording.operations))

    if when == "while it is stored":
        place = mine._place

        def interrupted(*args: object) -> None:
            store()
            place(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(mine, "_place", interrupted)
    with recorded(root) as recording:
        if when == "before it is looked for":
            store()
        publish(mine, _names([mine.upload(file, "1.rows")]))

    def unsynced(at: int, operation: Operation) -> bool:
        return isinstance(operation, Synced) and at in range(others.start, others.stop)

    assert broken(recording.without(unsynced), _every_file_is_there, tmp_path / "states") == []


def _packed(storage: LocalStorage, root: Path) -> list[FileRef]:
    batch = UploadBatch(storage)
    added = [batch.add(_private(root / f"{number}.sst", b"rows of %d" % number)) for number in range(2)]
    batch.store()
    return [get_ref() for get_ref in added]


def test_a_published_manifest_has_all_of_its_packs(root: Path, tmp_path: Path) -> None:
    storage = LocalStorage(root / "job")
    with recorded(root) as recording:
        publish(storage, _names(_packed(storage, root)))

    assert broken(recording, _every_file_is_there, tmp_path / "states") == []
    for forgotten in (0, 1):  # the pack; its directory
        assert breaks(recording.forgetting(forgotten), _every_file_is_there, tmp_path / "states")


def test_a_pack_that_another_process_has_just_stored_is_durable(root: Path, tmp_path: Path) -> None:
    """The other one ends before it has synced the directory."""
    mine, other = LocalStorage(root / "job"), LocalStorage(root / "job")
    with recorded(root) as recording:
        _packed(other, root)
        others = len(recording.syncs)
        publish(mine, _names(_packed(mine, root)))

    assert broken(recording.forgetting(others - 1), _every_file_is_there, tmp_path / "states") == []


# ---------------------------------------------------------------- retention


def _job(root: Path, epochs: int) -> LocalStorage:
    """Each epoch has a file of its own, and one that all share; all of them have receipts."""
    storage = LocalStorage(root / "job")
    publish(storage, TermClaim(job=JOB, term=3, host="h", pid=1, at=0))
    publish(storage, TermBase(job=JOB, term=3, resumed=None, reason="fresh", at=0))
    shared = storage.upload(_private(root / "shared", b"of all epochs"), "1.sst")
    for epoch in range(epochs):
        own = storage.upload(_private(root / f"own-{epoch}", b"of epoch %d" % epoch), "2.sst")
        publish(storage, _names([shared, own], epoch))
        publish(storage, Receipt(job=JOB, epoch=epoch, term=3, created_at=0, outcomes=()))
    return storage


def _nothing_is_missing(root: Path) -> None:
    """The newest epoch is committed and whole, and so is every other that is still there."""
    storage = LocalStorage(root / "job")
    storage.prepare_run()
    assert savepoints.newest_committed(storage, JOB).epoch == 2
    assert verify.verify_job(storage, JOB) == []


def test_retention_leaves_every_epoch_whole_that_is_still_there(root: Path, tmp_path: Path) -> None:
    """A manifest comes back if its removal was not synced; so its files must not have gone before."""
    storage = _job(root, 3)
    with recorded(root) as recording:
        dropped = retention.apply_retention(storage, JOB, 1, lambda: None)

    assert len(dropped) == 6
    assert broken(recording, _nothing_is_missing, tmp_path / "states") == []
    assert any(breaks(recording.forgetting(n), _nothing_is_missing, tmp_path / "states") for n in (0, 1))


# ---------------------------------------------------------------- savepoints


def _made(target: Path) -> None:
    with savepoints.draft_savepoint(target) as stage:
        ref = stage.files.upload(_private(stage.work / "rows", b"rows of a savepoint"), "1.rows")
        handle = StateHandle("total", "rocksdb", (0, 127), (ref,), ())
        stage.publish(msgspec.structs.replace(SAVEPOINT, operators=(handle,)))


def _absent_or_complete(root: Path) -> None:
    target = root / "savepoints" / "s1"
    if target.exists():
        _complete(root)


def _complete(root: Path) -> None:
    target = root / "savepoints" / "s1"
    found = savepoints.read_savepoint(target)
    assert found.id == SAVEPOINT.id
    for ref in found.files:
        SavepointFiles(target).check_content(ref)


def test_a_savepoint_is_absent_or_complete_and_complete_once_it_is_made(root: Path, tmp_path: Path) -> None:
    with recorded(root) as recording:
        _made(root / "savepoints" / "s1")

    assert broken(recording, _absent_or_complete, tmp_path / "states") == []
    assert _holds_after(recording, _complete, tmp_path)
    needed = [n for n in range(len(recording.syncs)) if _breaks(recording.forgetting(n), tmp_path)]
    assert len(needed) >= 5, "file, its directory, the description, its directory, the name"


def _breaks(recording: Recording, tmp_path: Path) -> bool:
    if breaks(recording, _absent_or_complete, tmp_path / "states"):
        return True
    try:
        return not _holds_after(recording, _complete, tmp_path / f"{len(list(tmp_path.iterdir()))}")
    except (ConfigError, OSError):
        return True


def test_a_savepoint_that_is_dropped_is_complete_or_gone(root: Path, tmp_path: Path) -> None:
    _made(root / "savepoints" / "s1")
    with recorded(root) as recording:
        savepoints.delete_savepoint(root / "savepoints" / "s1")

    assert broken(recording, _absent_or_complete, tmp_path / "states") == []
    assert breaks(recording.forgetting(0), _absent_or_complete, tmp_path / "states")
    assert not list((root / "savepoints").glob("s1"))
