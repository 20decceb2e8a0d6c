"""The memory that one worker may take: its process, and buffers that the settings bound."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kafka_eos.config.settings import Settings
from kafka_eos.plan.kafka_client_count import kafka_share
from kafka_eos.plan.plan import Plan

PROCESS_BYTES: Final = 150 << 20
"""Memory of one process for Python, the libraries and a batch; docs/capacity.md says how it was measured."""
_LARGEST_SHARE: Final = 128 << 20
"""The largest part of ``kafka_memory`` that one client uses: see docs/workers-and-memory.md."""


class WorkerMemory(Struct, frozen=True):
    """Bytes that the full buffers of one worker hold."""

    state: int
    exchange: int
    kafka: int

    @classmethod
    def of(cls, plan: Plan, settings: Settings, workers: int) -> WorkerMemory:
        """Return the memory of each of so many workers of a job."""
        share = kafka_share(plan, settings.kafka_memory)
        return cls(
            settings.state_memory if settings.state_backend == "rocksdb" else 0,
            settings.exchange_memory if workers > 1 else 0,
            settings.kafka_memory // share * min(share, _LARGEST_SHARE),
        )

    @property
    def buffers(self) -> int:
        return self.state + self.exchange + self.kafka

    @property
    def needed(self) -> int:
        """Return the memory of the worker if every bounded buffer is full."""
        return self.buffers + PROCESS_BYTES

    @property
    def least(self) -> int:
        """Return the memory that is certain to be used: state stays in memory up to its budget."""
        return self.state + PROCESS_BYTES
