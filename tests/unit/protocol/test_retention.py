"""What may go, and that a crash in the middle of deleting leaves whole whatever is still needed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol import recovery
from kafka_eos.protocol.lineage import lineage
from kafka_eos.protocol.retention import (
    DeleteBase,
    DeleteClaim,
    DeleteFile,
    DeleteManifest,
    DeleteReceipt,
    Deletion,
    DeletionBatch,
    Inventory,
    find_forgotten_epochs,
    plan_deletions,
    split_batches,
)


def e(epoch: int, term: int) -> EpochId:
    return EpochId(Epoch(epoch), Term(term))


def sha(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def facts(
    manifests: dict[EpochId, set[int]],
    receipts: set[EpochId],
    bases: dict[int, EpochId | None],
    stored: set[int] | None = None,
    held: Collection[int] = (),
    claims: Collection[int] = (),
) -> Inventory:
    named = set().union(*manifests.values()) if stored is None else stored
    return Inventory(
        manifests={m: frozenset(map(sha, numbers)) for m, numbers in manifests.items()},
        receipts=frozenset(receipts),
        bases={Term(t): base for t, base in bases.items()},
        claims=frozenset(Term(t) for t in claims or bases),
        stored=frozenset(map(sha, named)),
        pinned=frozenset(map(sha, held)),
    )


def test_the_epoch_before_stays_until_the_receipt() -> None:
    manifests = {e(1, 1): {1}, e(2, 1): {2}}

    assert plan_deletions(facts(manifests, {e(1, 1)}, {1: None}), keep=1) == ()
    assert plan_deletions(facts(manifests, {e(1, 1), e(2, 1)}, {1: None}), keep=1) == (
        DeleteManifest(e(1, 1)),
        DeleteReceipt(e(1, 1)),
        DeleteFile(sha(1)),
    )


def test_what_is_forgotten_is_what_counted_and_goes_oldest_first() -> None:
    """Term 2 went on from epoch 2, so epoch 3 of term 1 never happened."""
    counted, never = [e(1, 1), e(2, 1), e(3, 2), e(4, 2)], e(3, 1)
    found = facts({m: {m.epoch.n} for m in [*counted, never]}, set(counted), {1: None, 2: e(2, 1)})
    going = plan_deletions(found, keep=1)

    assert DeleteManifest(never) in going
    assert find_forgotten_epochs(found, going) == counted[:3]
    assert find_forgotten_epochs(found, [each for each in going if isinstance(each, DeleteReceipt)]) == []


def test_nothing_goes_before_the_first_receipt() -> None:
    assert plan_deletions(facts({e(0, 1): {1}, e(1, 1): {2}}, set(), {1: None}, {1, 2, 3}), keep=1) == ()


def test_less_than_one_epoch_cannot_be_kept() -> None:
    with pytest.raises(Bug, match="^retention must keep at least one epoch, not 0$"):
        plan_deletions(facts({}, set(), {}), keep=0)


def test_the_base_stays_until_the_new_term_has_a_receipt() -> None:
    manifests, bases = {e(5, 1): {1}, e(6, 2): {2}}, {1: None, 2: e(5, 1)}

    assert plan_deletions(facts(manifests, {e(5, 1)}, bases), keep=1) == ()
    assert DeleteManifest(e(5, 1)) in plan_deletions(facts(manifests, {e(5, 1), e(6, 2)}, bases), keep=1)


def test_a_zombies_manifest_goes_and_with_it_only_its_own_files() -> None:
    manifests = {e(5, 1): {1}, e(6, 1): {1, 9}, e(6, 2): {1, 2}}

    assert plan_deletions(facts(manifests, {e(5, 1), e(6, 2)}, {1: None, 2: e(5, 1)}), keep=2) == (
        DeleteManifest(e(6, 1)),
        DeleteFile(sha(9)),
    )


def test_the_highest_number_stays_known_until_a_later_epoch_counts() -> None:
    """Epoch 6 was revoked. If the next start did not see that there was one, it would give the number again."""
    manifests, bases = {e(5, 1): {1}, e(6, 1): {2}}, {1: None, 2: e(5, 1)}

    assert plan_deletions(facts(manifests, {e(5, 1)}, bases), keep=1) == ()
    manifests[e(7, 2)] = {3}
    assert DeleteManifest(e(6, 1)) in plan_deletions(facts(manifests, {e(5, 1), e(7, 2)}, bases), keep=1)


def test_files_that_are_held_and_files_of_a_newer_term_stay() -> None:
    manifests = {e(2, 1): {1}, e(2, 2): {2}}
    found = facts(manifests, {e(2, 1)}, {1: None}, {1, 2, 3, 4}, held={3})

    assert plan_deletions(found, keep=1) == (DeleteFile(sha(4)),)


def test_old_terms_go_with_their_last_manifest() -> None:
    manifests = {e(1, 1): {1}, e(2, 2): {2}, e(3, 3): {3}}
    found = plan_deletions(facts(manifests, set(manifests), {1: None, 2: e(1, 1), 3: e(2, 2)}), keep=2)

    assert [each for each in found if isinstance(each, DeleteBase | DeleteClaim)] == [
        DeleteBase(Term(1)),
        DeleteClaim(Term(1)),
    ]


def test_a_claim_that_fences_the_newest_term_stays() -> None:
    """It is what a supervisor that sleeps looks for, whether or not the claim has become a base."""
    found = plan_deletions(
        facts({e(1, 1): {1}, e(9, 4): {2}}, {e(1, 1), e(9, 4)}, {1: None, 4: e(1, 1)}, claims=range(1, 7)), 1
    )

    assert [each for each in found if isinstance(each, DeleteClaim)] == [DeleteClaim(Term(t)) for t in (1, 2, 3)]


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
    stored = draw(st.sets(st.integers(0, 15))).union(*manifests.values())
    claims = range(1, max(bases) + draw(st.integers(1, 3)))
    return facts(manifests, receipts, bases, stored, draw(st.sets(st.integers(0, 17), max_size=3)), claims)


def without(found: Inventory, gone: Collection[Deletion]) -> Inventory:
    """What is left."""
    return Inventory(
        manifests={m: files for m, files in found.manifests.items() if DeleteManifest(m) not in gone},
        receipts=frozenset(r for r in found.receipts if DeleteReceipt(r) not in gone),
        bases={t: b for t, b in found.bases.items() if DeleteBase(t) not in gone},
        claims=frozenset(t for t in found.claims if DeleteClaim(t) not in gone),
        stored=frozenset(f for f in found.stored if DeleteFile(f) not in gone),
        pinned=found.pinned,
    )


def names(found: Inventory) -> recovery.RecordListing:
    """As recovery sees it."""
    return recovery.RecordListing(found.claims, found.bases, frozenset(found.manifests), found.receipts)


@given(found=jobs(), keep=st.integers(1, 3))
def test_after_any_prefix_of_the_plan_recovery_finds_the_same_epochs_whole(found: Inventory, keep: int) -> None:
    objects = plan_deletions(found, keep)
    before = lineage(found.manifests.keys(), found.bases)[::-1]
    safe = next((i for i, m in enumerate(before) if m in found.receipts), len(before))
    must_stay = before[: safe + keep]
    for length in range(len(objects) + 1):
        gone = set(objects[:length])
        left = without(found, gone)

        assert lineage(left.manifests, left.bases)[::-1][: len(must_stay)] == must_stay
        # Not only the retained ones: no manifest that is still there has lost a file or its receipt.
        for m in left.manifests:
            assert not [f for f in found.manifests[m] if DeleteFile(f) in gone]
            assert DeleteReceipt(m) not in gone


@given(found=jobs(), keep=st.integers(1, 3))
def test_after_any_prefix_of_the_plan_the_next_term_takes_up_the_job_where_it_would_have(
    found: Inventory, keep: int
) -> None:
    """From the same epoch, with the same one to go back to, under the same number, and after all older terms."""
    before, mine = names(found), max(found.claims).next()
    objects = plan_deletions(found, keep)
    for length in range(len(objects) + 1):
        after = names(without(found, objects[:length]))

        assert recovery.next_epoch(after) == recovery.next_epoch(before)
        assert max(after.claims) == max(before.claims)
        assert recovery.resolve(after, mine) == recovery.resolve(before, mine)
        assert max(after.bases.items()) == max(before.bases.items()), "what the newest term goes on from"


@given(found=jobs(), keep=st.integers(1, 3))
def test_a_file_that_is_held_or_named_by_what_stays_never_goes(found: Inventory, keep: int) -> None:
    objects = plan_deletions(found, keep)
    needed = found.pinned.union(*without(found, objects).manifests.values())

    assert needed.isdisjoint(each.sha256 for each in objects if isinstance(each, DeleteFile))


@given(found=jobs(), keep=st.integers(1, 3))
def test_a_second_round_finds_nothing_to_do(found: Inventory, keep: int) -> None:
    assert plan_deletions(without(found, plan_deletions(found, keep)), keep) == ()


@given(found=jobs(), keep=st.integers(1, 3), data=st.data())
def test_a_round_that_follows_a_crash_does_the_rest(found: Inventory, keep: int, data: st.DataObject) -> None:
    objects = plan_deletions(found, keep)
    done = objects[: data.draw(st.integers(0, len(objects)))]

    assert plan_deletions(without(found, done), keep) == objects[len(done) :]


# ---------------------------------------------------------------- batches


def test_a_batch_is_no_longer_than_it_may_be_and_holds_one_kind() -> None:
    objects = [
        *(DeleteManifest(e(n, 1)) for n in range(3)),
        DeleteBase(Term(1)),
        DeleteClaim(Term(1)),
        DeleteFile(sha(1)),
    ]

    assert split_batches(objects, 2) == [
        DeletionBatch((objects[0], objects[1])),
        DeletionBatch((objects[2],)),
        DeletionBatch((objects[3],)),
        DeletionBatch((objects[4],)),
        DeletionBatch((objects[5],)),
    ]


@pytest.mark.parametrize(
    ("each", "asks"),
    [
        (DeleteManifest(e(1, 1)), False),
        (DeleteReceipt(e(1, 1)), False),
        (DeleteBase(Term(1)), False),
        (DeleteClaim(Term(1)), False),
        (DeleteFile(sha(1)), True),
    ],
)
def test_only_a_file_can_be_one_that_a_newer_term_has_found_stored(each: Deletion, asks: bool) -> None:
    assert DeletionBatch((each,)).needs_ownership_check is asks
