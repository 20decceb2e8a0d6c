"""The state backend: named states over a store, restored from handles, snapshot into one.

Rule: rows are stored with the codecs that wrote them. If a job declares another codec, it must be able to read the old
schema. Then the rows are rewritten at once; otherwise the job does not start; see ``schema_evolution``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec.structs import replace

from kafka_eos._util import failpoints
from kafka_eos.abc.state import (
    BackendState,
    CacheUse,
    Panes,
    StateBackend,
    StateDescriptor,
    StateHandle,
    StateUpload,
    TimerService,
)
from kafka_eos.abc.storage import CheckpointStorage, FileBatch, StoredFiles
from kafka_eos.core.errors import Bug, ConfigError
from kafka_eos.core.ids import Epoch, ensure_name
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state import memory_store as memory
from kafka_eos.runtime.state import rocksdb_store as rocksdb
from kafka_eos.runtime.state.broadcast_copies import COPY
from kafka_eos.runtime.state.entry_states import NEXT, CachedEntryState, CachedListState
from kafka_eos.runtime.state.epoch_scratch import MemorySpillStore, SpillStore, most_of
from kafka_eos.runtime.state.expiring_state import TIME, ExpiringState, TimestampedCodec
from kafka_eos.runtime.state.handle_merging import (
    Attributes,
    bounds,
    cursors,
    find_reusable_handle,
    merge_descriptions,
    merge_watermarks,
    select_handles,
)
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS, group_prefix
from kafka_eos.runtime.state.local_keys import LOCAL, check_new, is_local
from kafka_eos.runtime.state.memory_store import BroadcastStore
from kafka_eos.runtime.state.pane_state import NEWEST, PaneState
from kafka_eos.runtime.state.restore_progress import ProgressListener, RestoreFetcher, nobody
from kafka_eos.runtime.state.rocksdb_options import StateOptions
from kafka_eos.runtime.state.row_keys import RowKeyCodec
from kafka_eos.runtime.state.row_store import AddFiles, StateRows, StateStore
from kafka_eos.runtime.state.schema_evolution import (
    ATTRIBUTES,
    CURSOR,
    PENDING,
    UNFIRED,
    WATERMARKS,
    StateMigration,
    describe,
    keep_valid_attributes,
)
from kafka_eos.runtime.state.timers import GroupWatermark, PendingTimers
from kafka_eos.runtime.state.ttl_clock import UNKNOWN, create_ttl_clock, monotonic_clock, wall_clock
from kafka_eos.runtime.state.value_state import CachedValueState
from kafka_eos.storage.upload_batch import UploadBatch

T = TypeVar("T")

_READERS = {memory.KIND: memory.read_rows, rocksdb.KIND: rocksdb.read_rows}

_State: TypeAlias = CachedValueState[Any] | ExpiringState[Any] | PaneState[Any]


class _FrozenState:
    """The frozen state of one operator; see ``abc.StateUpload``. ``handle`` has everything but the files."""

    def __init__(self, handle: StateHandle, add_files: AddFiles) -> None:
        self._handle, self._add_files = handle, add_files

    def add_to(self, batch: FileBatch) -> Callable[[], StateHandle]:
        failpoints.hit("snapshot.upload")
        get_refs = self._add_files(batch)

        def get_handle() -> StateHandle:
            failpoints.hit("snapshot.uploaded")
            return replace(self._handle, files=get_refs())

        return get_handle

    def __call__(self, storage: CheckpointStorage) -> StateHandle:
        batch = UploadBatch(storage)
        get_handle = self.add_to(batch)
        batch.store()
        return get_handle()


class KeyedStateBackend:
    """A keyed state backend; see ``abc.StateBackend``. Use ``open_backend``."""

    def __init__(
        self,
        operator: str,
        store: StateStore,
        restored: Mapping[str, tuple[dict[str, Json], Attributes]],
        key_groups: range,
        cache_entries: int,
        clock: Callable[[], int],
        passing: Callable[[], int],
        clean_rows: int,
        local: bool,
        cursors: Mapping[str, bytes],
        floors: Mapping[str, Sequence[GroupWatermark]],
        pending: Mapping[str, int],
        converted: Callable[[int], None],
        compared: bool,
    ) -> None:
        """``pending``: the known numbers of timers, by name. ``compared``: copies must be equal at each barrier."""
        self._compared = compared
        self._floors, self._pending = floors, pending
        self._converted = converted
        self._operator = operator
        self._store = store
        self._local = local
        self._cursors = cursors
        self._stored = {name: stored for name, (stored, _) in restored.items()}
        """The description of each state's rows, by name."""
        self._attributes = {name: attributes for name, (_, attributes) in restored.items()}
        self._bounds = bounds(key_groups)
        self._groups = range(MAX_KEY_GROUPS) if local or isinstance(store, BroadcastStore) else key_groups
        self._cache_entries = cache_entries
        self._clock = clock
        self._passing = passing
        self._clean_rows = clean_rows
        self._open: dict[str, _State | PendingTimers] = {}

    def value(self, descriptor: StateDescriptor[T]) -> BackendState[T]:
        """Return the state of that name, of any kind. Raises ConfigError if the declared codec cannot read its rows."""
        rows, attributes = self._open_rows(descriptor)
        state = self._state(descriptor, rows, attributes)
        self._open[descriptor.name] = state
        return state

    def timers(self, descriptor: StateDescriptor[Any]) -> TimerService:
        rows, _ = self._open_rows(descriptor)
        given = (self._operator, descriptor, rows, self._groups, self._cache_entries)
        name = descriptor.name
        of_subtask = self._floors.get(name, ()), self._bounds, self._pending.get(name)
        found = self._open[name] = PendingTimers(*given, *of_subtask)
        return found

    def panes(self, descriptor: StateDescriptor[T]) -> Panes[T]:
        rows, attributes = self._open_rows(descriptor)
        # Rows that were written offline have no such attribute.
        newest = attributes[NEWEST] if NEWEST in attributes else _last(rows, RowKeyCodec(descriptor))
        given = (self._operator, descriptor, rows, self._groups, self._cache_entries)
        found = self._open[descriptor.name] = PaneState(*given, newest)
        return found

    def _open_rows(self, descriptor: StateDescriptor[Any]) -> tuple[StateRows, Attributes]:
        """Return a state's migrated rows and its attributes."""
        name = ensure_name(descriptor.name, "state name")
        if name in self._open:
            raise Bug(f"operator {self._operator!r} requests its state {name!r} twice")
        rows, attributes = self._store.rows(name), self._attributes.get(name, {})
        if name in self._stored:
            where = f"state {name!r} of operator {self._operator!r}"
            StateMigration(where, descriptor, self._stored[name], attributes.get(TIME, UNKNOWN), self._clock).apply(
                rows, self._converted
            )
            attributes = keep_valid_attributes(attributes, self._stored[name], describe(descriptor))
        self._stored[name] = describe(descriptor)
        return rows, attributes

    def drop(self, name: str) -> None:
        if name in self._open:
            raise Bug(f"operator {self._operator!r} forgets its state {name!r}, which it has opened")
        self._store.drop(name)
        self._stored.pop(name, None)
        self._attributes.pop(name, None)

    def _state(
        self, descriptor: StateDescriptor[Any], rows: StateRows, attributes: Attributes
    ) -> CachedValueState[Any] | ExpiringState[Any]:
        if (ttl := descriptor.ttl) is None:
            return self._cached(descriptor, rows, attributes)
        inner = self._cached(replace(descriptor, value=TimestampedCodec(descriptor.value)), rows, attributes)
        time = create_ttl_clock(ttl.clock, self._clock, attributes.get(TIME, UNKNOWN), self._passing)
        return ExpiringState(inner, rows, self._groups, ttl, time, self._cursors.get(descriptor.name, b""))

    def _cached(
        self, descriptor: StateDescriptor[Any], rows: StateRows, attributes: Attributes
    ) -> CachedValueState[Any]:
        given = (self._operator, descriptor, rows, self._groups, self._cache_entries)
        if descriptor.kind == "list":
            first = attributes[NEXT] if NEXT in attributes else _next(rows, RowKeyCodec(descriptor))
            return CachedListState(*given, first=first)
        if descriptor.entry is None and descriptor.namespace is None:
            return CachedValueState(*given)
        return CachedEntryState(*given)

    def snapshot(self, epoch: Epoch) -> StateUpload:
        failpoints.hit("snapshot.flush")
        for state in self._open.values():
            if isinstance(state, ExpiringState):
                state.clean(self._clean_rows)
            state.flush()
        add_files = self._store.freeze(epoch)
        failpoints.hit("snapshot.linked")
        states = tuple(self._described(name) for name in sorted(self._stored))
        return _FrozenState(StateHandle(self._operator, self._store.kind, self._bounds, (), states), add_files)

    def pending_timers(self) -> int | None:
        found = [state.pending for state in self._open.values() if isinstance(state, PendingTimers)]
        return sum(found) if found else None

    def cache(self) -> CacheUse:
        states = [state for state in self._open.values() if not isinstance(state, PendingTimers)]
        return CacheUse(sum(state.loads for state in states), sum(state.cached for state in states))

    def close(self) -> None:
        self._store.close()

    def _described(self, name: str) -> dict[str, Json]:
        attributes = self._open[name].get_attributes() if name in self._open else self._attributes.get(name, {})
        replaced = (LOCAL, COPY)
        attributes = {attribute: value for attribute, value in attributes.items() if attribute not in replaced} | (
            {LOCAL: 1} if self._local else {}
        )
        if isinstance(self._store, BroadcastStore) and self._compared:
            attributes[COPY] = self._store.digest(name)
        described = dict(self._stored[name])
        if attributes:
            described[ATTRIBUTES] = dict(attributes)
        state = self._open.get(name)
        if isinstance(state, ExpiringState):
            described[CURSOR] = state.cursor.hex()
        if isinstance(state, PendingTimers):
            described[WATERMARKS] = state.watermarks()
            described[PENDING] = state.pending
            if not state.all_fired:
                described[UNFIRED] = True
        elif floors := self._floors.get(name):
            described[WATERMARKS] = [list(floor) for floor in floors]
        return described


