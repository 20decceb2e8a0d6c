"""Requests about transactions, of any process: ending, fencing, describing and listing them.

Rule: refusals are returned by name, for ``transactions`` of this connector to judge. Nothing is concluded here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kafka_eos.connectors.kafka.rpc.brokers import CoordinatorOf
from kafka_eos.connectors.kafka.rpc.error_codes import ASK_AGAIN, ID_NOT_FOUND, expect, name_of
from kafka_eos.connectors.kafka.rpc.messages.cluster import TRANSACTION
from kafka_eos.connectors.kafka.rpc.messages.transactions import (
    TransactionSeen,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
)
from kafka_eos.connectors.kafka.rpc.retrying_request import Asking
from kafka_eos.connectors.kafka.rpc.transaction_status import Description


@dataclass(frozen=True, slots=True)
class Ended:
    """Answer to EndTxn: the error's protocol name, and with v5 the producer's next identity (else -1)."""

    error: str
    producer_id: int
    producer_epoch: int


class Transactions(Asking):
    """The coordinators of transactions."""

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, version: int) -> Ended:
        """Send EndTxn once the coordinator is found. Returns refusals; raises Retryable for an unknown fate.

        A CONCURRENT_TRANSACTIONS answer is asked again: the outcome is decided, its markers are being written.
        """
        request = end_txn(transactional_id, producer_id, epoch, commit, version)
        answer = self._ask(request, _coordinator(transactional_id), lambda found: found.error)
        return Ended(name_of(answer.error), answer.producer_id, answer.producer_epoch)

    def fence(self, transactional_id: str, timeout_ms: int) -> str:
        """InitProducerId: abort what is open under the id, and refuse all its present producers for ever.

        Returns the protocol name of the answer. ``timeout_ms`` is recorded as the id's transaction timeout.
        """
        request = init_producer_id(transactional_id, timeout_ms)
        return name_of(self._ask(request, _coordinator(transactional_id), lambda error: error))

    def describe(self, transactional_id: str) -> Description | None:
        """What the coordinator knows; None if it does not know the id."""
        request = describe_transactions([transactional_id])
        (seen,) = self._ask(request, _coordinator(transactional_id), lambda found: found[0].error)
        return _description(seen)

    def described(self, pattern: str, states: Sequence[str] = ()) -> dict[str, Description]:
        """What the coordinators know of every id on the cluster that ``pattern`` matches in full.

        ``states`` narrows it to ids that are in one of them; the broker filters.
        """
        wanted, found = re.compile(pattern), {}
        for node in self._nodes():
            listed = self._ask(list_transactions(f"^(?:{pattern})$", states), node, lambda seen: seen.error)
            expect(listed.error, {0}, "ListTransactions")
            found.update(
                self._described_by(node, [name for name in listed.transactional_ids if wanted.fullmatch(name)])
            )
        return found

    def _described_by(self, node: int, ids: Sequence[str]) -> dict[str, Description]:
        """One request however many ids: hundreds of restarts leave as many behind."""
        if not ids:
            return {}
        seen = self._ask(
            describe_transactions(ids),
            node,
            lambda found: max((one.error for one in found if one.error in ASK_AGAIN), default=0),
        )
        described = {one.transactional_id: _description(one) for one in seen}
        return {name: description for name, description in described.items() if description is not None}


def _coordinator(transactional_id: str) -> CoordinatorOf:
    return CoordinatorOf(TRANSACTION, transactional_id)


def _description(seen: TransactionSeen) -> Description | None:
    if seen.error:
        expect(seen.error, {ID_NOT_FOUND}, f"DescribeTransactions of {seen.transactional_id}")
        return None
    return Description(seen.state, seen.producer_id, seen.producer_epoch, seen.timeout_ms, seen.started_at)
