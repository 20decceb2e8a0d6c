"""The reader of a source that others wait for: it tells, with the position of a split, whether that is read to its end.

Such a source is a table, or one that another source comes after. Rule: the connector's reader knows nothing of it, so
every source can be a table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kafka_eos.ids import SplitId
from kafka_eos.interfaces import LagOfEach, Positions, Reader
from kafka_eos.protocol import bootstrap
from kafka_eos.records import Batch


class AwaitedReader:
    """``inner`` reads; it was given plain positions. ``positions`` are those that it begins with."""

    def __init__(self, inner: Reader[Any], positions: Positions) -> None:
        self._inner, self._given = inner, dict(positions)

    def poll(self, max_records: int, timeout: float) -> Batch[Any] | None:
        return self._inner.poll(max_records, timeout)

    def positions(self) -> Positions:
        for split, at in self._given.items():
            end = bootstrap.end_of(at)
            if end is not None and self._inner.reached({split: end}):
                self._given[split] = bootstrap.reached(at)
        return bootstrap.restored(self._inner.positions(), self._given)

    def assign(self, positions: Positions) -> None:
        self._given.update(positions)
        self._inner.assign(bootstrap.plain(positions))

    def pause(self, splits: Collection[SplitId]) -> None:
        self._inner.pause(splits)

    def at_end(self) -> Collection[SplitId]:
        return self._inner.at_end()

    def lag(self) -> int | None:
        return self._inner.lag()

    def lags(self) -> Mapping[SplitId, int | None]:
        """Of each split, if the connector knows; else of none."""
        return self._inner.lags() if isinstance(self._inner, LagOfEach) else {}

    def reached(self, ends: Positions) -> bool:
        return self._inner.reached(ends)

    def close(self) -> None:
        self._inner.close()
