"""Which epoch a restarted job continues, whatever is found in the storage."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.abc.committer import CommitStatus, Probe
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.commit import CommitAuthorized, EpochRevoked, EpochStuck
from kafka_eos.protocol.lineage import terms_without_base
from kafka_eos.protocol.recovery import (
    NewestCommitted,
    NewestUncommitted,
    NoDecidedEpoch,
    RecordListing,
    TermSuperseded,
    decide_unfinished,
    decided_epochs,
    find_missing_records,
    newest_committed,
    next_epoch,
    resolve,
)


def e(epoch: int, term: int) -> EpochId:
    return EpochId(Epoch(epoch), Term(term))


def facts(
    claims: set[int], bases: dict[int, EpochId | None], manifests: set[EpochId], receipts: set[EpochId]
) -> RecordListing:
    return RecordListing(
        frozenset(map(Term, claims)),
        {Term(n): base for n, base in bases.items()},
        frozenset(manifests),
        frozenset(receipts),
    )


def test_a_job_that_never_decided_anything_starts_fresh() -> None:
    assert resolve(facts({1}, {}, set(), set()), Term(1)) == NoDecidedEpoch()
    assert resolve(facts({1, 2}, {1: None}, set(), set()), Term(2)) == NoDecidedEpoch()


def test_a_newer_claim_supersedes() -> None:
    assert resolve(facts({1, 2}, {}, set(), set()), Term(1)) == TermSuperseded(Term(2))


def test_the_newest_committed_epoch_is_restored() -> None:
    found = facts({1, 2}, {1: None}, {e(0, 1), e(1, 1)}, {e(0, 1), e(1, 1)})

    assert resolve(found, Term(2)) == NewestCommitted(e(1, 1))


def test_a_decided_epoch_without_receipt_is_unfinished() -> None:
    found = facts({1, 2}, {1: None}, {e(0, 1), e(1, 1)}, {e(0, 1)})

    assert resolve(found, Term(2)) == NewestUncommitted(e(1, 1), previous=e(0, 1))


def test_a_manifest_that_a_zombie_published_after_the_takeover_does_not_count() -> None:
    # Term 2 resumed from epoch 1; term 1 woke up and published epoch 2 all the same.
    found = facts({1, 2, 3}, {1: None, 2: e(1, 1)}, {e(1, 1), e(2, 1)}, {e(1, 1)})

    assert resolve(found, Term(3)) == NewestCommitted(e(1, 1))


def test_a_revoked_epoch_does_not_count_any_more() -> None:
    found = facts({1, 2, 3}, {1: None, 2: e(3, 1)}, {e(3, 1), e(4, 1), e(5, 2)}, {e(3, 1), e(5, 2)})

    assert decided_epochs(found) == (e(3, 1), e(5, 2))


def test_what_the_newest_base_names_counts_even_if_its_manifest_is_gone() -> None:
    """Whoever goes on must notice the loss, and not begin earlier."""
    assert decided_epochs(facts({1, 2}, {1: None, 2: e(3, 1)}, {e(2, 1)}, set())) == (e(2, 1), e(3, 1))


def test_the_epoch_before_is_known_whatever_term_has_decided_it() -> None:
    found = facts({1, 2, 3}, {1: None, 2: e(3, 1)}, {e(2, 1), e(3, 1), e(4, 1)}, set())

    assert resolve(found, Term(3)) == NewestUncommitted(e(3, 1), previous=e(2, 1))


def test_terms_between_the_newest_base_and_ones_own_could_still_write_another_history() -> None:
    claims, bases = list(map(Term, (1, 2, 3, 4, 5, 6))), [Term(2), Term(4)]

    assert terms_without_base(claims, bases, Term(6)) == (Term(5),)
    assert terms_without_base(claims, bases, Term(4)) == (Term(3),)
    assert terms_without_base(claims, [], Term(3)) == (Term(1), Term(2))


def test_what_is_finished_is_the_newest_epoch_that_counts_and_has_a_receipt_and_a_manifest() -> None:
    three = {e(0, 1), e(1, 1), e(2, 1)}

    assert newest_committed(facts({1, 2}, {1: None}, three, {e(0, 1), e(1, 1)})) == e(1, 1)
    assert newest_committed(facts({1, 2}, {1: None}, three - {e(1, 1)}, {e(0, 1), e(1, 1)})) == e(0, 1)
    assert newest_committed(facts({1, 2, 3}, {1: None, 2: e(0, 1)}, three, three)) == e(0, 1)
    assert newest_committed(facts({1, 2}, {1: None}, three, set())) is None


def test_a_claim_without_base_changes_nothing() -> None:
    found = facts({1, 2, 3}, {1: None}, {e(1, 1)}, {e(1, 1)})

    assert resolve(found, Term(3)) == NewestCommitted(e(1, 1))


def test_epoch_numbers_are_never_used_twice_even_after_a_revocation() -> None:
    assert next_epoch(facts({1}, {}, set(), set())) == Epoch(0)
    assert next_epoch(facts({1, 2}, {2: e(3, 1)}, {e(3, 1), e(4, 1)}, set())) == Epoch(5)


def test_nothing_is_missed_of_what_retention_leaves() -> None:
    found = facts({1, 2}, {1: None, 2: e(3, 1)}, {e(3, 1), e(4, 2), e(5, 2)}, {e(3, 1), e(4, 2)})

    assert find_missing_records(found) == ((), ())
    assert find_missing_records(facts({1}, {}, set(), set())) == ((), ())


def test_whoever_has_published_has_had_a_base() -> None:
    """Terms 3 and 4 are newer than the newest base. Of older ones nothing follows."""
    manifests, receipts = {e(1, 1), e(3, 2), e(4, 4)}, {e(3, 2), e(4, 3)}

    assert find_missing_records(facts({4}, {2: None}, manifests, receipts)) == ((Term(3), Term(4)), ())
    assert find_missing_records(facts({1}, {}, {e(0, 1)}, set())) == ((Term(1),), ())


def test_a_receipt_of_the_newest_base_is_not_older_than_the_manifests_that_are_left() -> None:
    """Epochs 6 and 7 were committed, and older manifests are there: retention takes the oldest first."""
    receipts = {e(2, 2), e(4, 2), e(5, 2), e(6, 2), e(7, 2), e(8, 1)}
    bases: dict[int, EpochId | None] = {1: None, 2: e(1, 1)}

    assert find_missing_records(facts({2}, bases, {e(3, 2), e(5, 2), e(9, 1)}, receipts)) == ((), (e(6, 2), e(7, 2)))
    assert find_missing_records(facts({2}, bases, {e(9, 1)}, {e(0, 2), e(1, 2)})) == ((), (e(0, 2), e(1, 2))), (
        "none is left"
    )


PREPARED, COMMITTED = Probe(CommitStatus.PREPARED, "p"), Probe(CommitStatus.COMMITTED, "c")


def test_damaged_state_is_revoked_while_nothing_is_visible() -> None:
    decision = decide_unfinished(NewestUncommitted(e(4, 1), e(3, 1)), [PREPARED], ["file x: checksum"], margin=10)

    assert decision == EpochRevoked(e(4, 1), "file x: checksum")


@pytest.mark.parametrize("probes", permutations([COMMITTED, PREPARED, PREPARED]))
def test_damaged_state_does_not_keep_the_rest_from_its_commit_once_something_is_visible(
    probes: tuple[Probe, ...],
) -> None:
    """There is no way back then, and what is prepared would expire while somebody restores the file."""
    assert isinstance(
        decide_unfinished(NewestUncommitted(e(4, 1), e(3, 1)), probes, ["file x"], margin=10), CommitAuthorized
    )


def test_damaged_state_and_lost_output_stop_once_something_is_visible() -> None:
    lost = Probe(CommitStatus.LOST, "l")

    assert isinstance(
        decide_unfinished(NewestUncommitted(e(4, 1), e(3, 1)), [COMMITTED, lost], ["file x"], margin=10), EpochStuck
    )


def test_damaged_state_stops_if_nobody_can_tell_whether_something_is_visible() -> None:
    unknown = Probe(CommitStatus.UNKNOWN, "u")
    decision = decide_unfinished(NewestUncommitted(e(4, 1), e(3, 1)), [PREPARED, unknown], ["file x"], margin=10)

    assert (
        isinstance(decision, EpochStuck)
        and "file x" in decision.reason
        and "whether this was committed: u" in decision.reason
    )


def test_the_first_epoch_is_finished_like_any_other() -> None:
    assert isinstance(decide_unfinished(NewestUncommitted(e(0, 1), None), [PREPARED], [], margin=10), CommitAuthorized)


@pytest.mark.parametrize("damage", [[], ["file x"]])
def test_there_is_no_way_back_from_the_first_epoch(damage: list[str]) -> None:
    lost = Probe(CommitStatus.LOST, "l")

    assert isinstance(decide_unfinished(NewestUncommitted(e(0, 1), None), [lost], damage, margin=10), EpochStuck)


def test_an_undamaged_epoch_is_committed() -> None:
    assert isinstance(
        decide_unfinished(NewestUncommitted(e(4, 1), e(3, 1)), [PREPARED], [], margin=10), CommitAuthorized
    )


ids = st.builds(e, st.integers(0, 6), st.integers(1, 4))


@given(st.sets(ids), st.sets(ids), st.dictionaries(st.integers(1, 4), st.none() | ids))
def test_only_the_newest_based_term_and_its_base_are_ever_resumed(
    manifests: set[EpochId], receipts: set[EpochId], bases: dict[int, EpochId | None]
) -> None:
    bases = {term: base for term, base in bases.items() if base is None or base.term < Term(term)}
    found = facts({9}, bases, manifests, receipts)

    resumption = resolve(found, Term(9))

    if isinstance(resumption, NewestCommitted | NewestUncommitted):
        owner = max(bases)
        assert resumption.newest.term == Term(owner) or resumption.newest == bases[owner]
    if isinstance(resumption, NewestCommitted):
        assert resumption.newest in receipts
