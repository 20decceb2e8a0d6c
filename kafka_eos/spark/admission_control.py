"""Admission control: how much of what is there one task may read in an epoch.

A source tells where it ends, not how large that is. So sizes are taken from what was read, and how many records the
next poll may bring is estimated from them.
Rule: a quota is passed by no more than one poll, and lets at least one record through: every epoch moves.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from kafka_eos.core.records import Batch, Origin
from kafka_eos.spark.messages import Quota

_FIRST = 100
"""Most records of a task's first poll, while nobody knows how large they are."""


@runtime_checkable
class Weighed(Protocol):
    """An origin that knows how large its rows were without making raw records of them."""

    def weight(self) -> int:
        """Bytes of the keys and values of all its rows."""


def share(records: int, size: int | None, tasks: int) -> Quota:
    """The quota of each of so many tasks of an epoch."""
    return Quota(max(1, records // tasks), None if size is None else max(1, size // tasks))


class Meter:
    """What is left of a quota."""

    def __init__(self, quota: Quota) -> None:
        self._records, self._size = quota.records, quota.size
        self._read = self._weight = 0

    @property
    def left(self) -> bool:
        """May anything be read still?"""
        return self._read < self._records and (self._size is None or self._weight < self._size)

    def most(self, batch_size: int) -> int:
        """Records that the next poll may bring."""
        most = min(batch_size, self._records - self._read)
        if self._size is None:
            return max(1, most)
        if self._weight == 0:
            return max(1, min(most, _FIRST))
        return max(1, min(most, (self._size - self._weight) * self._read // self._weight))

    def took(self, batch: Batch[Any]) -> None:
        """A poll has brought this."""
        self._read += len(batch)
        if self._size is not None:
            self._weight += _weight(batch.origin)


def _weight(origin: Origin) -> int:
    if isinstance(origin, Weighed):
        return origin.weight()
    raws = map(origin.raw, range(len(origin.offsets)))
    return sum(len(raw.key or b"") + len(raw.value or b"") for raw in raws)
