"""The state that a savepoint or a checkpoint holds, decoded.

The stored codecs and schemas determine the values (see ``codecs.operator_state.stored_codecs``); keys are returned
unchanged. In states with namespaces or entries (maps, lists), the state key is a tuple that begins with the key.

Rule: reading changes nothing that is stored. Rows are streamed; only checkpoints of the memory backend are sorted in
memory, a state at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor, StateHandle, Ttl
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.codecs.operator_state.stored_codecs import get_plain_codec
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.expiring_state import TIME, TimestampedCodec, is_expired
from kafka_eos.runtime.state.key_groups import check_key_groups, group_of
from kafka_eos.runtime.state.local_keys import is_local
from kafka_eos.runtime.state.row_keys import RowKeyCodec
from kafka_eos.runtime.state.row_store import Row
from kafka_eos.runtime.state.schema_evolution import DEFINITION, split_description
from kafka_eos.runtime.state.stored_rows import Scan, open_handles
from kafka_eos.runtime.state.timers import TimeCodec, TimerValueCodec
from kafka_eos.runtime.state.ttl_clock import UNKNOWN
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalFiles
from kafka_eos.storage.savepoint_files import Savepoint, SavepointFiles
from kafka_eos.storage.storage_factory import open_storage

ALL_NAMESPACES: Any = object()
"""Instead of a namespace: all of them."""

_OWN: Mapping[str, Codec[Any]] = {each.name: each for each in (ElementNumberCodec(), TimeCodec(), TimerValueCodec())}
"""Codecs that no type of a user's has, by name."""


@dataclass(frozen=True, slots=True)
class StateInfo:
    """One state of an operator. ``description`` is what is stored about it: codecs, schemas, kind, time to live."""

    operator: str
    name: str
    kind: str
    bytes: int
    """Size of the operator's files that this state is in; with RocksDB states share files."""
    description: Mapping[str, Json]


