"""Admission control: how much of the available input one task may read in an epoch.

A source reports where it ends, not how large that input is. So record sizes are taken from what was read, and they
limit how many records the next poll may return.
Rule: a quota is exceeded by at most one poll, and it admits at least one record, so that every epoch makes progress.
"""

from __future__ import annotations

from typing import Any

from kafka_eos.core.records import Batch
from kafka_eos.spark.messages import ReadLimit

_FIRST = 100
"""Most records of a task's first poll, while their size is unknown."""


def divide_limit(records: int, size: int | None, tasks: int) -> ReadLimit:
    """Divide the read limit of an epoch among its tasks."""
    return ReadLimit(max(1, records // tasks), None if size is None else max(1, size // tasks))


class ReadBudget:
    """The remaining read limit of a task."""

    def __init__(self, quota: ReadLimit) -> None:
        self._records, self._size = quota.records, quota.size
        self._read = self._weight = 0

    @property
    def has_budget(self) -> bool:
        """Return whether the task may read more records."""
        return self._read < self._records and (self._size is None or self._weight < self._size)

    def limit_poll(self, batch_size: int) -> int:
        """Return how many records the next poll may bring."""
        most = min(batch_size, self._records - self._read)
        if self._size is None:
            return max(1, most)
        if self._weight == 0:
            return max(1, min(most, _FIRST))
        return max(1, min(most, (self._size - self._weight) * self._read // self._weight))

    def charge(self, batch: Batch[Any]) -> None:
        """Charge a batch to the budget."""
        self._read += len(batch)
        if self._size is not None:
            self._weight += batch.origin.count_bytes()
