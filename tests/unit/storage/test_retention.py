"""What the plan of retention says is deleted, batch by batch, and nothing by who was replaced."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from checkpoint_samples import JOB, MANIFEST

from kafka_eos._util import failpoints
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination import terms
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol import retention as rules
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import retention
from kafka_eos.storage import verification as verify
from kafka_eos.storage.job_records import Receipt, TermBase, TermClaim
from kafka_eos.storage.job_storage import JobStorage, MemoryStorage


def e(epoch: int, term: int) -> EpochId:
    return EpochId(Epoch(epoch), Term(term))


def job(storage: JobStorage, tmp_path: Path, epochs: int) -> None:
    """``epochs`` epochs of one term; each has a file of its own and one that all share."""
    manifest.publish(storage, TermClaim(job=JOB, term=1, host="h", pid=1, at=0))
    manifest.publish(storage, TermBase(job=JOB, term=1, resumed=None, reason="fresh", at=0))
    for epoch in range(epochs):
        refs = []
        for content in (b"shared by all", b"of epoch %d" % epoch):
            (tmp_path / "file").unlink(missing_ok=True)
            (tmp_path / "file").write_bytes(content)
            refs.append(storage.upload(tmp_path / "file", f"{len(refs)}.rows"))
        handle = StateHandle("total", "memory", (0, 127), tuple(refs), ())
        manifest.publish(storage, msgspec.structs.replace(MANIFEST, epoch=epoch, term=1, states=(handle,)))
        manifest.publish(storage, Receipt(job=JOB, epoch=epoch, term=1, created_at=0, outcomes=()))


def test_retain_leaves_the_newest_epochs_and_their_files(storage: JobStorage, tmp_path: Path) -> None:
    job(storage, tmp_path, 5)
    retention.apply_retention(storage, JOB, 2, lambda: terms.ensure_newest(storage, Term(1)))

    assert list(storage.list("manifests")) == [paths.manifest_name(e(n, 1)) for n in (3, 4)]
    assert list(storage.list("receipts")) == [paths.receipt_name(e(n, 1)) for n in (3, 4)]
    assert len(storage.list("shared")) == 3
    assert verify.verify_job(storage, JOB) == []


class Counting(MemoryStorage):
    """Notes what is read, and what is deleted at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.reads: list[str] = []

    def read(self, name: str) -> bytes:
        self.reads.append(name)
        return super().read(name)

    def delete_all(self, names: Sequence[str]) -> None:
        self.batches.append(list(names))
        super().delete_all(names)


def test_a_manifest_which_names_all_files_of_the_state_is_read_once(tmp_path: Path) -> None:
    storage = Counting()
    known = retention.ManifestFiles(storage, JOB)
    job(storage, tmp_path, 3)
    retention.apply_retention(storage, JOB, 2, lambda: None, known=known)
    storage.reads.clear()
    manifest.publish(storage, msgspec.structs.replace(MANIFEST, epoch=3, term=1, states=()))
    manifest.publish(storage, Receipt(job=JOB, epoch=3, term=1, created_at=0, outcomes=()))
    retention.apply_retention(storage, JOB, 2, lambda: None, known=known)

    assert [name for name in storage.reads if paths.is_manifest(name)] == [paths.manifest_name(e(3, 1))]
    assert list(storage.list("manifests")) == [paths.manifest_name(e(n, 1)) for n in (2, 3)]
    assert len(storage.list("shared")) == 2
    assert retention.take_inventory(storage, JOB, known=known) == retention.take_inventory(storage, JOB)


def begun(storage: JobStorage, term: int, resumed: tuple[int, int]) -> None:
    """A term that has claimed the job and says what it resumed from."""
    manifest.publish(storage, TermClaim(job=JOB, term=term, host="h", pid=1, at=0))
    manifest.publish(storage, TermBase(job=JOB, term=term, resumed=resumed, reason="settled", at=0))


def test_the_facts_are_what_is_stored_each_for_what_it_is(tmp_path: Path) -> None:
    """A claim is no base: a term that has only claimed the job has resumed nothing yet."""
    storage = MemoryStorage()
    job(storage, tmp_path, 2)
    begun(storage, 2, (1, 1))
    manifest.publish(storage, TermClaim(job=JOB, term=3, host="h", pid=1, at=0))
    storage.delete(paths.claim_name(Term(1)))

    facts = retention.take_inventory(storage, JOB, frozenset({"held"}))

    shared, first, second = (hashlib.sha256(c).hexdigest() for c in (b"shared by all", b"of epoch 0", b"of epoch 1"))
    assert facts == rules.Inventory(
        manifests={e(0, 1): frozenset({shared, first}), e(1, 1): frozenset({shared, second})},
        receipts=frozenset({e(0, 1), e(1, 1)}),
        bases={Term(1): None, Term(2): e(1, 1)},
        claims=frozenset({Term(2), Term(3)}),
        stored=frozenset({shared, first, second}),
        pinned=frozenset({"held"}),
    )


