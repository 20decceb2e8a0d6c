"""What a transaction's state and marker say together, where no broker can be made to say it in a test's time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kafka_eos.connectors.kafka.rpc.transaction_status import (
    MARKER_LIFETIME,
    KafkaCommittable,
    TransactionDescription,
    TransactionStatus,
    derive_status,
    expires_in,
    needs_marker,
)
from kafka_eos.core.errors import CorruptCheckpoint

OURS = KafkaCommittable(
    "job-1", 7, 3, 5, "uuid", "group", "topic", "id", 0, prepared_at=0, timeout_ms=60_000, term=1, cluster_id="here"
)
BY_V4 = replace(OURS, end_txn_version=4)
STORED = {
    "transactional_id": "job-1",
    "producer_id": 7,
    "producer_epoch": 3,
    "end_txn_version": 5,
    "uuid": "uuid",
    "marker_group": "group",
    "marker_topic": "topic",
    "marker_topic_id": "id",
    "marker_partition": 0,
    "prepared_at": 0,
    "timeout_ms": 60_000,
    "term": 1,
    "cluster_id": "here",
    "version": 1,
}
DAY = 24 * 3600.0
OPEN = TransactionDescription("Ongoing", 7, 3, 60_000, 1_000)
NEXT, AFTER_NEXT, BEFORE = (replace(OPEN, producer_epoch=epoch) for epoch in (4, 5, 2))
REUSED = replace(OPEN, producer_id=8)
ENDED_STATES = ("Empty", "CompleteAbort", "Dead")
PENDING_STATES = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def verdict(
    seen: TransactionDescription | None, marker: str | None = None, of: KafkaCommittable = OURS
) -> TransactionStatus:
    return derive_status(of, seen, marker, 0.0, True)


# ---------------------------------------------------------------- what is stored


def test_a_committable_is_stored_as_it_is_read() -> None:
    assert OURS.payload() == STORED
    assert {OURS, KafkaCommittable.from_payload(STORED)} == {OURS}
    assert KafkaCommittable.from_payload(STORED) == OURS
    assert KafkaCommittable.from_payload({key: value for key, value in STORED.items() if key != "version"}) == OURS


@pytest.mark.parametrize("changed", [{"producer_id": "7"}, {"more": 1}])
def test_what_is_no_committable_is_a_corrupt_checkpoint(changed: dict[str, int | str]) -> None:
    with pytest.raises(CorruptCheckpoint, match="cannot be read"):
        KafkaCommittable.from_payload({**STORED, **changed})


# ---------------------------------------------------------------- what the facts say


@pytest.mark.parametrize("current", [False, True])
@pytest.mark.parametrize("ours", [OURS, BY_V4])
@pytest.mark.parametrize("age", [0.0, 7 * DAY])
@pytest.mark.parametrize("seen", [None, OPEN, NEXT, REUSED, replace(OPEN, state="PrepareAbort")])
def test_a_marker_of_ours_proves_the_commit_whatever_else_is_said(
    ours: KafkaCommittable, seen: TransactionDescription | None, age: float, current: bool
) -> None:
    assert derive_status(ours, seen, "uuid", age, current) is TransactionStatus.COMMITTED


@pytest.mark.parametrize("marker", [None, "of another transaction"])
@pytest.mark.parametrize("ours", [OURS, BY_V4])
def test_what_is_open_under_our_id_and_epoch_is_prepared(ours: KafkaCommittable, marker: str | None) -> None:
    assert verdict(OPEN, marker, ours) is TransactionStatus.PREPARED


@pytest.mark.parametrize("seen", [None, NEXT, REUSED])
@pytest.mark.parametrize("current", [False, True])
def test_a_marker_that_may_be_deleted_with_its_topic_proves_nothing(
    seen: TransactionDescription | None, current: bool
) -> None:
    assert derive_status(OURS, seen, None, 0.0, current, deleted=True) is TransactionStatus.UNKNOWN
    assert derive_status(BY_V4, OPEN, None, 0.0, current, deleted=True) is TransactionStatus.UNKNOWN
    committed = replace(OPEN, state="CompleteCommit")
    assert derive_status(OURS, committed, None, 0.0, current, deleted=True) is TransactionStatus.COMMITTED


@pytest.mark.parametrize("seen", [BEFORE, NEXT, REUSED])
def test_what_another_producer_has_open_is_not_ours(seen: TransactionDescription) -> None:
    assert verdict(seen) is TransactionStatus.LOST


@pytest.mark.parametrize("state", ["PrepareCommit", "CompleteCommit"])
def test_a_commit_under_our_epoch_is_ours_and_with_v5_under_the_next_one(state: str) -> None:
    assert verdict(replace(OPEN, state=state)) is TransactionStatus.COMMITTED
    assert verdict(replace(OPEN, state=state), of=BY_V4) is TransactionStatus.COMMITTED
    assert verdict(replace(NEXT, state=state)) is TransactionStatus.COMMITTED
    newest = replace(OURS, end_txn_version=6)
    assert verdict(replace(NEXT, state=state), of=newest) is TransactionStatus.COMMITTED


@pytest.mark.parametrize("seen", [BEFORE, AFTER_NEXT, REUSED, replace(REUSED, producer_epoch=4)])
def test_a_commit_under_any_other_epoch_or_producer_proves_nothing(seen: TransactionDescription) -> None:
    assert verdict(replace(seen, state="CompleteCommit")) is TransactionStatus.LOST
    assert verdict(replace(seen, state="PrepareCommit")) is TransactionStatus.RETRY


def test_with_v4_a_commit_under_the_next_epoch_is_anothers() -> None:
    assert verdict(replace(NEXT, state="CompleteCommit"), of=BY_V4) is TransactionStatus.LOST
    assert verdict(replace(NEXT, state="PrepareCommit"), of=BY_V4) is TransactionStatus.RETRY


@pytest.mark.parametrize("state", PENDING_STATES)
def test_while_an_end_is_under_way_the_marker_may_still_come(state: str) -> None:
    assert verdict(replace(REUSED, state=state)) is TransactionStatus.RETRY
    assert derive_status(OURS, replace(REUSED, state=state), None, 7 * DAY, True) is TransactionStatus.RETRY


@pytest.mark.parametrize("seen", [None, *(replace(OPEN, state=state) for state in ENDED_STATES)])
def test_what_left_no_trace_is_lost_only_while_a_trace_would_be_there(seen: TransactionDescription | None) -> None:
    assert derive_status(OURS, seen, None, 0.0, True) is TransactionStatus.LOST
    assert derive_status(OURS, seen, "of another transaction", 6 * DAY - 1, True) is TransactionStatus.LOST
    assert derive_status(OURS, seen, None, 6 * DAY, True) is TransactionStatus.UNKNOWN
    for age in (0.0, 6 * DAY):  # a broker that was replaced knows nothing of it either
        assert derive_status(OURS, seen, None, age, False) is TransactionStatus.UNPROVEN


def test_the_limit_is_below_what_kafka_keeps_markers_for() -> None:
    assert MARKER_LIFETIME < 7 * DAY


# ---------------------------------------------------------------- whether the marker is asked for


def test_the_marker_is_needed_unless_v5_shows_our_transaction_open() -> None:
    assert not needs_marker(OURS, OPEN)
    assert not needs_marker(replace(OURS, end_txn_version=6), OPEN)
    assert needs_marker(BY_V4, OPEN), "a zombie may have opened this one under our id and epoch"
    assert needs_marker(OURS, None)
    for seen in (BEFORE, NEXT, REUSED, *(replace(OPEN, state=s) for s in (*ENDED_STATES, *PENDING_STATES))):
        assert needs_marker(OURS, seen)


# ---------------------------------------------------------------- how long it stays open


def test_a_prepared_transaction_expires_its_timeout_after_it_began() -> None:
    assert expires_in(OPEN, 1_000) == 60.0
    assert expires_in(OPEN, 60_999) == 0.001
    assert expires_in(OPEN, 61_001) == 0.0
    assert expires_in(replace(OPEN, started_at=0), 0) == 60.0


def test_a_transaction_without_timeout_or_without_a_beginning_never_expires() -> None:
    longest = 2**31 - 1
    assert expires_in(replace(OPEN, timeout_ms=longest), 10**15) == float("inf")
    assert expires_in(replace(OPEN, timeout_ms=longest - 1), 10**15) == 0.0
    assert expires_in(replace(OPEN, started_at=-1), 10**15) == float("inf")


def test_a_description_says_whose_transaction_it_is() -> None:
    assert str(OPEN) == "Ongoing under producer 7 epoch 3"
