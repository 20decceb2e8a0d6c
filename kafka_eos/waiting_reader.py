"""The reader of a source that waits for its tables: it opens the connector's at the first poll, and not before.

A client that nobody polls is not idle: it fetches ahead, and piles up what it has to tell. A table may take hours.

Rule: until then it knows nothing but the positions that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka_eos.ids import SplitId
from kafka_eos.interfaces import LagOfEach, Positions, Reader
from kafka_eos.records import Batch


class WaitingReader:
    """``opened`` makes the reader, from the positions of then."""

    def __init__(self, opened: Callable[[Positions], Reader[Any]], positions: Positions) -> None:
        self._make, self._given = opened, dict(positions)
        self._paused: Collection[SplitId] = ()
        self._inner: Reader[Any] | None = None

    def poll(self, max_records: int, timeout: float) -> Batch[Any] | None:
        if self._inner is None:
            self._inner = self._make(self._given)
            if self._paused:
                self._inner.pause(self._paused)
        return self._inner.poll(max_records, timeout)

    def positions(self) -> Positions:
        return dict(self._given) if self._inner is None else self._inner.positions()

    def assign(self, positions: Positions) -> None:
        if self._inner is None:
            self._given.update(positions)
        else:
            self._inner.assign(positions)

    def pause(self, splits: Collection[SplitId]) -> None:
        if self._inner is None:
            self._paused = splits
        else:
            self._inner.pause(splits)

    def at_end(self) -> Collection[SplitId]:
        return () if self._inner is None else self._inner.at_end()

    def lag(self) -> int | None:
        return None if self._inner is None else self._inner.lag()

    def lags(self) -> Mapping[SplitId, int | None]:
        """Of each split, if the connector knows; else of none."""
        inner: object = self._inner
        return inner.lags() if isinstance(inner, LagOfEach) else {}

    def reached(self, ends: Positions) -> bool:
        """Nothing is read yet, so nothing is read up to any end, unless there is none."""
        return not ends if self._inner is None else self._inner.reached(ends)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
