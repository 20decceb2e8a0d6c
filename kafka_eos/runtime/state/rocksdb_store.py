"""Rows in RocksDB, one column family per state; a checkpoint is a set of hard links, uploaded by content.

The write-ahead log is off: a checkpoint flushes, and nothing between two checkpoints has to survive. Rows are written
in bulk, at a barrier, and flushed before they are read. So the memtable is a plain vector, which takes a row in a tenth
of the time (with the GIL held) and is sorted when it is flushed (without it). Rule: this is the only import of
rocksdict, and its errors leave here as RestartFromCheckpoint.
"""

from __future__ import annotations

import itertools
import shutil
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from msgspec.structs import replace
from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompactionStyle,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileBatch, FileRef, StoredFiles
from kafka_eos.core.errors import Bug, RestartFromCheckpoint
from kafka_eos.core.ids import Epoch
from kafka_eos.core.limits import LIMITS
from kafka_eos.runtime.state.rocksdb_options import RocksDBTuning, StateOptions
from kafka_eos.runtime.state.row_store import AddFiles, Row, StateRows
from kafka_eos.storage.object_names import IMMUTABLE_SUFFIX, ensure_plain_name

KIND = "rocksdb"

BACKGROUND_JOBS = 2

READING = StateOptions(memory=16 << 20)
"""Options of a database that is read once, in order: it needs almost no cache."""
_COMPACTION = {"level": DBCompactionStyle.level, "universal": DBCompactionStyle.universal}
_DEFAULT = "default"
_MANIFEST = "MANIFEST-"
_MANIFEST_BYTES = 32 << 10
"""Bytes of a manifest after which RocksDB begins a new one. It grows with each flush, and each epoch stores it."""
_FETCHES = 8
"""Most files that are fetched at the same time."""
_SCRATCH_FILES = 256
"""Files of a spill store before any are merged. Its rows are written once and read once: merging them is useless."""
_HEAP_BYTES, _NUMBER_BYTES = 2, 6
_LAST = b"\xff" * (_HEAP_BYTES + _NUMBER_BYTES)
"""An upper bound of all row keys of a spill store."""


class RocksRows:
    """The rows of one state: one column family."""

    def __init__(self, db: Rdict, state: str) -> None:
        self._db, self._state = db, state
        self._family = db.get_column_family(state)
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign,assignment]
        self._changed = False

    def get(self, keys: list[bytes]) -> Sequence[bytes | None]:
        self.flush()  # a look-up in a vector would sort all of it
        with _rocksdb("read"):
            found: Sequence[bytes | None] = self._family.get(keys)  # type: ignore[assignment,arg-type]
        return found

    def write(self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Iterable[bytes]) -> None:
        if len(keys) != len(values):
            raise Bug(f"{len(keys)} keys and {len(values)} values of state {self._state!r} do not form rows")
        with _rocksdb("write"):
            batch = WriteBatch(raw_mode=True)
            # Not cached: while a handle is referenced, closing the database does not release its lock.
            batch.set_default_column_family(self._db.get_column_family_handle(self._state))
            deque(map(batch.put, keys, values), maxlen=0)
            deque(map(batch.delete, deleted), maxlen=0)
            self._db.write(batch, self._unlogged)
        self._changed = True

    def delete_ranges(self, ranges: Iterable[tuple[bytes, bytes]]) -> None:
        with _rocksdb("delete a range"):
            batch = WriteBatch(raw_mode=True)
            family = self._db.get_column_family_handle(self._state)
            for first, end in ranges:
                batch.delete_range(first, end, family)  # the batch's default column family does not apply here
            self._db.write(batch, self._unlogged)
        self._changed = True

    def scan(self) -> Iterator[Row]:
        self.flush()
        with _rocksdb("open an iterator"):
            rows: Iterator[Row] = self._family.items()  # type: ignore[assignment]
        return rows

    def page(self, first: bytes, end: bytes, limit: int) -> list[Row]:
        self.flush()
        with _rocksdb("read a range"):
            bounds = ReadOptions()
            # Without an upper bound, a scan beyond the last row of the range walks over all deleted rows behind it.
            bounds.set_iterate_upper_bound(end)
            rows: Iterator[Row] = self._family.items(from_key=first, read_opt=bounds)  # type: ignore[assignment]
            return list(itertools.islice(rows, limit))

    def flush(self) -> None:
        """Flush the memtable to a file. Releases the GIL, which creating a checkpoint with a full memtable does not."""
        if self._changed:
            with _rocksdb("flush"):
                self._family.flush(True)
            self._changed = False

    def close(self) -> None:
        """Close the column family.

        The database stays locked while one is open, or while an iterator of ``scan`` exists.
        """
        with _rocksdb("close a column family"):
            self._family.close()


