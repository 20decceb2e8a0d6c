"""Files that say where output came from: stored before a manifest names them, kept when it is dropped, verified."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from checkpoint_samples import JOB, MANIFEST

from kafka_eos.abc.committer import Committable, UnstoredCommittable
from kafka_eos.abc.storage import FileRef
from kafka_eos.core import provenance_blocks as origins
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import epoch_ledger as ledger
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage import provenance_packs as packs
from kafka_eos.storage import verification as verify
from kafka_eos.storage.epoch_ledger import EpochLedger
from kafka_eos.storage.job_records import Receipt, TermBase, TermClaim
from kafka_eos.storage.job_storage import JobStorage, LocalStorage, MemoryStorage
from kafka_eos.storage.provenance_compaction import ProvenancePacker
from kafka_eos.storage.provenance_files import ProvenanceReader
from kafka_eos.storage.retention import apply_retention

CONTENT = b"where it came from"
REF = FileRef("4-0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
AT = Epoch(3)
NAME = provenance.provenance_name_of(REF, AT)
UNSTORED = UnstoredCommittable("kafka", {"producer_id": 4}, 2, {"out": 2}, {}, REF, CONTENT)


def committed(storage: JobStorage, epochs: int) -> None:
    """Epochs of which each has a file of provenance, with their receipts and lines of the ledger."""
    lines = EpochLedger(storage, JOB, pytest.fail)
    records.publish(storage, TermClaim(job=JOB, term=1, host="h", pid=1, at=0))
    records.publish(storage, TermBase(job=JOB, term=1, resumed=None, reason="fresh", at=0))
    for epoch in range(1, epochs + 1):
        content = b"of epoch %d" % epoch
        ref = FileRef(f"4-{epoch}", hashlib.sha256(content).hexdigest(), len(content))
        told = provenance.store_provenance(
            storage, Epoch(epoch), UnstoredCommittable("kafka", {}, 1, {"out": 1}, {}, ref, content)
        )
        manifest = msgspec.structs.replace(MANIFEST, epoch=epoch, term=1, states=(), committables=(told,))
        records.publish(storage, manifest)
        lines.write_epoch(manifest)
        records.publish(storage, Receipt(job=JOB, epoch=epoch, term=1, created_at=0, outcomes=()))


def test_a_committable_is_named_by_a_manifest_once_its_file_is_stored(storage: JobStorage) -> None:
    kept = provenance.store_provenance(storage, AT, UNSTORED)

    assert kept == Committable("kafka", {"producer_id": 4}, 2, {"out": 2}, {}, REF)
    assert type(kept) is Committable
    assert ProvenanceReader(storage).load(REF, AT) == CONTENT


def test_storing_it_again_after_a_failure_is_no_other_file(storage: JobStorage) -> None:
    first, again = (
        provenance.store_provenance(storage, AT, UNSTORED),
        provenance.store_provenance(storage, AT, UNSTORED),
    )

    assert first == again == provenance.store_provenance(storage, AT, first)
    assert ProvenanceReader(storage).load(REF, AT) == CONTENT


def test_output_that_says_itself_where_it_comes_from_is_left_as_it_is(storage: JobStorage) -> None:
    plain = Committable("kafka", {}, 1)

    assert provenance.store_provenance(storage, AT, plain) is plain


@pytest.mark.parametrize("damage", ["missing", "altered", "shorter"])
def test_a_file_that_is_not_what_was_stored_is_named(storage: JobStorage, damage: str) -> None:
    storage.publish(NAME, {"missing": b"", "altered": CONTENT.upper(), "shorter": CONTENT[:-1]}[damage])
    if damage == "missing":
        storage.delete(NAME)

    with pytest.raises(CorruptCheckpoint, match=NAME):
        ProvenanceReader(storage).load(REF, AT)


def test_the_ledger_keeps_what_retention_drops_and_the_files_stay(storage: JobStorage) -> None:
    committed(storage, 4)

    apply_retention(storage, JOB, 1, lambda: None)

    assert len(storage.list(paths.MANIFESTS)) == 1
    entries = ledger.read(storage)
    told = {epoch.epoch.n: [kept.ref.name for kept in entry.provenance] for epoch, entry in entries.items()}
    assert told == {epoch: [f"4-{epoch}"] for epoch in range(1, 5)}
    shelf = ProvenanceReader(storage)
    contents = [shelf.load(kept.ref, entry.id.epoch) for entry in entries.values() for kept in entry.provenance]
    assert contents == [b"of epoch %d" % epoch for epoch in range(1, 5)]
    assert verify.verify_job(storage, JOB) == []


def test_verify_names_a_file_that_only_the_ledger_knows_and_one_that_only_a_manifest_does(storage: JobStorage) -> None:
    committed(storage, 2)
    apply_retention(storage, JOB, 1, lambda: None)
    undecided = msgspec.structs.replace(
        MANIFEST, epoch=3, term=1, states=(), committables=(Committable("kafka", {}, 2, {}, {}, REF),)
    )
    records.publish(storage, undecided)
    (first, *_) = ledger.read(storage)[EpochId(Epoch(1), Term(1))].provenance
    gone = provenance.provenance_name_of(first.ref, Epoch(1))
    storage.delete(gone)

    problems = verify.verify_job(storage, JOB)

    assert {problem.object for problem in problems} == {NAME, gone}
    assert all("missing" in problem.what for problem in problems)


def packed(storage: JobStorage) -> str:
    """Epochs whose files are in one pack, but for the last two; its name."""
    committed(storage, LIMITS.files_per_pack + 2)
    apply_retention(storage, JOB, 1, lambda: None)
    ProvenancePacker(storage, pytest.fail).pack()
    (name,) = (name for name in storage.list(paths.PROVENANCE) if "pack" in name)
    return name


def test_verify_reads_packs_and_names_one_that_is_damaged_and_what_may_have_been_in_it(storage: JobStorage) -> None:
    name = packed(storage)
    sound = verify.verify_job(storage, JOB)
    content = storage.read(name)
    storage.delete(name)
    gone = verify.verify_job(storage, JOB)
    storage.publish(name, content[:-1])

    damaged = verify.verify_job(storage, JOB)

    assert sound == []
    assert len(gone) == LIMITS.files_per_pack
    assert all("missing, and in no pack" in problem.what for problem in gone)
    assert damaged[0].object == name
    assert {problem.object for problem in damaged[1:]} == {problem.object for problem in gone}
    assert all(f"missing, or in the damaged {name}" in problem.what for problem in damaged[1:])


def test_verify_names_a_missing_file_that_is_newer_than_all_in_a_damaged_pack(storage: JobStorage) -> None:
    name = packed(storage)
    content = storage.read(name)
    storage.delete(name)
    storage.publish(name, content[:-1])
    newest = max(name for name in storage.list(paths.PROVENANCE) if "pack" not in name)
    storage.delete(newest)

    told = {problem.object: problem.what for problem in verify.verify_job(storage, JOB)}

    assert f"missing, or in the damaged {name}" in told[newest]


def test_verify_names_the_nearest_of_several_damaged_packs_that_may_hold_a_file(storage: JobStorage) -> None:
    name = packed(storage)
    storage.delete(name)
    damaged = list[str]()
    for last in (LIMITS.files_per_pack // 2, LIMITS.files_per_pack):
        other, content = packs.encode(Epoch(1), Epoch(last), {})
        damaged.append(paths.provenance_name(other))
        storage.publish(damaged[-1], content[:-1])

    problems = verify.verify_job(storage, JOB)

    first = f"{paths.PROVENANCE}/{LIMITS.files_per_pack:012d}-"
    (newest,) = (each.what for each in problems if each.object.startswith(first))
    assert newest.endswith(f"missing, or in the damaged {damaged[1]}, or in another of 2 that are damaged")
    assert len(problems) == 2 + LIMITS.files_per_pack


def test_verify_names_what_is_not_of_this_package_and_nothing_that_is_hidden(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "job")
    committed(storage, 2)
    stray = f"{paths.PROVENANCE}/notes.txt"
    storage.publish(stray, b"of somebody")
    (tmp_path / "job" / paths.PROVENANCE / ".nfs000000000000a1b200000001").write_bytes(b"")

    assert [problem.object for problem in verify.verify_job(storage, JOB)] == [stray]


def test_beside_a_damaged_pack_verify_names_a_file_that_was_never_in_it(storage: JobStorage) -> None:
    """It is older than all that the pack holds."""
    name = packed(storage)
    other, content = packs.encode(Epoch(2), Epoch(LIMITS.files_per_pack), {})
    storage.publish(paths.provenance_name(other), content[:-1])
    storage.delete(name)

    problems = verify.verify_job(storage, JOB)

    damaged, oldest, *others = problems
    assert damaged.object == paths.provenance_name(other)
    assert oldest.object.startswith(f"{paths.PROVENANCE}/{1:012d}-")
    assert "missing, and in no pack" in oldest.what
    assert all(f"missing, or in the damaged {damaged.object}" in each.what for each in others)


def test_verify_finds_no_fault_with_files_that_a_running_job_packs_meanwhile() -> None:
    class Running(MemoryStorage):
        def list(self, prefix: str) -> Sequence[str]:
            found = super().list(prefix)
            if prefix == paths.PROVENANCE and not any("pack" in name for name in found):
                self.lists += 1
                if self.lists == 2:  # the packer's own is the third
                    ProvenancePacker(self, pytest.fail).pack()
            return found

        lists = 0

    storage = Running()
    committed(storage, LIMITS.files_per_pack)
    storage.list(paths.PROVENANCE)

    assert verify.verify_job(storage, JOB) == []
    assert len(storage.list(paths.PROVENANCE)) == 1


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_the_golden_files_say_where_all_outputs_came_from(backend: str) -> None:
    path = Path(__file__).parents[2] / "golden" / "recorded" / f"golden-{backend}"
    storage = LocalStorage(path)
    entries = ledger.read(storage)

    shelf = ProvenanceReader(storage)
    found = [origins.decode(shelf.load(kept.ref, e.id.epoch)) for e in entries.values() for kept in e.provenance]

    blocks = [origins.decode_block(block) for each in found for some in each.blocks.values() for block in some]
    assert [f"{each.producer_id}-{each.producer_epoch}" for each in found] == [
        kept.name for entry in entries.values() for kept in entry.provenance
    ]
    assert sorted(offset for block in blocks for offset in block.offsets) == list(range(60))
    assert {block.names[span.sink] for block in blocks for span in block.spans} == {"totals"}
    assert sum(entry.outputs.get("totals", 0) for entry in entries.values()) == 60


def test_a_golden_pack_holds_what_the_golden_files_say(tmp_path: Path) -> None:
    golden = Path(__file__).parents[2] / "golden"
    shutil.copytree(golden / "packed", tmp_path / "job")
    shelf, found = ProvenanceReader(LocalStorage(tmp_path / "job")), list[bytes]()
    for backend in ("memory", "rocksdb"):
        entries = ledger.read(LocalStorage(golden / "recorded" / f"golden-{backend}"))
        found += [shelf.load(kept.ref, entry.id.epoch) for entry in entries.values() for kept in entry.provenance]

    alone = sorted(path.read_bytes() for path in golden.glob("recorded/*/provenance/*"))
    assert sorted(found) == alone
