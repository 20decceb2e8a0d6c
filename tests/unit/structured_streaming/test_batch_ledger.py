"""The records of a query: which attempts at which batches they name, in which order, and after a failed request."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos.abc.committer import CommitOutcome
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.structured_streaming.batch_ledger import BatchLedger, PreparedBatch

NAME = "daily-totals"
PUBLISHED = [(1, 2), (0, 1), (2, 3), (1, 1), (2, 1)]
"""Batches and terms, in no order."""


class FailingStorage(LocalStorage):
    """Refuses a deletion after ``left`` of them."""

    left = 1_000

    def delete(self, name: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(name)
        super().delete(name)


@pytest.fixture
def storage(tmp_path: Path) -> FailingStorage:
    return FailingStorage(tmp_path)


@pytest.fixture
def ledger(storage: FailingStorage) -> BatchLedger:
    ledger = BatchLedger(storage, NAME)
    for batch, term in PUBLISHED:
        ledger.publish(attempt(ledger, batch, term))
    return ledger


def attempt(ledger: BatchLedger, batch: int, term: int) -> PreparedBatch:
    return PreparedBatch(
        job=ledger.job, batch=batch, term=term, created_at=1, scope="kafka:a", records=term, digest=0, transactions=()
    )


def name(batch: int, term: int) -> EpochId:
    return EpochId(Epoch(batch), Term(term))


def commit(ledger: BatchLedger, *attempts: tuple[int, int]) -> None:
    for batch, term in attempts:
        ledger.write_receipt(attempt(ledger, batch, term), [CommitOutcome.COMMITTED])


def read_again(ledger: BatchLedger) -> BatchLedger:
    again = BatchLedger(ledger.storage, NAME)
    assert again.batches() == [], "it is empty until it is refreshed"
    again.refresh()
    return again


def test_attempts_are_those_of_their_batch_in_the_order_of_terms(ledger: BatchLedger) -> None:
    commit(ledger, (1, 1), (1, 2), (2, 1))

    for each in (ledger, read_again(ledger)):
        assert each.job == ledger.job
        assert each.batches() == [0, 1, 2]
        assert [each.attempts(batch) for batch in range(4)] == [
            [name(0, 1)], [name(1, 1), name(1, 2)], [name(2, 1), name(2, 3)], []
        ]  # fmt: skip
        assert each.list_committed() == {1, 2}
        assert [each.load_committed(batch).term for batch in (1, 2)] == [2, 1]


def test_an_attempt_that_was_withdrawn_is_gone_and_the_others_are_not(ledger: BatchLedger) -> None:
    ledger.withdraw(attempt(ledger, 1, 1))

    for each in (ledger, read_again(ledger)):
        assert each.attempts(1) == [name(1, 2)]
        assert each.batches() == [0, 1, 2]
        assert each.find(name(1, 1)) is None and each.find(name(1, 2)) is not None
    with pytest.raises(CorruptCheckpoint, match="is missing, although its receipt exists"):
        ledger.load(name(1, 1))


def test_an_attempt_is_published_once_and_stays_known_while_it_cannot_be_withdrawn(
    ledger: BatchLedger, storage: FailingStorage
) -> None:
    with pytest.raises(FileExistsError):
        ledger.publish(attempt(ledger, 1, 1))
    assert ledger.attempts(1) == [name(1, 1), name(1, 2)]

    storage.left = 0
    with pytest.raises(OSError, match="manifests"):
        ledger.withdraw(attempt(ledger, 1, 1))
    assert ledger.attempts(1) == [name(1, 1), name(1, 2)]


def test_a_receipt_that_is_there_is_that_of_the_query(ledger: BatchLedger, tmp_path: Path) -> None:
    commit(ledger, (1, 1), (1, 1))
    assert ledger.list_committed() == {1}

    (tmp_path / paths.receipt_name(name(0, 1))).write_bytes(b"{}")
    with pytest.raises(CorruptCheckpoint):
        commit(ledger, (0, 1))
    assert ledger.list_committed() == {1}


@pytest.mark.limits(settled_batches_kept=1)
@pytest.mark.parametrize("left", range(7))
def test_batches_that_are_forgotten_in_part_never_look_undecided(
    ledger: BatchLedger, storage: FailingStorage, left: int
) -> None:
    commit(ledger, *PUBLISHED)
    storage.left = left

    if left < 6:
        with pytest.raises(OSError, match=f"{paths.RECEIPTS}|{paths.MANIFESTS}"):
            ledger.prune(2)
        assert {*map(paths.parse_manifest_name, storage.list(paths.MANIFESTS))} <= {
            *map(paths.parse_receipt_name, storage.list(paths.RECEIPTS))
        }
        assert read_again(ledger).attempts(2) == [name(2, 1), name(2, 3)]
        storage.left = 1_000
    ledger.prune(2)

    assert [sorted(storage.list(kind)) for kind in (paths.MANIFESTS, paths.RECEIPTS)] == [
        sorted(map(of, (name(2, 1), name(2, 3)))) for of in (paths.manifest_name, paths.receipt_name)
    ]
    assert (ledger.batches(), ledger.list_committed()) == ([2], {2})


def test_a_checkpoint_is_that_of_one_query_whose_name_has_room_for_a_suffix(storage: FailingStorage) -> None:
    job = BatchLedger(storage, NAME).job

    assert BatchLedger(storage, NAME).job == job
    assert job.rpartition("-")[0] == NAME
    with pytest.raises(ConfigError, match=f"belongs to the query '{NAME}', not to 'daily'"):
        BatchLedger(storage, "daily")
    with pytest.raises(ConfigError, match="with its suffix of nine characters"):
        BatchLedger(LocalStorage(storage.root / "other"), "x" * 72)
