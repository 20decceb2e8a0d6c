"""The status of one prepared transaction, derived from a coordinator's responses.

Pure. One producer instance runs one transaction, so a (producer id, epoch) identifies one transaction forever.

    source                  response or state                      status
    EndTxn                  NONE                                   COMMITTED
                            any rejection                          only the facts below can decide
    marker                  our uuid                               COMMITTED, whatever else is reported
    DescribeTransactions    Ongoing, our id and epoch              PREPARED
                            Prepare- or CompleteCommit, our epoch* COMMITTED
                            Prepare*, of another transaction       RETRY: the marker is still pending
                            anything else, and no marker           UNPROVEN, unless both coordinators
                                                                   proved that they are current: LOST
                                                                   (UNKNOWN once the marker may have
                                                                   expired, or its topic was deleted
                                                                   or recreated)

    * with EndTxn v5 the coordinator raises the epoch by one when it ends a transaction.

Rule: being fenced does not mean that the transaction was aborted. Then only the marker is definitive: an offset that
became visible with this very transaction. An unknown transaction proves something only if the broker is current.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.json_values import Json

NEVER: Final = 2147483647
"""A transaction timeout that the coordinator never acts on, in milliseconds."""

MARKER_LIFETIME: Final = 6 * 24 * 3600.0
"""Seconds for which a marker is certainly kept: a day less than the default of offsets.retention.minutes."""


class KafkaCommittable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a Kafka committable: one prepared transaction and its marker."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    end_txn_version: int
    uuid: str
    marker_group: str
    marker_topic: str
    marker_topic_id: str
    marker_partition: int
    prepared_at: int
    """Milliseconds since the Unix epoch, by the writer's clock."""
    timeout_ms: int
    term: int
    cluster_id: str
    version: int = 1

    def payload(self) -> Mapping[str, Json]:
        found: Mapping[str, Json] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_payload(cls, payload: Mapping[str, Json]) -> KafkaCommittable:
        """Parse a payload. Raise CorruptCheckpoint if it is not valid."""
        try:
            return msgspec.convert(payload, cls)
        except msgspec.ValidationError as error:
            raise CorruptCheckpoint(f"a manifest holds a Kafka committable that cannot be read: {error}") from error


class TransactionStatus(enum.Enum):
    """The status of one prepared transaction.

    RETRY: the coordinator is still ending it. UNPROVEN: the brokers do not know it, but may have been replaced.
    """

    PREPARED = "prepared"
    COMMITTED = "committed"
    LOST = "lost"
    UNKNOWN = "unknown"
    RETRY = "retry"
    UNPROVEN = "unproven"


class TransactionDescription(Struct, frozen=True):
    """The DescribeTransactions result for one transactional id."""

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


def derive_status(
    prepared: KafkaCommittable,
    seen: TransactionDescription | None,
    marker: str | None,
    age: float,
    current: bool,
    deleted: bool = False,
) -> TransactionStatus:
    """Return the status, from the coordinator's state and the marker.

    ``seen`` is None if the coordinator does not know the id. ``marker`` is the metadata of the marker's offset, read
    *after* ``seen``. ``age`` is the seconds since the transaction was prepared. ``current``: both coordinators have
    proved that they were not replaced. ``deleted``: the marker was needed, and its topic was deleted or recreated, so
    that the marker may have been deleted with it.
    """
    if marker == prepared.uuid:
        return TransactionStatus.COMMITTED
    if seen is not None:
        if _is_open(prepared, seen):
            return TransactionStatus.UNKNOWN if deleted else TransactionStatus.PREPARED
        if (
            seen.producer_id == prepared.producer_id
            and seen.state in _DECIDED
            and seen.producer_epoch in _ends_at(prepared)
        ):
            return TransactionStatus.COMMITTED
        if seen.state in _PENDING:
            return TransactionStatus.RETRY
    if deleted:
        return TransactionStatus.UNKNOWN
    if not current:
        return TransactionStatus.UNPROVEN
    return TransactionStatus.LOST if age < MARKER_LIFETIME else TransactionStatus.UNKNOWN


def needs_marker(prepared: KafkaCommittable, seen: TransactionDescription | None) -> bool:
    """Return whether ``derive_status`` needs the marker. With v4 it does: a zombie may have reused our id and epoch."""
    return prepared.end_txn_version < 5 or seen is None or not _is_open(prepared, seen)


def _is_open(prepared: KafkaCommittable, seen: TransactionDescription) -> bool:
    return (seen.state, seen.producer_id, seen.producer_epoch) == (
        "Ongoing",
        prepared.producer_id,
        prepared.producer_epoch,
    )


def _ends_at(prepared: KafkaCommittable) -> tuple[int, ...]:
    """Return the epochs that the coordinator may show once it has committed the transaction."""
    if prepared.end_txn_version >= 5:
        return (prepared.producer_epoch, prepared.producer_epoch + 1)
    return (prepared.producer_epoch,)


def expires_in(seen: TransactionDescription, now_ms: int) -> float:
    """Return the seconds until the coordinator aborts an open transaction by itself.

    ``now_ms``: the coordinator's time.
    """
    if seen.timeout_ms >= NEVER or seen.started_at < 0:
        return float("inf")
    return max(0.0, (seen.started_at + seen.timeout_ms - now_ms) / 1000)


def timeout_of(seen: TransactionDescription) -> float:
    """Return the seconds after which the coordinator aborts a transaction that is still open."""
    return float("inf") if seen.timeout_ms >= NEVER else seen.timeout_ms / 1000
