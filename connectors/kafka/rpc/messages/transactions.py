"""Transactions: end, fence, describe, list.

Pure. See ``request``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kafka_eos.connectors.kafka.client.access_rights import Kind, Operation, Right
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import (
    NO_TAGS,
    Reader,
    array,
    boolean,
    int16,
    int32,
    int64,
    many,
    text,
)

END_TXN: Final = 26


@dataclass(frozen=True, slots=True)
class TxnEnded:
    """With version 5 the producer's next identity, else -1."""

    error: int
    producer_id: int
    producer_epoch: int


def end_txn(transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int) -> Request[TxnEnded]:
    """``version`` 5, or 4: what brokers up to 3.7 have instead, 3, has the same layout."""

    def read(found: Reader, version: int) -> TxnEnded:
        found.int32()
        error = found.int16()
        fresh = (found.int64(), found.int16()) if version >= 5 else (-1, -1)
        found.tags()
        return TxnEnded(error, *fresh)

    body = text(transactional_id) + int64(producer_id) + int16(epoch) + boolean(commit) + NO_TAGS
    lowest = 5 if version >= 5 else 3
    needs = (Right(Operation.WRITE, Kind.TRANSACTIONAL_ID, transactional_id),)
    return Request(f"EndTxn v{version}", END_TXN, lowest, version, lambda _: body, read, needs=needs)


def init_producer_id(transactional_id: str, timeout_ms: int) -> Request[int]:
    """For a producer without an identity so far. The answer is the error."""

    def read(found: Reader, version: int) -> int:
        found.int32()
        error = found.int16()
        found.skip(Reader.int64, Reader.int16, Reader.tags)
        return error

    body = text(transactional_id) + int32(timeout_ms) + int64(-1) + int16(-1) + NO_TAGS
    needs = (Right(Operation.WRITE, Kind.TRANSACTIONAL_ID, transactional_id),)
    return Request("InitProducerId", 22, 3, 5, lambda _: body, read, needs=needs)


@dataclass(frozen=True, slots=True)
class TransactionSeen:
    """``started_at`` is -1 while nothing is open."""

    error: int
    transactional_id: str
    state: str
    timeout_ms: int
    started_at: int
    producer_id: int
    producer_epoch: int


def describe_transactions(transactional_ids: Sequence[str]) -> Request[tuple[TransactionSeen, ...]]:
    def topic(found: Reader) -> None:
        found.skip(Reader.text, many(Reader.int32), Reader.tags)

    def state(found: Reader) -> TransactionSeen:
        seen = TransactionSeen(
            found.int16(),
            found.text(),
            found.text(),
            found.int32(),
            found.int64(),
            found.int64(),
            found.int16(),
        )
        found.skip(many(topic), Reader.tags)
        return seen

    def read(found: Reader, version: int) -> tuple[TransactionSeen, ...]:
        found.int32()
        states = found.array(state)
        found.tags()
        return states

    body = array(map(text, transactional_ids)) + NO_TAGS
    needs = tuple(Right(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, each) for each in transactional_ids)
    return Request("DescribeTransactions", 65, 0, 0, lambda _: body, read, needs=needs)


@dataclass(frozen=True, slots=True)
class TransactionsListed:
    error: int
    transactional_ids: tuple[str, ...]


def list_transactions(pattern: str, states: Sequence[str]) -> Request[TransactionsListed]:
    """Since version 2 (Kafka 4.1) the broker goes by ``pattern``, in the syntax of RE2; before, all ids come."""

    def body(version: int) -> bytes:
        duration = int64(-1) if version >= 1 else b""
        narrowed = text(pattern) if version >= 2 else b""
        return array(map(text, states)) + array([]) + duration + narrowed + NO_TAGS

    def state(found: Reader) -> str:
        transactional_id = found.text()
        found.skip(Reader.int64, Reader.text, Reader.tags)
        return transactional_id

    def read(found: Reader, version: int) -> TransactionsListed:
        found.int32()
        error = found.int16()
        found.array(Reader.text)
        listed = found.array(state)
        found.tags()
        return TransactionsListed(error, listed)

    return Request("ListTransactions", 66, 0, 2, body, read)