class RocksStore:
    """The RocksDB backend's store; see ``row_store.StateStore``.

    ``directory`` is private to one attempt; ``handle`` is the state to start from.
    """

    kind = KIND

    def __init__(
        self,
        directory: Path,
        handle: StateHandle | None,
        stored: StoredFiles,
        options: StateOptions = READING,
    ) -> None:
        self._directory = directory
        self._uploaded: dict[str, FileRef] = {}
        """The stored files of the latest epoch, by name."""
        path = directory / "db"
        path.mkdir(mode=0o700)
        if handle is not None:
            _fetch(handle, stored, path)
            # RocksDB neither rewrites such a file nor reuses its number.
            self._uploaded = {file.name: file for file in handle.files if file.name.endswith(IMMUTABLE_SUFFIX)}
        self._options = _options(options)
        self._db = _open(path, self._options, restored=handle is not None)
        self._rows = {name: RocksRows(self._db, name) for name in _families(path, handle is not None)}

    def states(self) -> Collection[str]:
        return self._rows.keys()

    def rows(self, state: str) -> StateRows:
        if state not in self._rows:
            with _rocksdb("create a column family"):
                self._db.create_column_family(state, self._options)
            self._rows[state] = RocksRows(self._db, state)
        return self._rows[state]

    def drop(self, state: str) -> None:
        if (rows := self._rows.pop(state, None)) is not None:
            rows.close()
            with _rocksdb("drop a column family"):
                self._db.drop_column_family(state)

    def freeze(self, epoch: Epoch) -> AddFiles:
        for rows in self._rows.values():
            rows.flush()
        directory = self._directory / f"checkpoint-{epoch}"
        with _rocksdb("create a checkpoint"):
            Checkpoint(self._db).create_checkpoint(str(directory))

        def add_files(batch: FileBatch) -> Callable[[], tuple[FileRef, ...]]:
            try:
                added = [self._add(batch, path) for path in sorted(directory.iterdir()) if _needed(path)]
            finally:
                left.detach()
                shutil.rmtree(directory)

            def get_refs() -> tuple[FileRef, ...]:
                stored = tuple(get_ref() for get_ref in added)
                self._uploaded = {file.name: file for file in stored}
                return stored

            return get_refs

        # An aborted epoch is never uploaded: delete its hard links, or they keep dropped files.
        left = weakref.finalize(add_files, shutil.rmtree, directory, ignore_errors=True)
        return add_files

    def close(self) -> None:
        for rows in self._rows.values():
            rows.close()
        with _rocksdb("close"):
            self._db.close()

    def _add(self, batch: FileBatch, path: Path) -> Callable[[], FileRef]:
        known = self._uploaded.get(path.name)
        if known is not None and known.size == path.stat().st_size:
            return lambda: known  # a table never changes, and a manifest only grows
        path.chmod(0o600)  # RocksDB's files are readable for others; a private file is linked instead of copied
        return batch.add(path)


