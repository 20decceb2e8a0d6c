"""A value per state key: a write-behind cache of objects in front of encoded rows.

Objects are encoded once per epoch, at the barrier, however often they change; a hit costs one dict look-up. Rule: a
state key in ``_dirty`` is decided in memory (its object, or deleted if it has none); any other state key is decided by
the rows. Not thread-safe. ``key`` here means a state key: most states have one value per key.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any, TypeVar

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.errors import Bug
from kafka_eos.runtime.state.row_codec import EncodedState
from kafka_eos.runtime.state.row_store import StateRows

T = TypeVar("T")

ABSENT: Any = object()


class CachedValueState(EncodedState[T]):
    """A cached value state; see ``abc.BackendState``. Holds about ``limit`` objects, and all that one batch touches.

    Note: keys are dict keys, so 1, 1.0 and True are the same key. Give the key codec one type.
    """

    def __init__(
        self, operator: str, descriptor: StateDescriptor[T], rows: StateRows, groups: range, limit: int
    ) -> None:
        super().__init__(operator, descriptor, rows, groups)
        self._limit = limit
        self._cache: dict[Any, T] = {}
        self._dirty: set[Any] = set()
        self._missing: set[Any] = set()
        """Looked up in this epoch and not found in the rows."""
        self.loads = 0
        """Places that were not in memory, so that the rows were asked."""

    @property
    def cached(self) -> int:
        """Return the number of objects in memory."""
        return len(self._cache)

    def get(self, key: Any) -> T | None:
        value = self._cache.get(key, ABSENT)
        if value is ABSENT and key not in self._dirty and key not in self._missing:
            self._trim()
            self._load([key])
            value = self._cache.get(key, ABSENT)
        return None if value is ABSENT else value

    def put(self, key: Any, value: T) -> None:
        self._reserve(1)
        self._cache[key] = value
        self._dirty.add(key)

    def delete(self, key: Any) -> None:
        self._reserve(1)
        self._cache.pop(key, None)
        self._dirty.add(key)

    def view(self, keys: Iterable[Any]) -> MutableMapping[Any, T]:
        touched = set(keys)
        self._reserve(len(touched))
        # One argument at a time: then the cost depends on the keys of this batch, not on those of the epoch.
        unknown = touched.difference(self._cache).difference(self._dirty).difference(self._missing)
        if unknown:
            self._load(list(unknown))
        self._dirty |= touched
        return self._cache

    def get_last_written(self, keys: Sequence[Any]) -> Sequence[T]:
        return list(map(self._cache.__getitem__, keys))

    def items(self) -> Iterator[tuple[Any, T]]:
        self.flush()
        return self._scanned()

    def scan_prefix(self, *parts: Any) -> Iterator[tuple[Any, T]]:
        raise Bug(f"{self._where}: it has one entry per key")

    def scan_between(self, key: Any, first: Any, end: Any) -> Iterator[tuple[Any, T]]:
        raise Bug(f"{self._where}: it has one entry per key")

    def scan_keys(self, *parts: Any) -> Iterator[Any]:
        raise Bug(f"{self._where}: it has one entry per key")

    def next_entry(self) -> int:
        raise Bug(f"{self._where}: it is not a list")

    def advance(self, timestamp: int) -> None:
        return None

    def get_attributes(self) -> dict[str, int]:
        """Return the integer attributes stored with the state, merged by maximum on rescaling."""
        return {}

    def changed(self, key: Any) -> bool:
        """Return whether the key was written or deleted since the last flush. If so, its row is outdated."""
        return key in self._dirty

    def flush(self) -> None:
        """Write changes to the rows. Called at the barrier, and earlier if there are too many."""
        if not self._dirty:
            self._missing.clear()
            return
        keys = list(self._dirty)
        # One look-up per key (in a large dict it costs more than encoding), and no tuples, which trigger garbage
        # collection.
        found = list(map(self._cache.get, keys, itertools.repeat(ABSENT)))
        present = list(map(operator.is_not, found, itertools.repeat(ABSENT)))
        gone: set[Any] = set()
        if not all(present):
            keys, found = list(itertools.compress(keys, present)), list(itertools.compress(found, present))
            gone = self._dirty.difference(keys).difference(self._missing)
        values = self._encoded_values(found, keys)
        self._rows.write(self._row_keys(keys), values, self._row_keys(list(gone)))
        # Cleared only now: if the write fails, the cache still knows the changes.
        if len(self._cache) > self._limit:
            self._keep_dirty()
        self._dirty.clear()
        self._missing.clear()

    def _reserve(self, count: int) -> None:
        """Free memory before ``count`` keys are written."""
        if self._dirty and len(self._dirty) + count > self._limit:
            self.flush()
        self._trim()

    def _trim(self) -> None:
        if len(self._cache) - len(self._dirty) > self._limit:
            self._keep_dirty()
        if len(self._missing) > self._limit:
            self._missing.clear()

    def _keep_dirty(self) -> None:
        """Drop objects that were not changed since the last flush. In place: callers hold the dict of ``view``."""
        kept = {key: self._cache[key] for key in self._dirty if key in self._cache}
        self._cache.clear()
        self._cache.update(kept)

    def _load(self, keys: list[Any]) -> None:
        self.loads += len(keys)
        cache, decode = self._cache, self.descriptor.value.decode
        found = self._rows.get(self._row_keys(keys))
        try:
            for key, data in zip(keys, found, strict=True):
                if data is None:
                    self._missing.add(key)
                else:
                    cache[key] = decode(data)
        except ValueError as error:
            raise self._unreadable(error) from error
