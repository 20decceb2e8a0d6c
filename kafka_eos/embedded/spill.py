"""A queue that keeps its head in memory and the rest on the local disk.

For what no sender can be asked to keep: the way back of a loop, rows that a restart takes up, and what a blocked
channel brings if its sender is not to wait.
Rule: first in, first out, whatever is where. An entry that was on disk comes back as the bytes that ``encode`` made;
what ``encode`` leaves alone (None) stays in memory. The file is private to the session and means nothing after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

E = TypeVar("E")


class SpillingQueue(Generic[E]):
    """Holds entries that weigh ``limit`` together in memory, and those that are never spilled. Not thread-safe.

    ``weigh`` is what an entry counts, the same before and after it was on disk; without it, one.
    """

    def __init__(
        self,
        path: Path,
        limit: int,
        encode: Callable[[E], bytes | None],
        weigh: Callable[[E | bytes], int] = lambda entry: 1,
    ) -> None:
        self._path, self._limit, self._encode, self._weigh = path, limit, encode, weigh
        self._head: deque[E | bytes] = deque()
        self._weight = 0
        """Of the head."""
        self._rest: deque[E | int] = deque()
        """What comes after the head, in order: entries, and lengths of those in the file."""
        self._file: Any = None
        self._read_at = self._end = 0

    def append(self, entry: E) -> None:
        if not self._rest and self._weight < self._limit:
            self._keep(entry)
            return
        data = self._encode(entry)
        if data is None:
            self._rest.append(entry)
            return
        if self._file is None:
            self._file = self._path.open("w+b")
        self._file.seek(self._end)
        self._file.write(data)
        self._end += len(data)
        self._rest.append(len(data))

    def popleft(self) -> E | bytes:
        """IndexError if the queue is empty."""
        entry = self._head.popleft()
        self._weight -= self._weigh(entry)
        if not self._head:
            self._refill()
        return entry

    def __getitem__(self, index: int) -> E | bytes:
        """``queue[0]`` is the next entry; others only as far as they are in memory."""
        return self._head[index]

    def __len__(self) -> int:
        return len(self._head) + len(self._rest)

    def __iter__(self) -> Iterator[E | bytes]:
        yield from self._head
        at = self._read_at
        for entry in self._rest:
            if isinstance(entry, int):
                yield self._read(at, entry)
                at += entry
            else:
                yield entry

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    def _keep(self, entry: E | bytes) -> None:
        self._head.append(entry)
        self._weight += self._weigh(entry)

    def _refill(self) -> None:
        while self._rest and self._weight < self._limit:
            entry = self._rest.popleft()
            if isinstance(entry, int):
                self._keep(self._read(self._read_at, entry))
                self._read_at += entry
            else:
                self._keep(entry)
        if not self._rest and self._file is not None:
            self._file.truncate(0)
            self._read_at = self._end = 0

    def _read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        data: bytes = self._file.read(size)
        return data