class RocksSpillStore:
    """Spill store in its own RocksDB database on local disk. A row is ``bucket | number of the put -> block``."""

    def __init__(self, directory: Path, most: int, options: StateOptions) -> None:
        """``directory`` is private to the operator; it exists only while rows are spilled."""
        # Two full write buffers make the writer wait, so small ones are a bound. No filters: there are no look-ups.
        buffer = min(options.tuning.write_buffer, options.memory // 16)
        tuning = replace(options.tuning, write_buffer=buffer, bloom_bits=0, level0_files=_SCRATCH_FILES)
        self.max_keys = most
        self._directory = directory
        self._options = replace(options, tuning=tuning)
        self._table: tuple[Rdict, RocksRows] | None = None
        self._puts = 0
        self._remove()

    def put(self, heap: int, block: bytes) -> None:
        if self._table is None:
            self._directory.mkdir(mode=0o700, parents=True)
            db = _open(self._directory, _options(self._options), restored=False)
            self._table = db, RocksRows(db, _DEFAULT)
        row = heap.to_bytes(_HEAP_BYTES, "big") + self._puts.to_bytes(_NUMBER_BYTES, "big")
        self._puts += 1
        self._table[1].write([row], [block], ())
        hit("scratch.put")

    def drain(self) -> Iterator[tuple[int, bytes]]:
        # No RocksDB iterator is kept between two pages: it would prevent the database from closing.
        first = b""
        while self._table is not None and (page := self._table[1].page(first, _LAST, LIMITS.scratch_rows_per_page)):
            for row, block in page:
                yield int.from_bytes(row[:_HEAP_BYTES], "big"), block
                hit("scratch.taken")
            first = page[-1][0] + b"\0"
        self.close()

    def close(self) -> None:
        table, self._table, self._puts = self._table, None, 0
        try:
            if table is not None:
                db, rows = table
                rows.close()
                with _rocksdb("close"):
                    db.close()
        finally:
            self._remove()

    def _remove(self) -> None:
        if self._directory.exists():
            shutil.rmtree(self._directory)


def read_rows(handle: StateHandle, stored: StoredFiles, scratch: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield all rows of a handle that a RocksDB store wrote, in blocks, each with its state."""
    store = RocksStore(scratch, handle, stored)
    try:
        for state in store.states():
            rows = store.rows(state).scan()
            while block := list(itertools.islice(rows, LIMITS.state_rows_per_block)):
                yield state, block
    finally:
        store.close()


def _fetch(handle: StateHandle, stored: StoredFiles, path: Path) -> None:
    """Fetch several files at a time: one stream from an object store is slower than the network."""

    def fetch(file: FileRef) -> None:
        stored.fetch(file, path / ensure_plain_name(file.name))
        if file.name.startswith(_MANIFEST):
            (path / "CURRENT").write_text(f"{file.name}\n")

    with ThreadPoolExecutor(_FETCHES, thread_name_prefix="restore") as pool:
        deque(pool.map(fetch, handle.files), maxlen=0)  # an error cancels those that have not begun


def _needed(path: Path) -> bool:
    """Return whether the file is needed to open the database again.

    The log is empty, options are ours, and CURRENT has nothing but the name of the manifest.
    """
    return path.suffix == IMMUTABLE_SUFFIX or path.name.startswith(_MANIFEST)


def _open(path: Path, options: Options, restored: bool) -> Rdict:
    with _rocksdb("open"):
        families = dict.fromkeys(Rdict.list_cf(str(path)) if restored else [], options)
        return Rdict(str(path), options, families or None)


def _families(path: Path, restored: bool) -> list[str]:
    with _rocksdb("list column families"):
        return [name for name in Rdict.list_cf(str(path)) if name != _DEFAULT] if restored else []


@cache
def _memory(size: int) -> tuple[Cache, WriteBufferManager]:
    """Return one block cache for all databases of the process; write buffers are charged to it, and get at most
    half."""
    blocks = Cache(size)
    return blocks, WriteBufferManager.new_write_buffer_manager_with_cache(size // 2, False, blocks)


def _options(given: StateOptions) -> Options:
    blocks, buffers = _memory(given.memory)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(_table(given.tuning, blocks))
    options.set_compression_type(DBCompressionType.lz4())
    options.set_memtable_factory(MemtableFactory.vector())
    options.set_allow_concurrent_memtable_write(False)
    options.set_write_buffer_manager(buffers)
    options.set_write_buffer_size(given.tuning.write_buffer)
    options.set_compaction_style(_COMPACTION[given.tuning.compaction]())
    options.set_level_zero_file_num_compaction_trigger(given.tuning.level0_files)
    options.set_max_background_jobs(BACKGROUND_JOBS)
    options.set_keep_log_file_num(1)
    options.set_max_manifest_file_size(_MANIFEST_BYTES)
    options.set_stats_dump_period_sec(0)
    return options


def _table(tuning: RocksDBTuning, blocks: Cache) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_cache(blocks)
    # Otherwise they would be outside of the cache, and of its bound.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_block_size(tuning.block_size)
    if tuning.bloom_bits:
        table.set_bloom_filter(tuning.bloom_bits, False)
    table.set_format_version(5)
    return table


@contextmanager
def _rocksdb(doing: str) -> Iterator[None]:
    """Map rocksdict's errors: it raises a bare Exception for every error of RocksDB."""
    try:
        yield
    except DbClosedError as error:
        raise Bug(f"RocksDB was used after close, to {doing}") from error
    except Exception as error:
        raise RestartFromCheckpoint(f"RocksDB could not {doing}: {error}") from error
