"""Rows in a dict; a checkpoint is one file per state, with all of its rows.

File: one line ``kafka-eos rows 1``, then blocks: four bytes length, big endian, and a MessagePack list of key, value,
key, value … Use it for state that fits in memory several times: every checkpoint writes all of it.
"""

from __future__ import annotations

import bisect
import itertools
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec

from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileBatch, FileRef, StoredFiles
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch
from kafka_eos.core.limits import LIMITS
from kafka_eos.runtime.state.key_groups import group_prefix
from kafka_eos.runtime.state.row_store import AddFiles, Row, StateRows
from kafka_eos.storage import local_files as files

KIND = "memory"
_MAGIC = b"kafka-eos rows 1\n"
_SUFFIX = ".rows"
_LENGTH = 4
_DIGEST = 6
"""The size of a digest in bytes: small enough for an exact number in any JSON parser."""


class MemoryRows:
    """The rows of one state. They are sorted when the first page is read, and kept sorted from then on."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self._order: _SortedKeys | None = None

    def get(self, keys: list[bytes]) -> Sequence[bytes | None]:
        return list(map(self.data.get, keys))

    def write(self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Iterable[bytes]) -> None:
        if self._order is not None:
            self._order.add(key for key in keys if key not in self.data)
        self.data.update(zip(keys, values, strict=True))
        for key in deleted:
            self.data.pop(key, None)

    def scan(self) -> Iterator[Row]:
        return iter(list(self.data.items()))

    def delete_ranges(self, ranges: Iterable[tuple[bytes, bytes]]) -> None:
        for first, end in ranges:
            self.write((), (), list(self._between(first, end)))

    def page(self, first: bytes, end: bytes, limit: int) -> list[Row]:
        return [(key, self.data[key]) for key in itertools.islice(self._between(first, end), limit)]

    def _between(self, first: bytes, end: bytes) -> Iterator[bytes]:
        """Yield keys of rows, in order."""
        if self._order is None or self._order.stale(len(self.data)):
            self._order = _SortedKeys(self.data)
        return filter(self.data.__contains__, self._order.between(first, end))


class _SortedKeys:
    """Row keys in order; deleted ones are removed lazily, when there are too many.

    An added key may exist already.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._sorted = sorted(keys)
        self._added: set[bytes] = set()

    def add(self, keys: Iterable[bytes]) -> None:
        self._added.update(keys)

    def stale(self, alive: int) -> bool:
        return len(self._sorted) > 2 * alive + LIMITS.state_rows_per_block

    def between(self, first: bytes, end: bytes) -> Iterator[bytes]:
        if self._added:
            new = [key for key in sorted(self._added) if not self._holds(key)]
            self._sorted += new
            self._sorted.sort()  # two sorted runs: this merges them
            self._added.clear()
        lower, upper = bisect.bisect_left(self._sorted, first), bisect.bisect_left(self._sorted, end)
        return map(self._sorted.__getitem__, range(lower, upper))

    def _holds(self, key: bytes) -> bool:
        at = bisect.bisect_left(self._sorted, key)
        return at < len(self._sorted) and self._sorted[at] == key


class MemoryStore:
    """The memory backend's store; see ``row_store.StateStore``.

    ``directory`` holds the files of a checkpoint until they are uploaded.
    """

    kind = KIND
    made: type[MemoryRows] = MemoryRows

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._states: dict[str, MemoryRows] = {}

    def states(self) -> Collection[str]:
        return self._states.keys()

    def rows(self, state: str) -> StateRows:
        return self._states.setdefault(state, self.made())

    def drop(self, state: str) -> None:
        self._states.pop(state, None)

    def freeze(self, epoch: Epoch) -> AddFiles:
        frozen = {state: self.frozen(rows) for state, rows in self._states.items()}
        directory = self._directory / f"checkpoint-{epoch}"

        def add_files(batch: FileBatch) -> Callable[[], tuple[FileRef, ...]]:
            directory.mkdir()
            try:
                added = [_add(batch, directory / rows_file(state), rows) for state, rows in frozen.items()]
            finally:
                shutil.rmtree(directory)
            return lambda: tuple(get_ref() for get_ref in added)

        return add_files

    def frozen(self, rows: MemoryRows) -> dict[bytes, bytes]:
        """Return a state's rows for a checkpoint."""
        return rows.data.copy()

    def close(self) -> None:
        self._states.clear()


class _BroadcastRows(MemoryRows):
    """Rows with a cached digest of all of them."""

    digest: int | None = None

    def write(self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Iterable[bytes]) -> None:
        self.digest = None
        super().write(keys, values, deleted)


class BroadcastStore(MemoryStore):
    """Store that every subtask holds in full; each checkpoints only its own key groups, ``share``.

    All subtasks together store each row once.
    """

    made = _BroadcastRows

    def __init__(self, directory: Path, share: range) -> None:
        super().__init__(directory)
        self._first, self._end = group_prefix(share.start), group_prefix(share.stop)

    def frozen(self, rows: MemoryRows) -> dict[bytes, bytes]:
        return {key: value for key, value in rows.data.items() if self._first <= key < self._end}

    def digest(self, state: str) -> int:
        """Return a number that is equal for copies with equal rows."""
        rows = self.rows(state)
        assert isinstance(rows, _BroadcastRows)
        if rows.digest is None:
            digest = blake2b(digest_size=_DIGEST)
            for part in itertools.chain.from_iterable(sorted(rows.data.items())):
                digest.update(len(part).to_bytes(_LENGTH, "big") + part)
            rows.digest = int.from_bytes(digest.digest(), "big")
        return rows.digest


def read_rows(handle: StateHandle, stored: StoredFiles, scratch: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield all rows of a handle that a memory store wrote, in blocks, each with its state."""
    for file in handle.files:
        path = scratch / file.name
        stored.fetch(file, path)
        with path.open("rb") as source:
            for block in read_blocks(source, file.name):
                yield file.name.removesuffix(_SUFFIX), block
        path.unlink()


def _add(batch: FileBatch, path: Path, rows: dict[bytes, bytes]) -> Callable[[], FileRef]:
    with files.create_writer(path) as target:
        write_rows(target, rows.items())
    return batch.add(path)


def rows_file(state: str) -> str:
    """Return the name of the file with the rows of a state."""
    return f"{state}{_SUFFIX}"


def write_rows(target: BinaryIO, rows: Iterable[Row]) -> None:
    """Write a complete file of rows. The same rows in the same order give the same bytes."""
    target.write(_MAGIC)
    items = iter(rows)
    while block := list(itertools.chain.from_iterable(itertools.islice(items, LIMITS.state_rows_per_block))):
        data = msgspec.msgpack.encode(block)
        target.write(len(data).to_bytes(_LENGTH, "big") + data)


def read_blocks(source: BinaryIO, name: str) -> Iterator[list[Row]]:
    """Yield the rows of a file, in blocks. Raises CorruptCheckpoint if ``write_rows`` did not write it."""
    if source.readline(len(_MAGIC)) != _MAGIC:
        raise ConfigError(f"{name}: not in a format that this kafka-eos reads. Upgrade kafka-eos.")
    while head := source.read(_LENGTH):
        data = source.read(int.from_bytes(head, "big"))
        try:
            block = msgspec.msgpack.decode(data, type=list[bytes])
        except msgspec.DecodeError as error:
            raise CorruptCheckpoint(f"{name}: a block of rows cannot be read: {error}") from error
        yield list(zip(block[::2], block[1::2], strict=True))