def open_backend(
    kind: Literal["memory", "rocksdb"],
    operator: str,
    directory: Path,
    key_groups: range,
    handles: Sequence[StateHandle],
    storage: CheckpointStorage,
    cache_entries: int = 1_000_000,
    *,
    options: StateOptions | None = None,
    clock: Callable[[], int] = wall_clock,
    passing: Callable[[], int] = monotonic_clock,
    local: bool = False,
    by_split: bool = False,
    copied: bool = False,
    compared: bool = True,
    on_progress: ProgressListener = nobody,
) -> StateBackend:
    """Return the state of one operator for ``key_groups``, as it was in ``handles`` (empty for a fresh start).

    ``directory`` is private to this attempt and wiped; with ``rocksdb`` it should be on the file system of the
    checkpoints, where files are linked instead of copied. ``cache_entries`` bounds the objects in memory, per state.
    ``handles`` are those of all subtasks. One of this backend and exactly this range is used unchanged; others are
    converted row by row. ``clock`` returns the time of state that expires, in ms since the epoch; ``passing`` a
    monotonic time in ms.

    ``local``: keys are of any group, and ``key_groups`` only names the subtask (see ``local_keys``). ``by_split``:
    likewise, and each subtask receives the rows of all, of which its operator keeps those of its own splits.
    ``copied``: each subtask has the rows of all and stores those of its own groups, in memory whatever ``kind`` says.
    ``compared``: all copies must be equal at a barrier, which ``broadcast_copies.find_differing_copies`` checks.

    ``on_progress`` is called with the progress of the restore, and while the rows of a state are rewritten when it is
    opened; its exceptions end the restore.

    Raises CorruptCheckpoint if a file differs from what was stored, RestartFromCheckpoint if RocksDB fails, and
    ConfigError if local state cannot be divided as requested.
    """
    ensure_name(operator, "operator name")
    scattered = any(map(is_local, handles))
    handles = select_handles(operator, key_groups, handles, local=local, of_all=by_split or copied)
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(mode=0o700, parents=True)
    whole = None if copied else find_reusable_handle(kind, key_groups, handles)
    local = local or by_split
    options, groups = options or StateOptions(), range(MAX_KEY_GROUPS) if local or copied else key_groups
    restoration = RestoreFetcher(operator, storage, [file for handle in handles for file in handle.files], on_progress)
    store = (
        BroadcastStore(directory, key_groups) if copied else _open_store(kind, directory, whole, restoration, options)
    )
    for number, handle in enumerate(handles if not whole else ()):
        _import(store, handle, groups, restoration, directory / f"restore-{number}", scattered)
    return KeyedStateBackend(
        operator,
        store,
        merge_descriptions(operator, handles),
        key_groups,
        cache_entries,
        clock,
        passing,
        options.ttl_cleanup_rows,
        local,
        cursors(handles),
        merge_watermarks(handles, key_groups, local=local),
        _pending(whole),
        restoration.count_rows,
        compared,
    )


