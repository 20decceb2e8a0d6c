"""Requests about transactions of any process: ending, fencing, describing and listing them.

Rule: rejections are returned by name, and ``transaction_status`` interprets them. Nothing is concluded here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kafka_eos.connectors.kafka.rpc.brokers import CoordinatorKey
from kafka_eos.connectors.kafka.rpc.error_codes import ID_NOT_FOUND, RETRYABLE, expect, name_of
from kafka_eos.connectors.kafka.rpc.messages.cluster import TRANSACTION
from kafka_eos.connectors.kafka.rpc.messages.transactions import (
    NO_PRODUCER,
    TransactionState,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    prove_transaction_coordinator,
)
from kafka_eos.connectors.kafka.rpc.retrying_request import RequestSender
from kafka_eos.connectors.kafka.rpc.transaction_status import TransactionDescription


class TransactionRequests(RequestSender):
    """Requests to transaction coordinators."""

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, version: int) -> str:
        """Send EndTxn once the coordinator is found. Raise Retryable if the outcome is unknown.

        Returns the protocol name of the result. CONCURRENT_TRANSACTIONS is retried: the outcome is decided, and its
        markers are being written.
        """
        request = end_txn(transactional_id, producer_id, epoch, commit, version)
        return name_of(self._send(request, _coordinator(transactional_id), lambda error: error))

    def fence(self, transactional_id: str, timeout_ms: int) -> str:
        """Send InitProducerId: abort the id's open transaction, and fence all its present producers for good.

        Returns the protocol name of the result. ``timeout_ms`` is recorded as the id's transaction timeout.
        """
        request = init_producer_id(transactional_id, timeout_ms)
        return name_of(self._send(request, _coordinator(transactional_id), lambda error: error))

    def create(self, transactional_id: str, timeout_ms: int) -> str:
        """Send InitProducerId for an id that the coordinator does not know. An id that it knows stays unchanged.

        Returns the protocol name of the result, which is not NONE if the id exists.
        """
        request = init_producer_id(transactional_id, timeout_ms, expected=NO_PRODUCER)
        return name_of(self._send(request, _coordinator(transactional_id), lambda error: error))

    def describe(self, transactional_id: str, *, current: bool = False) -> TransactionDescription | None:
        """Return the coordinator's description of an id; None if it does not know the id.

        ``current``: the coordinator must prove first that it has not been replaced.
        """
        request = describe_transactions([transactional_id])
        proof = prove_transaction_coordinator(transactional_id) if current else None
        (seen,) = self._send(request, _coordinator(transactional_id), lambda found: found[0].error, proof=proof)
        return _description(seen)

    def described(self, pattern: str, states: Sequence[str] = ()) -> dict[str, TransactionDescription]:
        """Return the coordinators' descriptions of every id on the cluster that matches ``pattern`` in full.

        ``states`` restricts it to ids in one of these states; the broker filters.
        """
        wanted, found = re.compile(pattern), {}
        for node in self._nodes():
            listed = self._send(list_transactions(f"^(?:{pattern})$", states), node, lambda seen: seen.error)
            expect(listed.error, {0}, "ListTransactions")
            found.update(
                self._described_by(node, [name for name in listed.transactional_ids if wanted.fullmatch(name)])
            )
        return found

    def _described_by(self, node: int, ids: Sequence[str]) -> dict[str, TransactionDescription]:
        """Describe any number of ids in one request: hundreds of restarts leave as many ids behind."""
        if not ids:
            return {}
        seen = self._send(
            describe_transactions(ids),
            node,
            lambda found: max((one.error for one in found if one.error in RETRYABLE), default=0),
        )
        described = {one.transactional_id: _description(one) for one in seen}
        return {name: description for name, description in described.items() if description is not None}


def _coordinator(transactional_id: str) -> CoordinatorKey:
    return CoordinatorKey(TRANSACTION, transactional_id)


def _description(seen: TransactionState) -> TransactionDescription | None:
    if seen.error:
        expect(seen.error, {ID_NOT_FOUND}, f"DescribeTransactions of {seen.transactional_id}")
        return None
    return TransactionDescription(seen.state, seen.producer_id, seen.producer_epoch, seen.timeout_ms, seen.started_at)
