"""Reads the rows of stored state in the order of their row keys, without a running job.

Rule: the rows are the same for every backend that wrote the handle. ``scratch`` is a private directory; on the file
system of the storage, files are linked into it instead of copied.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.core.errors import ConfigError
from kafka_eos.runtime.state import memory_store as memory
from kafka_eos.runtime.state import rocksdb_store as rocksdb
from kafka_eos.runtime.state.rocksdb_options import StateOptions
from kafka_eos.runtime.state.row_store import Row
from kafka_eos.storage.savepoint_files import SavepointFiles

Scan: TypeAlias = Generator[Row, None, None]


class HandleRows(Protocol):
    """The rows of one state handle, read offline."""

    def scan(self, state: str) -> Scan:
        """Yield all rows of a state, in the order of their keys. An iterator that is not exhausted must be closed."""

    def close(self) -> None: ...


class _MemoryHandleRows:
    """Rows of a handle of the memory backend.

    Only those of a savepoint are stored in order; others fit in memory and are sorted there.
    """

    def __init__(self, handle: StateHandle, storage: CheckpointStorage, scratch: Path) -> None:
        self._files = {file.name: file for file in handle.files}
        self._storage, self._scratch = storage, scratch
        self._sorted = isinstance(storage, SavepointFiles) and storage.ordered

    def scan(self, state: str) -> Scan:
        file = self._files.get(memory.rows_file(state))
        if file is None:
            return
        path = self._scratch / file.name
        self._storage.fetch(file, path)
        try:
            with path.open("rb") as source:
                rows: Iterable[Row] = (row for block in memory.read_blocks(source, file.name) for row in block)
                yield from rows if self._sorted else sorted(rows)
        finally:
            path.unlink()

    def close(self) -> None:
        return None


class _RocksHandleRows:
    """Rows of a handle of the RocksDB backend."""

    def __init__(self, handle: StateHandle, storage: CheckpointStorage, scratch: Path) -> None:
        self._store = rocksdb.RocksStore(scratch, handle, storage, StateOptions())

    def scan(self, state: str) -> Scan:
        if state in self._store.states():
            yield from self._store.rows(state).scan()

    def close(self) -> None:
        self._store.close()


_Opener: TypeAlias = Callable[[StateHandle, CheckpointStorage, Path], HandleRows]
_KINDS: Mapping[str, _Opener] = {memory.KIND: _MemoryHandleRows, rocksdb.KIND: _RocksHandleRows}


@contextmanager
def open_handles(
    handles: Sequence[StateHandle], storage: CheckpointStorage, scratch: Path
) -> Iterator[list[HandleRows]]:
    """Open the rows of handles, in key-group order, as a context manager.

    Raises CorruptCheckpoint if a file differs from what was stored.
    """
    with ExitStack() as stack:
        found: list[HandleRows] = []
        for number, handle in enumerate(sorted(handles, key=lambda handle: handle.key_groups)):
            if handle.backend not in _KINDS:
                raise ConfigError(f"the state was stored by backend {handle.backend!r}, which is unknown here")
            directory = scratch / f"handle-{number}"
            directory.mkdir(mode=0o700)
            stack.callback(shutil.rmtree, directory)
            rows = _KINDS[handle.backend](handle, storage, directory)
            stack.callback(rows.close)
            found.append(rows)
        yield found