class Snapshot:
    """Positions and state of one savepoint, or of one committed epoch of a job. Create it with ``open``."""

    def __init__(self, path: Path | str, storage: CheckpointStorage, content: Savepoint | Manifest) -> None:
        check_key_groups(str(path), content.max_key_groups)
        self.path = path
        self.storage = storage
        self.content = content
        self.handles: tuple[StateHandle, ...] = content.operators if isinstance(content, Savepoint) else content.states

    @classmethod
    def open(cls, path: str | Path, epoch: int | None = None) -> Snapshot:
        """Open a savepoint's directory; or a job's, with its newest committed epoch or the given decided one.

        The job's may also be the address of a store. Raise ConfigError if it is neither, CorruptCheckpoint if it is
        damaged.
        """
        if isinstance(path, str) and "://" in path:
            remote = open_storage(path)
            return cls(path, remote, _manifest(remote, path, epoch))
        path = Path(path)
        if (path / paths.SAVEPOINT).exists():
            if epoch is not None:
                raise ConfigError(f"{path} is a savepoint of a single epoch: omit the epoch")
            return cls(path, SavepointFiles(path), savepoints.read_savepoint(path))
        if (path / paths.MANIFESTS).is_dir():
            storage = LocalFiles(path)  # only to read: it makes nothing there
            return cls(path, storage, _manifest(storage, path, epoch))
        raise ConfigError(f"{path} is neither a savepoint nor the directory of a job")

    @property
    def job(self) -> str:
        return self.content.job

    @property
    def epoch(self) -> int:
        return self.content.epoch

    @property
    def sources(self) -> dict[str, Positions]:
        """Return the next positions to read, by source operator and split."""
        return self.content.sources

    def operators(self) -> list[str]:
        """Return the names of the operators that have state."""
        return sorted({handle.operator for handle in self.handles})

    def states(self, operator: str) -> dict[str, StateInfo]:
        """Return the states of an operator, by name. Raise ConfigError if the operator does not exist."""
        found: dict[str, StateInfo] = {}
        for handle in self.handles_of(operator):
            for described in handle.states:
                name, kind = str(described["name"]), str(described.get("kind", "value"))
                size = sum(file.size for file in handle.files if file.name.partition(".")[0] == name or _shared(handle))
                before = found[name].bytes if name in found else 0
                found[name] = StateInfo(operator, name, kind, before + size, described)
        return found

    def handles_of(self, operator: str) -> tuple[StateHandle, ...]:
        """Return the handles of an operator. Raise ConfigError, with the names of those that have any, if it has
        none.
        """
        found = tuple(handle for handle in self.handles if handle.operator == operator)
        if not found:
            known = ", ".join(self.operators()) or "none"
            raise ConfigError(
                f"{self.path} contains no state of an operator {operator!r}; it contains that of: {known}"
            )
        return found

    # ------------------------------------------------------------ reading

    def read(self, operator: str, state: str | None = None, part: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield keys (places) and values, in the order of key groups. ``state`` may be omitted if there is only one.

        ``part``: yield only what the handle of that number in ``handles_of`` has. Raise ValueError if a row cannot be
        decoded, CorruptCheckpoint if a file is not what was stored.
        """
        info = self._info(operator, state)
        decode = _RowDecoder(info)
        handles = self.handles_of(operator)
        with self._rows(info, handles if part is None else handles[part : part + 1]) as rows:
            yield from (decoded for row in rows if (decoded := decode(row)) is not None)

    def get(self, operator: str, state: str | None, key: Any) -> Any:
        """Return the value of a key, or None; of a state with namespaces or entries, a dict of them (of tuples, if
        both).
        """
        found = dict(self.find_entries(operator, state, key))
        if _RowDecoder(self._info(operator, state)).layout.is_single_part:
            return found.get(key)
        return {place[1] if len(place) == 2 else place[1:]: value for place, value in found.items()}

    def find_entries(
        self, operator: str, state: str | None, key: Any, namespace: Any = ALL_NAMESPACES
    ) -> list[tuple[Any, Any]]:
        """Find the entries of one key, and of one namespace if given.

        ValueError if the state cannot have such a key or namespace, ConfigError if it has no namespaces.
        """
        info = self._info(operator, state)
        if namespace is not ALL_NAMESPACES:
            return self._in_namespace(info, key, namespace)
        decode = _RowDecoder(info)
        layout = decode.layout
        group = group_of(layout.codecs[0].encode(key))
        first = layout.row_keys([key])[0] if layout.is_single_part else layout.prefix((key,))
        handles = self.handles_of(operator)
        owners = [h for h in handles if is_local(h) or h.key_groups[0] <= group <= h.key_groups[1]]
        found: list[tuple[Any, Any]] = []
        for owner in owners:
            with self._rows(info, [owner]) as rows:
                near = itertools.takewhile(lambda row: row[0].startswith(first), _from(first, rows))
                mine = (row for row in near if row[0] == first or not layout.is_single_part)
                found += (decoded for row in mine if (decoded := decode(row)) is not None)
        # Timers of one key have others between them.
        return [(place, value) for place, value in found if layout.is_single_part or place[0] == key]

    def _in_namespace(self, info: StateInfo, key: Any, namespace: Any) -> list[tuple[Any, Any]]:
        codec = descriptor_of(info.description).namespace
        if codec is None:
            raise ConfigError(f"state {info.name!r} of operator {info.operator!r} of {self.path} has no namespaces")
        codec.encode(namespace)
        return [found for found in self.find_entries(info.operator, info.name, key) if found[0][1] == namespace]

    def to_arrow(self, operator: str, state: str | None = None) -> Any:
        """Return a pyarrow Table with the columns that ``columns`` lists. Raise ImportError without pyarrow."""
        import pyarrow

        batches = list(self.batches(operator, state))
        return pyarrow.concat_tables(batches, promote_options="default") if batches else pyarrow.table({})

    def to_pandas(self, operator: str, state: str | None = None) -> Any:
        """Return a pandas DataFrame with the columns that ``columns`` lists. Raise ImportError without pandas."""
        import pandas

        return pandas.DataFrame(list(self._table(operator, state, None)), columns=self.columns(operator, state))

    def columns(self, operator: str, state: str | None = None) -> list[str]:
        """Return the columns of a state's table: ``key``, ``namespace`` and ``entry`` (or ``time``) if it has any,
        ``value``.
        """
        return [*_RowDecoder(self._info(operator, state)).layout.parts, "value"]

    def batches(
        self, operator: str, state: str | None = None, part: int | None = None, schema: Any = None
    ) -> Iterator[Any]:
        """Yield the rows of a state as pyarrow Tables of some thousand rows each. ``part``: see ``read``.

        ``schema``: the columns, as a pyarrow Schema; default: those of ``columns``, with the types of each table's
        values.
        """
        import pyarrow

        rows = self._table(operator, state, part)
        while batch := list(itertools.islice(rows, LIMITS.state_rows_per_block)):
            yield pyarrow.Table.from_pylist(batch, schema)

    def _table(self, operator: str, state: str | None, part: int | None) -> Iterator[dict[str, Any]]:
        *parts, last = self.columns(operator, state)
        for place, value in self.read(operator, state, part):
            yield {**dict(zip(parts, place if len(parts) > 1 else (place,), strict=True)), last: value}

    @contextmanager
    def _rows(self, info: StateInfo, handles: Sequence[StateHandle]) -> Iterator[Scan]:
        with (
            temporary_directory() as scratch,
            open_handles(handles, self.storage, scratch) as sources,
            closing(_chained(source.scan(info.name) for source in sources)) as rows,
        ):
            yield rows

    def _info(self, operator: str, state: str | None) -> StateInfo:
        states = self.states(operator)
        if state is None and len(states) == 1:
            return next(iter(states.values()))
        if state is None or state not in states:
            what = "choose one of its states" if state is None else f"it has no state {state!r}, but"
            raise ConfigError(f"operator {operator!r} of {self.path}: {what}: {', '.join(states) or 'none'}")
        return states[state]


def descriptor_of(description: Mapping[str, Json]) -> StateDescriptor[Any]:
    """Return the descriptor of a state as it is stored, with codecs for plain values."""
    stored: Any = split_description(description)[0]
    parts = {part: _codec(stored[part]) for part in ("namespace", "entry") if part in stored}
    ttl = Ttl(**stored["ttl"]) if "ttl" in stored else None
    key, value, kind = _codec(stored["key"]), _codec(stored["value"]), stored.get("kind", "value")
    return StateDescriptor(stored["name"], key, value, kind=kind, ttl=ttl, definition=stored.get(DEFINITION), **parts)


class _RowDecoder:
    """Decodes rows to keys and values; None for expired ones."""

    def __init__(self, info: StateInfo) -> None:
        descriptor, self._attributes = descriptor_of(info.description), split_description(info.description)[1]
        self.layout = RowKeyCodec(descriptor)
        self._ttl = descriptor.ttl
        self._value = descriptor.value if descriptor.ttl is None else TimestampedCodec(descriptor.value)

    def __call__(self, row: Row) -> tuple[Any, Any] | None:
        place, value = self.layout.decode(row[0]), self._value.decode(row[1])
        if self._ttl is None:
            return place, value
        stamp, value = value
        gone = is_expired(stamp, self._attributes.get(TIME, UNKNOWN), self._ttl.seconds)
        return None if gone else (place, value)


def _manifest(storage: CheckpointStorage, path: Path | str, epoch: int | None) -> Manifest:
    names = storage.list(paths.MANIFESTS)
    if not names:
        raise ConfigError(f"{path} contains no checkpoint")
    if epoch is None:
        job = records.decode(Manifest, names[-1], storage.read(names[-1])).job
        return savepoints.newest_committed(storage, job, settled=False)
    named = [name for name in names if paths.parse_manifest_name(name).epoch.n == epoch]
    if not named:
        kept = sorted({paths.parse_manifest_name(name).epoch.n for name in names})
        raise ConfigError(f"{path} contains no epoch {epoch}; it contains {', '.join(map(str, kept))}")
    return records.decode(Manifest, named[-1], storage.read(named[-1]))


def _codec(stored: Any) -> Any:
    if stored["name"] in _OWN:
        return _OWN[stored["name"]]
    return get_plain_codec(stored["name"], stored["schema"])


def _shared(handle: StateHandle) -> bool:
    """Return whether the states of the handle are in the same files."""
    return not any(file.name.endswith(".rows") for file in handle.files)


def _chained(scans: Iterator[Scan]) -> Scan:
    for scan in scans:
        yield from scan  # closing this one closes that one


def _from(first: bytes, rows: Scan) -> Iterator[Row]:
    return itertools.dropwhile(lambda row: row[0] < first, rows)
