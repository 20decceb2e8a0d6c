"""A supervisor that sleeps between its look at the store and its base record cannot write another history."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos.coordination import terms
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.recovery import NewestUncommitted, RecordListing, TermSuperseded, decided_epochs, resolve
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage

JOB = "orders"


@pytest.fixture
def store(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / JOB)


def known(facts: RecordListing, *epochs: EpochId) -> RecordListing:
    """The same, with these manifests: what they hold does not matter here."""
    return RecordListing(facts.claims, facts.bases, frozenset(epochs), frozenset())


def test_who_finishes_a_decided_epoch_and_dies_before_saying_so_is_not_contradicted(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publishes epoch 1 while B sleeps; C finishes it and dies; B wakes up, and would go on from epoch 0."""
    a = terms.claim(store, JOB, Term(0))
    terms.write_base(store, JOB, a, None, "first start")
    zero, one = EpochId(Epoch(0), a), EpochId(Epoch(1), a)
    gather = terms.list_records
    monkeypatch.setattr(terms, "list_records", lambda storage, job: known(gather(storage, job), zero))
    b = terms.claim(store, JOB, Term(0))
    seen_by_b = terms.close_older_terms(store, JOB, b)
    assert decided_epochs(seen_by_b) == (zero,)

    monkeypatch.setattr(terms, "list_records", lambda storage, job: known(gather(storage, job), zero, one))
    c = terms.claim(store, JOB, Term(0))
    seen_by_c = terms.close_older_terms(store, JOB, c)
    assert resolve(seen_by_c, c) == NewestUncommitted(one, previous=zero), "the way back is still known"

    with pytest.raises(Fenced, match="replaced by term 3"):
        terms.write_base(store, JOB, b, zero, "what it had seen")
    d = terms.claim(store, JOB, Term(0))
    assert resolve(terms.close_older_terms(store, JOB, d), d) == NewestUncommitted(one, previous=zero)
    with pytest.raises(Fenced, match="replaced by term 4"):
        terms.write_base(store, JOB, c, one, "finished")


def test_one_that_is_replaced_itself_closes_nothing(store: LocalStorage) -> None:
    first, second, _third = (terms.claim(store, JOB, Term(0)) for _ in range(3))

    found = terms.close_older_terms(store, JOB, second)

    assert isinstance(resolve(found, second), TermSuperseded)
    assert terms.list_records(store, JOB).bases == {}
    terms.close_older_terms(store, JOB, _third)
    assert terms.list_records(store, JOB).bases == {first: None, second: None}


def test_a_base_record_that_was_removed_is_not_made_up(store: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    first = terms.claim(store, JOB, Term(0))
    gather = terms.list_records
    monkeypatch.setattr(
        terms, "list_records", lambda storage, job: known(gather(storage, job), EpochId(Epoch(0), first))
    )
    second = terms.claim(store, JOB, Term(0))

    assert terms.find_missing(terms.close_older_terms(store, JOB, second)) == [paths.base_name(first)]
    assert gather(store, JOB).bases == {}


def test_a_base_record_that_is_there_without_a_newer_term_is_an_outage_and_no_successor(store: LocalStorage) -> None:
    """The store has taken it, and its answer was lost."""
    term = terms.claim(store, JOB, Term(0))
    terms.write_base(store, JOB, term, None, "first start")

    with pytest.raises(FileExistsError):
        terms.write_base(store, JOB, term, None, "first start")
