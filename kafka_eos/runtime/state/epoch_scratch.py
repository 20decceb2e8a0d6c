"""What an operator sets aside within an epoch because memory should not hold it: blocks of bytes, in numbered heaps.

    rocksdb.RocksScratch    in a RocksDB of its own on the local disk, from the first ``put`` to the end of ``take``
    MemoryScratch           in memory, as bytes

It is never part of a checkpoint: whoever ends an epoch takes everything out first. What a killed worker leaves is
removed by the next one that works in the same directory.
Rule: nothing is looked up. A block comes out once, heap by heap, and then nothing is left.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol

from kafka_eos._util.failpoints import hit

_SHARE = 10


class Scratch(Protocol):
    """What one operator has set aside. Not thread-safe."""

    @property
    def most(self) -> int:
        """Keys that the operator may hold as objects; with more than that it sets them aside."""

    def put(self, heap: int, block: bytes) -> None:
        """Add a block to a heap: a number from 0 to 65535."""

    def take(self) -> Iterator[tuple[int, bytes]]:
        """All blocks, heap by heap, each heap in the order of ``put``; when the last one is out, nothing is left.

        Nothing may be put in between.
        """

    def close(self) -> None:
        """Forget everything. Called also after a failure."""


class MemoryScratch:
    """See ``Scratch``."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._heaps = defaultdict[int, list[bytes]](list)

    def put(self, heap: int, block: bytes) -> None:
        self._heaps[heap].append(block)
        hit("scratch.put")

    def take(self) -> Iterator[tuple[int, bytes]]:
        for heap in sorted(self._heaps):
            for block in self._heaps.pop(heap, ()):
                yield heap, block
                hit("scratch.taken")

    def close(self) -> None:
        self._heaps.clear()


def unbounded() -> Scratch:
    """For tests and recomputing: everything stays in memory as it is."""
    return MemoryScratch(sys.maxsize)


def most_of(cache_entries: int) -> int:
    """What ``Scratch.most`` is where a state may keep so many objects: 100,000 by default, some 50 MB of small sums."""
    return max(1, cache_entries // _SHARE)
