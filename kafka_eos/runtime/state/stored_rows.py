"""Read the rows of stored state, in the order of their row keys, without a job that runs.

Rule: whoever wrote the handle, its rows come out the same. ``scratch`` is a private directory; on the file system of
the storage, files are linked into it and not copied.
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


class StoredRows(Protocol):
    """The rows of one handle."""

    def scan(self, state: str) -> Scan:
        """All rows of a state, in the order of their keys. An iterator that is not exhausted must be closed."""

    def close(self) -> None: ...


class _Files:
    """A handle of the memory backend. Only those of a savepoint are sorted; others fit in memory, by their nature."""

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


class _Database:
    """A handle of the RocksDB backend."""

    def __init__(self, handle: StateHandle, storage: CheckpointStorage, scratch: Path) -> None:
        self._store = rocksdb.RocksStore(scratch, handle, storage, StateOptions())

    def scan(self, state: str) -> Scan:
        if state in self._store.states():
            yield from self._store.rows(state).scan()

    def close(self) -> None:
        self._store.close()


_Opener: TypeAlias = Callable[[StateHandle, CheckpointStorage, Path], StoredRows]
_KINDS: Mapping[str, _Opener] = {memory.KIND: _Files, rocksdb.KIND: _Database}


@contextmanager
def opened(handles: Sequence[StateHandle], storage: CheckpointStorage, scratch: Path) -> Iterator[list[StoredRows]]:
    """The rows of handles, in the order of their key groups. CorruptCheckpoint if a file is not what was stored."""
    with ExitStack() as stack:
        found: list[StoredRows] = []
        for number, handle in enumerate(sorted(handles, key=lambda handle: handle.key_groups)):
            if handle.backend not in _KINDS:
                raise ConfigError(f"the state was stored by backend {handle.backend!r}, which is not known here")
            directory = scratch / f"{handle.operator}-{number}"
            directory.mkdir(mode=0o700)
            stack.callback(shutil.rmtree, directory)
            rows = _KINDS[handle.backend](handle, storage, directory)
            stack.callback(rows.close)
            found.append(rows)
        yield found
