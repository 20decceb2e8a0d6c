"""A queue that keeps its head in memory and the rest on the local disk.

It holds rows that no sender can be asked to keep: returning rows of a loop, restored in-flight rows, rows that an
operator emits all at once, and rows of a blocked channel whose sender should not wait.

Rule: first in, first out. An entry from disk is returned as the bytes from ``encode``; if ``encode`` returned None, the
entry stays in memory. The files are private to the session. Each is deleted when it was read, so that a queue that is
never empty does not fill the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Generic, TypeVar

from kafka_eos.core.limits import LIMITS

E = TypeVar("E")


class _SpillFile:
    """One spill file; each entry is in one file as a whole."""

    def __init__(self, path: Path) -> None:
        self._path, self.end = path, 0
        self._file: IO[bytes] = path.open("w+b")

    def append(self, data: bytes) -> None:
        self._file.seek(self.end)
        self._file.write(data)
        self.end += len(data)

    def read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size)

    def drop(self) -> None:
        """Close the file without reporting flush errors (a full disk): its content is not needed."""
        with suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


class SpillingQueue(Generic[E]):
    """Keeps entries with a total weight of ``limit`` in memory, and those that are never spilled. Not thread-safe.

    ``weigh`` returns the weight of an entry, as bytes if it was on disk; by default one.
    """

    def __init__(
        self,
        path: Path,
        limit: int,
        encode: Callable[[E], bytes | None],
        weigh: Callable[[E | bytes], int] = lambda entry: 1,
    ) -> None:
        self._path = path
        self._limit = limit
        self._encode = encode
        self._weigh = weigh
        self._head: deque[E | bytes] = deque()
        self._weight = 0
        """The weight of the head."""
        self._rest: deque[E | int] = deque()
        """The entries behind the head, in order: entries in memory, and lengths of those on the disk."""
        self._files: deque[_SpillFile] = deque()
        self._begun = self._read_at = 0
        """The number of files created so far, and the offset of the next entry in the oldest remaining file."""

    def append(self, entry: E) -> None:
        if not self._rest and self._weight < self._limit:
            self._keep(entry)
            return
        data = self._encode(entry)
        if not data:  # None, or an entry without content
            self._rest.append(entry)
            return
        if not self._files or self._files[-1].end >= LIMITS.spill_file_bytes:
            self._files.append(_SpillFile(self._path.with_name(f"{self._path.name}.{self._begun}")))
            self._begun += 1
        self._files[-1].append(data)
        self._rest.append(len(data))

    def popleft(self) -> E | bytes:
        """Remove and return the next entry. Raises IndexError if the queue is empty."""
        entry = self._head.popleft()
        self._weight -= self._weigh(entry)
        if not self._head:
            self._refill()
        return entry

    def __getitem__(self, index: int) -> E | bytes:
        """Return an entry: ``queue[0]`` is the next one; others only if they are in memory."""
        return self._head[index]

    def __len__(self) -> int:
        return len(self._head) + len(self._rest)

    def __iter__(self) -> Iterator[E | bytes]:
        yield from self._head
        number, at = 0, self._read_at
        for entry in self._rest:
            if not isinstance(entry, int):
                yield entry
                continue
            if at == self._files[number].end:
                number, at = number + 1, 0
            yield self._files[number].read(at, entry)
            at += entry

    def close(self) -> None:
        for file in self._files:
            file.drop()
        self._files.clear()

    def _keep(self, entry: E | bytes) -> None:
        self._head.append(entry)
        self._weight += self._weigh(entry)

    def _refill(self) -> None:
        while self._rest and self._weight < self._limit:
            entry = self._rest.popleft()
            if not isinstance(entry, int):
                self._keep(entry)
                continue
            self._keep(self._files[0].read(self._read_at, entry))
            self._read_at += entry
            if self._read_at == self._files[0].end:
                self._files.popleft().drop()
                self._read_at = 0


def size_of(entry: object) -> int:
    """Return the size in bytes, if known: rows of the same worker have none until they are encoded, barriers have
    none."""
    return len(entry) if isinstance(entry, bytes) else 0
