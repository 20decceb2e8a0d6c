"""What all sessions of a process and term have in common for their transactions: warm producers and connections.

For engines whose sessions are short: a producer takes up to half a second to start, a session's work may take less.
Rule: a producer that was used is let go only when its epoch is finished for good, however many sessions later.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.marker_groups import MarkerGroups
from kafka_eos.connectors.kafka.sink.producer_pool import WarmPool
from kafka_eos.connectors.kafka.sink.shared_transaction import EpochOutput, Partitions
from kafka_eos.core.ids import Epoch


class LastingClients:
    """See ``abc.Lasting``."""

    def __init__(self, pool: WarmPool, requests: KafkaRequests, timeout_ms: int, groups: MarkerGroups) -> None:
        self.pool, self.requests, self.timeout_ms, self.groups = pool, requests, timeout_ms, groups
        self.partitions = Partitions()
        self._prepared: list[EpochOutput] = []

    def keep(self, prepared: Sequence[EpochOutput]) -> None:
        """A session ends; its transactions wait for their receipts."""
        self._prepared.extend(prepared)

    def committed(self, epoch: Epoch) -> None:
        done = [staged for staged in self._prepared if staged.epoch is not None and staged.epoch.epoch <= epoch]
        self._prepared = [staged for staged in self._prepared if staged not in done]
        for staged in done:
            self.pool.release(staged.warm)

    def close(self) -> None:
        self._prepared.clear()
        self.pool.close()
        self.requests.close()
