"""Spill stores: blocks of bytes, in numbered buckets, that an operator moves out of memory within an epoch.

    rocksdb_store.RocksSpillStore   in its own RocksDB on the local disk, from the first ``put`` to the end of ``drain``
    MemorySpillStore                in memory, as bytes

It is never part of a checkpoint: it is drained before the end of an epoch. The next worker in the same directory
removes what a killed worker leaves. Rule: there are no look-ups. A block is read once, bucket by bucket, and then
deleted.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol

from kafka_eos._util.failpoints import hit

_SHARE = 10


class SpillStore(Protocol):
    """Blocks that one operator spills within an epoch. Not thread-safe."""

    @property
    def max_keys(self) -> int:
        """Return how many keys an operator may hold as objects before it spills."""

    def put(self, heap: int, block: bytes) -> None:
        """Add a block to a bucket: a number from 0 to 65535."""

    def drain(self) -> Iterator[tuple[int, bytes]]:
        """Yield all blocks, bucket by bucket, and empty the store.

        Put nothing while it is drained.
        """

    def close(self) -> None:
        """Discard everything. Also called after a failure."""


class MemorySpillStore:
    """Spill store in memory."""

    def __init__(self, most: int) -> None:
        self.max_keys = most
        self._heaps = defaultdict[int, list[bytes]](list)

    def put(self, heap: int, block: bytes) -> None:
        self._heaps[heap].append(block)
        hit("scratch.put")

    def drain(self) -> Iterator[tuple[int, bytes]]:
        for heap in sorted(self._heaps):
            for block in self._heaps.pop(heap, ()):
                yield heap, block
                hit("scratch.taken")

    def close(self) -> None:
        self._heaps.clear()


def unbounded() -> SpillStore:
    """Return a store that keeps everything in memory, for tests and recomputation."""
    return MemorySpillStore(sys.maxsize)


def most_of(cache_entries: int) -> int:
    """Return ``SpillStore.max_keys`` for a state with so many cached objects.

    It is 100,000 by default, some 50 MB of small sums.
    """
    return max(1, cache_entries // _SHARE)
