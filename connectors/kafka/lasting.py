"""What the stages of one process share, session after session of one term: warm producers and connections.

For engines whose sessions are short: a producer takes up to half a second to start, a session's work may take less.
Rule: a producer that was used is let go only when its epoch is finished for good, however many sessions later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kafka_eos.connectors.kafka.client import Consumer
from kafka_eos.connectors.kafka.pool import WarmPool
from kafka_eos.connectors.kafka.rpc import Coordinators
from kafka_eos.connectors.kafka.staging import EpochOutput
from kafka_eos.ids import Epoch


class LastingClients:
    """See ``interfaces.Lasting``. ``consumer`` makes the client of a group that only carries markers."""

    def __init__(
        self, pool: WarmPool, coordinators: Coordinators, timeout_ms: int, consumer: Callable[[str], Consumer]
    ) -> None:
        self.pool, self.coordinators, self.timeout_ms = pool, coordinators, timeout_ms
        self._consumer = consumer
        self._groups: dict[str, Consumer] = {}
        self._prepared: list[EpochOutput] = []

    def group(self, name: str) -> Consumer:
        """The client of a marker group; the same one every time."""
        if name not in self._groups:
            self._groups[name] = self._consumer(name)
        return self._groups[name]

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
        self.coordinators.close()
        for client in self._groups.values():
            client.close()
