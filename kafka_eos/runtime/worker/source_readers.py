"""Readers of sources with dependencies: of a source for which others wait, and of a source that waits.

Others wait for a table, or for a source that another one follows: its reader records in each split's position whether
the split was read to its end. A waiting source opens the connector's reader at the first poll, because a client that is
not polled still fetches and queues records, and loading a table may take hours.

Rule: the connector's reader knows of neither, so every source can be a table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka_eos.abc.source import Reader
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch
from kafka_eos.protocol import source_dependencies as bootstrap


class BootstrapReader(Reader[Any]):
    """Wraps a reader and records in each position that its bootstrap end was reached.

    ``positions`` are the start positions.
    """

    def __init__(self, inner: Reader[Any], positions: Positions) -> None:
        self._inner, self._given = inner, dict(positions)

    def poll(self, max_records: int, timeout: float) -> Batch[Any] | None:
        return self._inner.poll(max_records, timeout)

    def positions(self) -> Positions:
        for split, at in self._given.items():
            end = bootstrap.remaining_end(at)
            if end is not None and self._inner.has_reached({split: end}):
                self._given[split] = bootstrap.mark_complete(at)
        return bootstrap.with_bootstrap(self._inner.positions(), self._given)

    def assign(self, positions: Positions) -> None:
        self._given.update(positions)
        self._inner.assign(bootstrap.connector_positions(positions))

    def pause(self, splits: Collection[SplitId]) -> None:
        self._inner.pause(splits)

    def list_splits_at_end(self) -> Collection[SplitId]:
        return self._inner.list_splits_at_end()

    def lag(self) -> int | None:
        return self._inner.lag()

    def get_lag_by_split(self) -> Mapping[SplitId, int | None]:
        return self._inner.get_lag_by_split()

    def has_reached(self, ends: Positions) -> bool:
        return self._inner.has_reached(ends)

    def close(self) -> None:
        self._inner.close()


class DeferredReader(Reader[Any]):
    """Opens the connector's reader at the first poll. Until then only its start positions are known."""

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

    def list_splits_at_end(self) -> Collection[SplitId]:
        return () if self._inner is None else self._inner.list_splits_at_end()

    def lag(self) -> int | None:
        return None if self._inner is None else self._inner.lag()

    def get_lag_by_split(self) -> Mapping[SplitId, int | None]:
        return {} if self._inner is None else self._inner.get_lag_by_split()

    def has_reached(self, ends: Positions) -> bool:
        """Return False before the first read, unless ``ends`` is empty."""
        return not ends if self._inner is None else self._inner.has_reached(ends)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
