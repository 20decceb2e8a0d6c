"""The state backend: named states over a store, restored from handles, snapshot into one.

Rule: rows are stored with the codecs that wrote them. A job that declares another codec either has a codec
that can read the old schema, and then the rows are rewritten at once, or it does not start.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from kafka_eos import failpoints
from kafka_eos.errors import Bug, ConfigError
from kafka_eos.ids import Epoch, token
from kafka_eos.interfaces import (
    CheckpointStorage,
    Codec,
    Json,
    StateBackend,
    StateDescriptor,
    StateHandle,
    Upload,
    ValueState,
)
from kafka_eos.state import memory, rocksdb
from kafka_eos.state.keygroups import MAX_KEY_GROUPS, group_prefix
from kafka_eos.state.rows import Row, Rows, Store
from kafka_eos.state.values import CachedValueState

T = TypeVar("T")

_READERS = {memory.KIND: memory.read_rows, rocksdb.KIND: rocksdb.read_rows}
_REWRITE = 8192
"""Rows that are rewritten at once."""


@runtime_checkable
class ResolvingCodec(Protocol):
    """A value codec that can read what an older schema wrote, e.g. Avro."""

    def reader_of(self, writer_schema: Json) -> Codec[Any]:
        """A codec that decodes ``writer_schema`` into today's values. ConfigError if they are incompatible."""


class KeyedStateBackend:
    """See ``interfaces.StateBackend``. Use ``open_backend``."""

    def __init__(
        self,
        operator: str,
        store: Store,
        restored: Mapping[str, Mapping[str, Json]],
        key_groups: range,
        cache_entries: int,
        max_key_groups: int,
    ) -> None:
        self._operator, self._store = operator, store
        self._stored = dict(restored)
        """How the rows of each state are written, by name."""
        self._groups, self._cache_entries, self._max_key_groups = key_groups, cache_entries, max_key_groups
        self._open: dict[str, CachedValueState[Any]] = {}

    def value(self, descriptor: StateDescriptor[T]) -> ValueState[T]:
        """The state of that name. ConfigError if its rows were written by a codec that does not fit."""
        name = token(descriptor.name, "state name")
        if name in self._open:
            raise Bug(f"operator {self._operator!r} asks twice for its state {name!r}")
        rows = self._store.rows(name)
        declared = _describe(descriptor)
        if self._stored.get(name, declared) != declared:
            self._convert(rows, descriptor, self._stored[name], declared)
        self._stored[name] = declared
        state = CachedValueState(
            self._operator, descriptor, rows, self._groups, self._max_key_groups, self._cache_entries
        )
        self._open[name] = state
        return state

    def snapshot(self, epoch: Epoch) -> Upload:
        failpoints.hit("snapshot.flush")
        for state in self._open.values():
            state.flush()
        upload_files = self._store.freeze(epoch)
        failpoints.hit("snapshot.linked")
        states = tuple(self._stored[name] for name in sorted(self._stored))
        bounds = (self._groups.start, self._groups.stop - 1)

        def upload(storage: CheckpointStorage) -> StateHandle:
            failpoints.hit("snapshot.upload")
            files = upload_files(storage)
            failpoints.hit("snapshot.uploaded")
            return StateHandle(self._operator, self._store.kind, bounds, files, states)

        return upload

    def close(self) -> None:
        self._store.close()

    def _convert(
        self, rows: Rows, descriptor: StateDescriptor[Any], stored: Mapping[str, Json], declared: Mapping[str, Json]
    ) -> None:
        """Rewrite all rows of a state with today's value codec, or raise ConfigError."""
        codec = descriptor.value
        same_key, same_format = stored["key"] == declared["key"], _format(stored) == _format(declared)
        if not (same_key and same_format and isinstance(codec, ResolvingCodec)):
            raise ConfigError(
                f"state {descriptor.name!r} of operator {self._operator!r} was written with {stored}, and the job "
                f"declares {declared}. Declare the old codec, or give the state a new name to start it empty."
            )
        decode, encode = codec.reader_of(_value_schema(stored)).decode, codec.encode
        try:
            for block in _blocks(rows.scan()):
                rows.write([key for key, _ in block], [encode(decode(value)) for _, value in block], ())
        except ValueError as error:
            raise ConfigError(
                f"state {descriptor.name!r} of operator {self._operator!r}: a value written with {stored} cannot be "
                f"read as {declared}: {error}"
            ) from error