def open_scratch(
    kind: Literal["memory", "rocksdb"], directory: Path, cache_entries: int, options: StateOptions
) -> SpillStore:
    """Open the spill store of an operator, of the same kind and bounds as its states.

    ``directory`` is private to this attempt and wiped.
    """
    most = most_of(cache_entries)
    return rocksdb.RocksSpillStore(directory, most, options) if kind == rocksdb.KIND else MemorySpillStore(most)


def _open_store(
    kind: str, directory: Path, handle: StateHandle | None, stored: StoredFiles, options: StateOptions
) -> StateStore:
    if kind == rocksdb.KIND:
        return rocksdb.RocksStore(directory, handle, stored, options)
    return memory.MemoryStore(directory)


def _import(
    store: StateStore,
    handle: StateHandle,
    groups: range,
    restoration: RestoreFetcher,
    scratch: Path,
    scattered: bool,
) -> None:
    """Import the rows of ``groups`` from any handle. ``scattered``: other handles may have the same keys."""
    if handle.backend not in _READERS:
        raise ConfigError(f"the checkpoint was created by state backend {handle.backend!r}, which is unknown here")
    scratch.mkdir(mode=0o700)
    first, end = group_prefix(groups.start), group_prefix(groups.stop)
    for state, block in _READERS[handle.backend](handle, restoration, scratch):
        own = [row for row in block if first <= row[0] < end]
        if scattered:
            check_new(store.rows(state), own, handle.operator, state)
        store.rows(state).write([key for key, _ in own], [value for _, value in own], ())
        restoration.count_rows(len(block))
    shutil.rmtree(scratch)


def _pending(whole: StateHandle | None) -> dict[str, int]:
    """Return how many timers there are, by name, if the rows are those of one handle."""
    stored = () if whole is None else whole.states
    return {str(state["name"]): count for state in stored if type(count := state.get(PENDING)) is int}


def _next(rows: StateRows, layout: RowKeyCodec) -> int:
    """Return a number higher than that of any element, for rows without the attribute."""
    last = _last(rows, layout)
    return 0 if last is None else last + 1


def _last(rows: StateRows, layout: RowKeyCodec) -> int | None:
    """Return the highest number, or the newest pane, of any row."""
    return max((layout.decode(row_key)[-1] for row_key, _ in rows.scan()), default=None)
