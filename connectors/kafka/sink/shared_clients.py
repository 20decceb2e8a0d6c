"""Clients that all sessions of a process and term share for their transactions: warm producers and connections.

For engines with short sessions: starting a producer takes up to half a second, which may exceed a session.
Rule: a used producer is released only when its epoch is finished for good, however many sessions later.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos.abc.services import LongLivedResource
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.marker_groups import MarkerGroups
from kafka_eos.connectors.kafka.sink.producer_pool import ProducerPool
from kafka_eos.connectors.kafka.sink.shared_transaction import EpochTransaction, PartitionCounts
from kafka_eos.core.ids import Epoch


class TermClients(LongLivedResource):
    """The producer pool and connections shared by the sessions of one term."""

    def __init__(self, pool: ProducerPool, requests: KafkaRequests, timeout_ms: int, groups: MarkerGroups) -> None:
        self.pool = pool
        self.requests = requests
        self.timeout_ms = timeout_ms
        self.groups = groups
        self.partitions = PartitionCounts()
        self._prepared: list[EpochTransaction] = []

    def keep(self, prepared: Sequence[EpochTransaction]) -> None:
        """Keep the prepared transactions of an ending session until their receipts."""
        self._prepared.extend(prepared)

    def poll_committed(self, epoch: Epoch) -> None:
        done = [staged for staged in self._prepared if staged.epoch is not None and staged.epoch.epoch <= epoch]
        self._prepared = [staged for staged in self._prepared if staged not in done]
        for staged in done:
            self.pool.release(staged.warm)

    def close(self) -> None:
        self._prepared.clear()
        self.pool.close()
        self.requests.close()
