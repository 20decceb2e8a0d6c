"""The readers of sources that depend on each other: one that others wait for, and one that waits.

A source that others wait for is a table, or one that another source comes after: its reader tells, with the position of
a split, whether that is read to its end. A source that waits opens the connector's reader at the first poll: a client
that nobody polls is not idle, it fetches ahead and piles up what it has to tell, and a table may take hours.

Rule: the connector's reader knows nothing of either, so every source can be a table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka_eos.abc.source import LagOfEach, Reader
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch
from kafka_eos.protocol import source_dependencies as bootstrap


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


class WaitingReader:
    """``opened`` makes the reader, from the positions of then. Until then nothing is known but what was given."""

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
