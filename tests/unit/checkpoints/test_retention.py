"""What may go, and that a crash in the middle of deleting leaves every retained epoch whole."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from checkpoint_samples import JOB, MANIFEST
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.checkpoints import manifest, paths, retention, verify
from kafka_eos.checkpoints.manifest import Base, Claim, Receipt
from kafka_eos.checkpoints.retention import Inventory, plan
from kafka_eos.checkpoints.storage import JobStorage, MemoryStorage
from kafka_eos.coordinator import term as terms
from kafka_eos.errors import Bug, Fenced
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.interfaces import FileRef, StateHandle
from kafka_eos.protocol.lineage import lineage


def e(epoch: int, term: int) -> EpochId:
    return EpochId(Epoch(epoch), Term(term))


def sha(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def facts(
    manifests: dict[EpochId, set[int]],
    receipts: set[EpochId],
    bases: dict[int, EpochId | None],
    stored: set[int] | None = None,
) -> Inventory:
    named = set().union(*manifests.values()) if stored is None else stored
    return Inventory(
        manifests={m: frozenset(map(sha, numbers)) for m, numbers in manifests.items()},
        receipts=frozenset(receipts),
        bases={Term(t): base for t, base in bases.items()},
        claims=frozenset(Term(t) for t in bases),
        stored=frozenset(map(sha, named)),
    )


def test_history_follows_the_bases_and_skips_what_was_replaced() -> None:
    manifests = [e(0, 1), e(1, 1), e(2, 1), e(2, 2), e(3, 2), e(4, 2), e(4, 3)]
    bases = {Term(1): None, Term(2): e(1, 1), Term(3): e(3, 2)}

    assert lineage(manifests, bases)[::-1] == (e(4, 3), e(3, 2), e(2, 2), e(1, 1), e(0, 1))


def test_a_manifest_of_a_term_without_a_base_does_not_count() -> None:
    assert lineage([e(0, 1), e(9, 2)], {Term(1): None}) == (e(0, 1),)


def test_a_base_that_points_forward_is_a_bug() -> None:
    with pytest.raises(Bug):
        lineage([], {Term(2): e(1, 2)})


def test_the_epoch_before_stays_until_the_receipt() -> None:
    manifests = {e(1, 1): {1}, e(2, 1): {2}}

    assert plan(facts(manifests, {e(1, 1)}, {1: None}), keep=1) == ()
    assert plan(facts(manifests, {e(1, 1), e(2, 1)}, {1: None}), keep=1) == (
        paths.manifest_name(e(1, 1)),
        paths.receipt_name(e(1, 1)),
        paths.shared_name(sha(1)),
    )


def test_nothing_goes_before_the_first_receipt() -> None:
    assert plan(facts({e(0, 1): {1}, e(1, 1): {2}}, set(), {1: None}, {1, 2, 3}), keep=1) == ()


def test_the_base_stays_until_the_new_term_has_a_receipt() -> None:
    manifests, bases = {e(5, 1): {1}, e(6, 2): {2}}, {1: None, 2: e(5, 1)}

    assert plan(facts(manifests, {e(5, 1)}, bases), keep=1) == ()
    assert paths.manifest_name(e(5, 1)) in plan(facts(manifests, {e(5, 1), e(6, 2)}, bases), keep=1)


def test_a_zombies_manifest_goes_and_with_it_only_its_own_files() -> None:
    manifests = {e(5, 1): {1}, e(6, 1): {1, 9}, e(6, 2): {1, 2}}

    assert plan(facts(manifests, {e(5, 1), e(6, 2)}, {1: None, 2: e(5, 1)}), keep=2) == (
        paths.manifest_name(e(6, 1)),
        paths.shared_name(sha(9)),
    )


def test_files_in_flight_and_files_of_a_newer_term_stay() -> None:
    manifests = {e(1, 1): {1}, e(2, 2): {2}}
    found = facts(manifests, {e(1, 1)}, {1: None}, {1, 2, 3, 4})

    assert plan(found, keep=1, in_flight=frozenset({sha(3)})) == (paths.shared_name(sha(4)),)


def test_old_terms_go_with_their_last_manifest() -> None:
    manifests = {e(1, 1): {1}, e(2, 2): {2}, e(3, 3): {3}}
    names = plan(facts(manifests, set(manifests), {1: None, 2: e(1, 1), 3: e(2, 2)}), keep=2)

    assert paths.base_name(Term(1)) in names
    assert paths.claim_name(Term(1)) in names
    assert paths.base_name(Term(2)) not in names


@st.composite
def jobs(draw: st.DrawFn) -> Inventory:
    """Terms in turn, each resuming from a manifest that counted; some of them leave manifests that do not."""
    manifests: dict[EpochId, set[int]] = {}
    bases: dict[int, EpochId | None] = {}
    for term in range(1, draw(st.integers(1, 4)) + 1):
        counted = lineage(manifests.keys(), {Term(t): b for t, b in bases.items()})[::-1]
        base = draw(st.sampled_from(counted[:2])) if counted else None
        bases[term] = base
        start = base.epoch.n + 1 if base else 0
        for epoch in range(start, start + draw(st.integers(0, 4))):
            manifests[e(epoch, term)] = draw(st.sets(st.integers(0, 12), max_size=4))
    receipts = draw(st.sets(st.sampled_from(sorted(manifests)))) if manifests else set()
    return facts(manifests, receipts, bases, draw(st.sets(st.integers(0, 15))).union(*manifests.values()))


@given(found=jobs(), keep=st.integers(1, 3))
def test_after_any_prefix_of_the_plan_recovery_finds_the_same_epochs_whole(found: Inventory, keep: int) -> None:
    names = plan(found, keep)
    before = lineage(found.manifests.keys(), found.bases)[::-1]
    safe = next((i for i, m in enumerate(before) if m in found.receipts), len(before))
    must_stay = before[: safe + keep]
    for length in range(len(names) + 1):
        gone = set(names[:length])
        left = [m for m in found.manifests if paths.manifest_name(m) not in gone]
        bases = {t: b for t, b in found.bases.items() if paths.base_name(t) not in gone}

        assert lineage(left, bases)[::-1][: len(must_stay)] == must_stay
        # Not only the retained ones: no manifest that is still there has lost a file or its receipt.
        for m in left:
            assert not [f for f in found.manifests[m] if paths.shared_name(f) in gone]
            assert paths.receipt_name(m) not in gone


@given(found=jobs(), keep=st.integers(1, 3))
def test_a_second_round_finds_nothing_to_do(found: Inventory, keep: int) -> None:
    gone = set(plan(found, keep))
    left = Inventory(
        manifests={m: f for m, f in found.manifests.items() if paths.manifest_name(m) not in gone},
        receipts=frozenset(r for r in found.receipts if paths.receipt_name(r) not in gone),
        bases={t: b for t, b in found.bases.items() if paths.base_name(t) not in gone},
        claims=frozenset(t for t in found.claims if paths.claim_name(t) not in gone),
        stored=frozenset(f for f in found.stored if paths.shared_name(f) not in gone),
    )

    assert plan(left, keep) == ()


# ---------------------------------------------------------------- with a storage


def job(storage: JobStorage, tmp_path: Path, epochs: int) -> None:
    """``epochs`` epochs of one term; each has a file of its own and one that all share."""
    manifest.publish(storage, Claim(job=JOB, term=1, host="h", pid=1, at=0))
    manifest.publish(storage, Base(job=JOB, term=1, resumed=None, reason="fresh", at=0))
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
    retention.retain(storage, JOB, 2, lambda: terms.check(storage, Term(1)))

    assert list(storage.list("manifests")) == [paths.manifest_name(e(n, 1)) for n in (3, 4)]
    assert list(storage.list("receipts")) == [paths.receipt_name(e(n, 1)) for n in (3, 4)]
    assert len(storage.list("shared")) == 3
    assert verify.verify_job(storage, JOB) == []


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
            manifest.publish(self, Claim(job=JOB, term=2, host="h", pid=2, at=0))
            self.new = self.upload(self._source, "new.rows")


@pytest.mark.parametrize(("when", "content"), [("listing", b"new"), ("deleting", b"of epoch 1")])
def test_a_driver_that_was_replaced_deletes_no_file_of_its_successor(
    tmp_path: Path, when: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that was there, is named no longer, and has just been found stored already: in no later batch."""
    monkeypatch.setattr(retention, "BATCH", 1)
    (tmp_path / "new").write_bytes(content)
    storage = TakenOver(tmp_path / "new", when)
    job(storage, tmp_path, 5)
    with pytest.raises(Fenced, match="replaced by term"):
        retention.retain(storage, JOB, 1, lambda: terms.check(storage, Term(1)))

    assert storage.new is not None
    storage.check(storage.new)


class Counting(MemoryStorage):
    """Notes what is deleted at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    def delete_all(self, names: Sequence[str]) -> None:
        self.batches.append(list(names))
        super().delete_all(names)


def test_who_owns_the_job_is_asked_once_a_batch_of_files_and_not_once_a_file(tmp_path: Path) -> None:
    storage, asked = Counting(), list[int]()
    job(storage, tmp_path, 30)
    retention.retain(storage, JOB, 1, lambda: asked.append(len(storage.batches)))

    assert [len(batch) for batch in storage.batches] == [29, 29, 29], "manifests, receipts, files"
    assert asked == [0, 2], "once the files are listed, and before the files are deleted"


def test_a_batch_is_no_longer_than_it_may_be_and_holds_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    names = ["manifests/1", "manifests/2", "manifests/3", "shared/4"]

    assert retention.batches(names) == [("manifests/1", "manifests/2"), ("manifests/3",), ("shared/4",)]


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


def test_verify_reports_a_manifest_that_is_not_there() -> None:
    problems = verify.verify_manifest(MemoryStorage(), MANIFEST.name, JOB)

    assert [p.object for p in problems] == [MANIFEST.name]
