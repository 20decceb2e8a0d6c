"""What a coordinator's answers mean for one prepared transaction.

Pure. One producer instance carries one transaction, so a (producer id, epoch) names one transaction for ever.

    asked of               answer or state                               verdict
    EndTxn                 NONE                                          COMMITTED
                           any refusal                                   only the facts below can tell
    marker                 our uuid                                      COMMITTED, whatever else is said
    DescribeTransactions   Ongoing, our id and epoch                     PREPARED
                           Prepare- or CompleteCommit, our epoch*        COMMITTED
                           Prepare*, not ours to read                    RETRY: the marker is still pending
                           anything else, and the marker is not there    LOST (UNKNOWN once the marker may
                                                                         have expired)

    * with EndTxn v5 the coordinator raises the epoch by one when it ends a transaction.

Rule: being fenced does not mean that the transaction was aborted; only the marker, an offset that became
visible with that very transaction, is definitive then.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.json_values import Json

NEVER: Final = 2147483647
"""A transaction timeout that the coordinator never acts on, in milliseconds."""

MARKER_LIFE: Final = 6 * 24 * 3600.0
"""Seconds for which a marker is certainly kept: a day less than offsets.retention.minutes by default."""


class Transaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The committable: all that another process needs to commit one prepared transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    end_txn_version: int
    uuid: str
    marker_group: str
    marker_topic: str
    marker_partition: int
    prepared_at: int
    """Milliseconds since the Unix epoch, by the writer's clock."""
    timeout_ms: int
    term: int
    version: int = 1

    def payload(self) -> Mapping[str, Json]:
        found: Mapping[str, Json] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_payload(cls, payload: Mapping[str, Json]) -> Transaction:
        """CorruptCheckpoint if it is not one."""
        try:
            return msgspec.convert(payload, cls)
        except msgspec.ValidationError as error:
            raise CorruptCheckpoint(f"a manifest holds a Kafka committable that cannot be read: {error}") from error


class Verdict(enum.Enum):
    """What is known about one prepared transaction."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    LOST = "lost"
    UNKNOWN = "unknown"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Description:
    """DescribeTransactions of one transactional id."""

    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_at: int
    """Milliseconds since the Unix epoch by the broker's clock; -1 if nothing is open."""

    def __str__(self) -> str:
        return f"{self.state} under producer {self.producer_id} epoch {self.producer_epoch}"


_DECIDED: Final = ("PrepareCommit", "CompleteCommit")
_PENDING: Final = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def judged(ours: Transaction, seen: Description | None, marker: str | None, age: float) -> Verdict:
    """What the coordinator's state and the marker say together.

    ``seen`` is None if the coordinator does not know the id; ``marker`` is the metadata found at the marker's
    place, read *after* ``seen``; ``age`` is how many seconds ago the transaction was prepared.
    """
    if marker == ours.uuid:
        return Verdict.COMMITTED
    if seen is not None:
        if _is_open(ours, seen):
            return Verdict.PREPARED
        if seen.producer_id == ours.producer_id and seen.state in _DECIDED and seen.producer_epoch in _ends_at(ours):
            return Verdict.COMMITTED
        if seen.state in _PENDING:
            return Verdict.RETRY
    return Verdict.LOST if age < MARKER_LIFE else Verdict.UNKNOWN


def needs_marker(ours: Transaction, seen: Description | None) -> bool:
    """Whether ``judged`` can go by the state alone. Not with v4: a zombie may have reused our id and epoch."""
    return ours.end_txn_version < 5 or seen is None or not _is_open(ours, seen)


def _is_open(ours: Transaction, seen: Description) -> bool:
    return (seen.state, seen.producer_id, seen.producer_epoch) == ("Ongoing", ours.producer_id, ours.producer_epoch)


def _ends_at(ours: Transaction) -> tuple[int, ...]:
    """Epochs that the coordinator may show once it has committed ``ours``."""
    if ours.end_txn_version >= 5:
        return (ours.producer_epoch, ours.producer_epoch + 1)
    return (ours.producer_epoch,)


def expires_in(seen: Description, now_ms: int) -> float:
    """Seconds until the coordinator aborts an open transaction by itself. The clocks of both hosts matter."""
    if seen.timeout_ms >= NEVER or seen.started_at < 0:
        return float("inf")
    return max(0.0, (seen.started_at + seen.timeout_ms - now_ms) / 1000)


def timeout_of(seen: Description) -> float:
    """Seconds after which the coordinator aborts a transaction that is still open."""
    return float("inf") if seen.timeout_ms >= NEVER else seen.timeout_ms / 1000
