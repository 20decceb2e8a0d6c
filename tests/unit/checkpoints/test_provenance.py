"""Files that say where output came from: stored before a manifest names them, kept when it is dropped, verified."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from checkpoint_samples import JOB, MANIFEST

from kafka_eos import origins
from kafka_eos.checkpoints import ledger, paths, provenance, verify
from kafka_eos.checkpoints import manifest as records
from kafka_eos.checkpoints.ledger import EpochLedger
from kafka_eos.checkpoints.manifest import Base, Claim, Manifest, Receipt
from kafka_eos.checkpoints.retention import retain
from kafka_eos.checkpoints.storage import JobStorage, LocalStorage
from kafka_eos.errors import CorruptCheckpoint
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.interfaces import Committable, FileRef, Unstored

CONTENT = b"where it came from"
REF = FileRef("4-0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
NAME = paths.provenance_name(REF.sha256)
UNSTORED = Unstored("kafka", {"producer_id": 4}, 2, {"out": 2}, {}, REF, CONTENT)


def committed(storage: JobStorage, epochs: int) -> None:
    """Epochs of which each has a file of provenance, with their receipts and lines of the ledger."""
    lines = EpochLedger(storage, JOB, pytest.fail)
    records.publish(storage, Claim(job=JOB, term=1, host="h", pid=1, at=0))
    records.publish(storage, Base(job=JOB, term=1, resumed=None, reason="fresh", at=0))
    for epoch in range(1, epochs + 1):
        content = b"of epoch %d" % epoch
        ref = FileRef(f"4-{epoch}", hashlib.sha256(content).hexdigest(), len(content))
        told = provenance.stored(storage, Unstored("kafka", {}, 1, {"out": 1}, {}, ref, content))
        manifest = msgspec.structs.replace(MANIFEST, epoch=epoch, term=1, states=(), committables=(told,))
        records.publish(storage, manifest)
        lines.committed(manifest)
        records.publish(storage, Receipt(job=JOB, epoch=epoch, term=1, created_at=0, outcomes=()))


def test_a_committable_is_named_by_a_manifest_once_its_file_is_stored(storage: JobStorage) -> None:
    kept = provenance.stored(storage, UNSTORED)

    assert kept == Committable("kafka", {"producer_id": 4}, 2, {"out": 2}, {}, REF)
    assert type(kept) is Committable
    assert provenance.load(storage, REF) == CONTENT


def test_storing_it_again_after_a_failure_is_no_other_file(storage: JobStorage) -> None:
    first, again = provenance.stored(storage, UNSTORED), provenance.stored(storage, UNSTORED)

    assert first == again == provenance.stored(storage, first)
    assert provenance.load(storage, REF) == CONTENT


def test_output_that_says_itself_where_it_comes_from_is_left_as_it_is(storage: JobStorage) -> None:
    plain = Committable("kafka", {}, 1)

    assert provenance.stored(storage, plain) is plain


@pytest.mark.parametrize("damage", ["missing", "altered", "shorter"])
def test_a_file_that_is_not_what_was_stored_is_named(storage: JobStorage, damage: str) -> None:
    storage.publish(NAME, {"missing": b"", "altered": CONTENT.upper(), "shorter": CONTENT[:-1]}[damage])
    if damage == "missing":
        storage.delete(NAME)

    with pytest.raises(CorruptCheckpoint, match=NAME):
        provenance.load(storage, REF)


def test_the_ledger_keeps_what_retention_drops_and_the_files_stay(storage: JobStorage) -> None:
    committed(storage, 4)

    retain(storage, JOB, 1, lambda: None)

    assert len(storage.list(paths.MANIFESTS)) == 1
    entries = ledger.read(storage)
    told = {epoch.epoch.n: [kept.ref.name for kept in entry.provenance] for epoch, entry in entries.items()}
    assert told == {epoch: [f"4-{epoch}"] for epoch in range(1, 5)}
    contents = [provenance.load(storage, kept.ref) for entry in entries.values() for kept in entry.provenance]
    assert contents == [b"of epoch %d" % epoch for epoch in range(1, 5)]
    assert verify.verify_job(storage, JOB) == []


def test_verify_names_a_file_that_only_the_ledger_knows_and_one_that_only_a_manifest_does(storage: JobStorage) -> None:
    committed(storage, 2)
    retain(storage, JOB, 1, lambda: None)
    undecided = msgspec.structs.replace(
        MANIFEST, epoch=3, term=1, states=(), committables=(Committable("kafka", {}, 2, {}, {}, REF),)
    )
    records.publish(storage, undecided)
    (first, *_) = ledger.read(storage)[EpochId(Epoch(1), Term(1))].provenance
    storage.delete(paths.provenance_name(first.sha256))

    problems = verify.verify_job(storage, JOB)

    assert {problem.object for problem in problems} == {NAME, paths.provenance_name(first.sha256)}
    assert all("missing" in problem.what for problem in problems)


def test_a_manifest_of_before_has_no_files(storage: JobStorage) -> None:
    body = msgspec.json.decode(records.encode(MANIFEST).partition(b"\n")[2])
    for committable in body["committables"]:
        del committable["provenance"]
    told = msgspec.json.encode(body)
    head = b"kafka-eos manifest 6 %d " % len(told)
    old = head + hashlib.sha256(head + told).hexdigest().encode() + b"\n" + told

    assert records.decode(Manifest, MANIFEST.name, old, JOB) == MANIFEST


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_the_golden_files_say_where_all_outputs_came_from(backend: str) -> None:
    path = Path(__file__).parents[2] / "golden" / "manifest-7" / f"golden-{backend}"
    storage = LocalStorage(path)
    entries = ledger.read(storage)

    found = [origins.decode(provenance.load(storage, kept.ref)) for e in entries.values() for kept in e.provenance]

    blocks = [origins.opened(block) for each in found for some in each.blocks.values() for block in some]
    assert [f"{each.producer_id}-{each.producer_epoch}" for each in found] == [
        kept.name for entry in entries.values() for kept in entry.provenance
    ]
    assert sorted(offset for block in blocks for offset in block.offsets) == list(range(60))
    assert {block.names[span.sink] for block in blocks for span in block.spans} == {"totals"}
    assert sum(entry.outputs.get("totals", 0) for entry in entries.values()) == 60