def open_backend(
    kind: Literal["memory", "rocksdb"],
    operator: str,
    directory: Path,
    key_groups: range,
    handles: Sequence[StateHandle],
    storage: CheckpointStorage,
    cache_entries: int = 1_000_000,
    max_key_groups: int = MAX_KEY_GROUPS,
) -> StateBackend:
    """The state of one operator for ``key_groups``, as it was in ``handles`` (empty for a fresh start).

    ``directory`` is private to this attempt and wiped; with ``rocksdb`` it should be on the file system of
    the checkpoints, where files are linked and not copied. ``cache_entries`` bounds the objects in memory,
    a state. A handle of another backend or another range of key groups is converted row by row.

    Raises CorruptCheckpoint if a file is not what was stored, RestartFromCheckpoint if RocksDB fails.
    """
    token(operator, "operator name")
    _check_cover(operator, key_groups, handles)
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(mode=0o700, parents=True)
    bounds = (key_groups.start, key_groups.stop - 1)
    whole = [h for h in handles if kind == rocksdb.KIND == h.backend and h.key_groups == bounds and len(handles) == 1]
    store: Store = (
        rocksdb.RocksStore(directory, whole[0] if whole else None, storage)
        if kind == rocksdb.KIND
        else memory.MemoryStore(directory)
    )
    for number, handle in enumerate(handles if not whole else ()):
        _import(store, handle, key_groups, storage, directory / f"restore-{number}")
    restored = _restored(operator, handles)
    return KeyedStateBackend(operator, store, restored, key_groups, cache_entries, max_key_groups)


def _import(store: Store, handle: StateHandle, groups: range, storage: CheckpointStorage, scratch: Path) -> None:
    """Take the rows of ``groups`` out of any handle."""
    if handle.backend not in _READERS:
        raise ConfigError(f"the checkpoint was made by state backend {handle.backend!r}, which is not known here")
    scratch.mkdir(mode=0o700)
    first, end = group_prefix(groups.start), group_prefix(groups.stop)
    for state, block in _READERS[handle.backend](handle, storage, scratch):
        own = [row for row in block if first <= row[0] < end]
        store.rows(state).write([key for key, _ in own], [value for _, value in own], ())
    shutil.rmtree(scratch)


def _check_cover(operator: str, groups: range, handles: Sequence[StateHandle]) -> None:
    covered = [group for h in handles for group in range(h.key_groups[0], h.key_groups[1] + 1) if group in groups]
    foreign = {h.operator for h in handles} - {operator}
    if foreign or (handles and sorted(covered) != list(groups)):
        raise Bug(f"operator {operator!r} needs each of key groups {groups} once, and was handed {list(handles)}")


def _restored(operator: str, handles: Sequence[StateHandle]) -> dict[str, Mapping[str, Json]]:
    restored: dict[str, Mapping[str, Json]] = {}
    for state in (state for handle in handles for state in handle.states):
        name = str(state["name"])
        if restored.setdefault(name, state) != state:
            raise Bug(f"operator {operator!r}: subtasks of one epoch wrote state {name!r} with different codecs")
    return restored


def _describe(descriptor: StateDescriptor[Any]) -> dict[str, Json]:
    key, value = descriptor.key, descriptor.value
    return {
        "name": descriptor.name,
        "key": {"name": key.name, "schema": key.schema},
        "value": {"name": value.name, "schema": value.schema},
    }


def _format(state: Mapping[str, Json]) -> Json:
    value = state["value"]
    return value["name"] if isinstance(value, dict) else None


def _value_schema(state: Mapping[str, Json]) -> Json:
    value = state["value"]
    return value["schema"] if isinstance(value, dict) else None


def _blocks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while block := list(itertools.islice(rows, _REWRITE)):
        yield block
