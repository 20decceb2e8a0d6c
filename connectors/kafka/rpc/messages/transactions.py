"""Messages about transactions: end, fence, describe, list.

Pure. See ``request``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from kafka_eos.connectors.kafka.client.access_rights import AclOperation, Permission, ResourceType
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import (
    NO_TAGS,
    MessageReader,
    array,
    boolean,
    int16,
    int32,
    int64,
    many,
    text,
)
from kafka_eos.connectors.kafka.rpc.twin_names import twin_of

END_TXN: Final = 26
ADD_PARTITIONS_TO_TXN: Final = 24
NO_PRODUCER: Final = (2**63 - 1, 0)
"""A producer id and epoch that no coordinator assigns."""
_PROOF_TIMEOUT_MS: Final = 1_000
"""The transaction timeout of a producer that never begins a transaction."""


def end_txn(transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int) -> Request[int]:
    """Return an EndTxn request of ``version`` 5 or 4. The response is the error.

    Brokers up to 3.7 have version 3, with the layout of 4.
    """

    def read(found: MessageReader, version: int) -> int:
        found.int32()
        error = found.int16()
        if version >= 5:  # the producer's next identity
            found.skip(MessageReader.int64, MessageReader.int16)
        found.tags()
        return error

    body = text(transactional_id) + int64(producer_id) + int16(epoch) + boolean(commit) + NO_TAGS
    lowest = 5 if version >= 5 else 3
    needs = (Permission(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id),)
    return Request(f"EndTxn v{version}", END_TXN, lowest, version, lambda _: body, read, needs=needs)


def init_producer_id(transactional_id: str, timeout_ms: int, expected: tuple[int, int] = (-1, -1)) -> Request[int]:
    """Return a request for a new producer identity. The response is the error.

    ``expected``: the current producer id and epoch, (-1, -1) for any. A coordinator that knows the id under another
    producer refuses the request and changes nothing; one that does not know the id creates it (KIP-360).
    """

    def read(found: MessageReader, version: int) -> int:
        found.int32()
        error = found.int16()
        found.skip(MessageReader.int64, MessageReader.int16, MessageReader.tags)
        return error

    body = text(transactional_id) + int32(timeout_ms) + int64(expected[0]) + int16(expected[1]) + NO_TAGS
    needs = (Permission(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id),)
    return Request("InitProducerId", 22, 3, 5, lambda _: body, read, needs=needs)


def prove_transaction_coordinator(transactional_id: str) -> Request[int]:
    """Return a write that only the current coordinator of the id can complete; the response is the error.

    It initializes a producer of the id's twin, so the id itself does not change.
    """
    return init_producer_id(twin_of(transactional_id), _PROOF_TIMEOUT_MS)


class TransactionState(Struct, frozen=True):
    """The state of one transactional id; ``started_at`` is -1 if no transaction is open."""

    error: int
    transactional_id: str
    state: str
    timeout_ms: int
    started_at: int
    producer_id: int
    producer_epoch: int


def describe_transactions(transactional_ids: Sequence[str]) -> Request[tuple[TransactionState, ...]]:
    def topic(found: MessageReader) -> None:
        found.skip(MessageReader.text, many(MessageReader.int32), MessageReader.tags)

    def state(found: MessageReader) -> TransactionState:
        seen = TransactionState(
            found.int16(),
            found.text(),
            found.text(),
            found.int32(),
            found.int64(),
            found.int64(),
            found.int16(),
        )
        found.skip(many(topic), MessageReader.tags)
        return seen

    def read(found: MessageReader, version: int) -> tuple[TransactionState, ...]:
        found.int32()
        states = found.array(state)
        found.tags()
        return states

    body = array(map(text, transactional_ids)) + NO_TAGS
    needs = tuple(Permission(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each) for each in transactional_ids)
    return Request("DescribeTransactions", 65, 0, 0, lambda _: body, read, needs=needs)


class ListTransactionsResponse(Struct, frozen=True):
    error: int
    transactional_ids: tuple[str, ...]


def list_transactions(pattern: str, states: Sequence[str]) -> Request[ListTransactionsResponse]:
    """Return a request for transactional ids. Brokers apply ``pattern`` (RE2) since version 2, Kafka 4.1; older ones do
    not."""

    def body(version: int) -> bytes:
        duration = int64(-1) if version >= 1 else b""
        narrowed = text(pattern) if version >= 2 else b""
        return array(map(text, states)) + array([]) + duration + narrowed + NO_TAGS

    def state(found: MessageReader) -> str:
        transactional_id = found.text()
        found.skip(MessageReader.int64, MessageReader.text, MessageReader.tags)
        return transactional_id

    def read(found: MessageReader, version: int) -> ListTransactionsResponse:
        found.int32()
        error = found.int16()
        found.array(MessageReader.text)
        listed = found.array(state)
        found.tags()
        return ListTransactionsResponse(error, listed)

    return Request("ListTransactions", 66, 0, 2, body, read)