def test_objects_of_every_kind_are_deleted_under_the_names_that_they_are_stored_by(tmp_path: Path) -> None:
    storage = MemoryStorage()
    job(storage, tmp_path, 1)
    begun(storage, 2, (0, 1))
    begun(storage, 3, (0, 1))
    manifest.publish(storage, msgspec.structs.replace(MANIFEST, epoch=1, term=3, states=()))
    manifest.publish(storage, Receipt(job=JOB, epoch=1, term=3, created_at=0, outcomes=()))

    deleted = retention.apply_retention(storage, JOB, 1, lambda: terms.ensure_newest(storage, Term(3)))

    assert {type(each) for each in deleted} == {
        rules.DeleteManifest,
        rules.DeleteReceipt,
        rules.DeleteBase,
        rules.DeleteClaim,
        rules.DeleteFile,
    }
    assert set(storage.objects) == {
        paths.manifest_name(e(1, 3)),
        paths.receipt_name(e(1, 3)),
        paths.base_name(Term(3)),
        paths.claim_name(Term(3)),
    }


@pytest.mark.parametrize(
    "point",
    ["retention.before=error", "retention.recorded=error", *(f"retention.between=error@{n}" for n in (1, 2, 3))],
)
def test_wherever_it_stops_all_that_is_named_is_whole_and_the_rest_goes_in_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    storage = Counting()
    job(storage, tmp_path, 4)
    with monkeypatch.context() as armed:
        armed.setattr(
            failpoints, "_active", failpoints._Failpoints(failpoints.parse_script(point), str(tmp_path / "log"))
        )
        with pytest.raises(OSError, match="failpoint retention"):
            retention.apply_retention(storage, JOB, 1, lambda: None)

    assert len(storage.batches) == int(point.partition("@")[2] or 0), "manifests, receipts, files"
    assert verify.verify_job(storage, JOB) == []
    retention.apply_retention(storage, JOB, 1, lambda: None)
    assert len(storage.list(paths.MANIFESTS)) == len(storage.list(paths.RECEIPTS)) == 1
    assert len(storage.list(paths.SHARED)) == 2


class TakenOver(MemoryStorage):
    """Another driver claims the job and stores a file: when the files are about to be listed, or one was deleted."""

    def __init__(self, source: Path, when: str) -> None:
        super().__init__()
        self._source, self._when = source, when
        self.new: FileRef | None = None

    def list(self, prefix: str) -> Sequence[str]:
        if prefix == paths.SHARED and self._when == "listing":
            self._take_over()
        return super().list(prefix)

    def delete(self, name: str) -> None:
        super().delete(name)
        if name.startswith(paths.SHARED) and self._when == "deleting":
            self._take_over()

    def _take_over(self) -> None:
        if self.new is None:
            manifest.publish(self, TermClaim(job=JOB, term=2, host="h", pid=2, at=0))
            self.new = self.upload(self._source, "new.rows")


@pytest.mark.limits(objects_per_delete=1)
@pytest.mark.parametrize(("when", "content"), [("listing", b"new"), ("deleting", b"of epoch 1")])
def test_a_driver_that_was_replaced_deletes_no_file_of_its_successor(tmp_path: Path, when: str, content: bytes) -> None:
    """Not even one that was there, is named no longer, and has just been found stored already: in no later batch."""
    (tmp_path / "new").write_bytes(content)
    storage = TakenOver(tmp_path / "new", when)
    job(storage, tmp_path, 5)
    with pytest.raises(Fenced, match="replaced by term"):
        retention.apply_retention(storage, JOB, 1, lambda: terms.ensure_newest(storage, Term(1)))

    assert storage.new is not None
    storage.check_content(storage.new)


@pytest.mark.limits(objects_per_delete=500)
def test_who_owns_the_job_is_asked_once_a_batch_of_files_and_not_once_a_file(tmp_path: Path) -> None:
    storage, asked = Counting(), list[int]()
    job(storage, tmp_path, 30)
    retention.apply_retention(storage, JOB, 1, lambda: asked.append(len(storage.batches)))

    assert [len(batch) for batch in storage.batches] == [29, 29, 29], "manifests, receipts, files"
    assert asked == [0, 2], "once the files are listed, and before the files are deleted"


def test_verify_names_every_damaged_object(tmp_path: Path) -> None:
    storage = MemoryStorage()
    job(storage, tmp_path, 3)
    shared = "shared/" + hashlib.sha256(b"shared by all").hexdigest()
    lost = "shared/" + hashlib.sha256(b"of epoch 1").hexdigest()
    storage.objects[shared] = b"Shared by all"
    del storage.objects[lost]
    storage.objects[paths.manifest_name(e(2, 1))] = b""
    storage.objects[paths.receipt_name(e(0, 1))] += b" "
    storage.objects[paths.base_name(Term(1))] = storage.objects[paths.claim_name(Term(1))]
    damaged = {shared, lost, paths.manifest_name(e(2, 1)), paths.receipt_name(e(0, 1)), paths.base_name(Term(1))}
    problems = verify.verify_job(storage, JOB)

    assert {p.object for p in problems} == damaged
    assert len(problems) == len(damaged)
    assert all(p.object in p.what for p in problems)
