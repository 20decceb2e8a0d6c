"""Creates a savepoint with edited content: fix a value, drop an operator, or give a new job its first state.

    builder = SavepointBuilder.new("orders")
    builder.bootstrap("total", "accumulator", rows, value=Counted(state_codec(Total)))
    builder.write("first-state")

Rule: values pass through the codec that is stored with the state. So the job can read everything that is written, and a
value that it could not read is refused here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import InFlightRows, StateBackend, StateDescriptor, StateHandle, StateKind
from kafka_eos.codecs import CountedCodec, KeyCodec, state_codec
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import ensure_name
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.runtime.state.canonical_savepoint import copy_in_flight, write_canonical_state
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.local_keys import is_local
from kafka_eos.runtime.state.row_keys import RowKeyCodec
from kafka_eos.runtime.state.row_store import Row
from kafka_eos.savepoints.edited_operator import EditedOperator
from kafka_eos.savepoints.snapshot import Snapshot, descriptor_of
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_records import index_files
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.savepoint_files import Savepoint

_ENTRIES: Mapping[StateKind, Codec[Any]] = {"list": ElementNumberCodec(), "map": KeyCodec()}
"""The part that identifies an entry of one key, by kind."""


class SavepointBuilder:
    """Edits wait in a scratch directory until ``write``; use it in a ``with`` block, or ``close`` it.

    ``sources`` may be changed: positions to begin at, by source operator and split; a source that is not in it begins
    where its own start rule says.
    """

    def __init__(self, job: str, sources: Mapping[str, Positions], base: Snapshot | None) -> None:
        self.job = ensure_name(job, "the job name")
        self.sources = dict(sources)
        self._base = base
        self._scratch = ExitStack()
        self._directory = self._scratch.enter_context(temporary_directory())
        self._store = LocalStorage(self._directory / "store")
        self._edited: dict[str, EditedOperator] = {}
        self._dropped: set[str] = set()
        self._kept: dict[str, Callable[[Any], bool]] = {}
        self._serial = itertools.count()

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> SavepointBuilder:
        """Begin with all that a savepoint or a checkpoint holds."""
        return cls(snapshot.job, snapshot.sources, snapshot)

    @classmethod
    def new(cls, job: str, sources: Mapping[str, Positions] | None = None) -> SavepointBuilder:
        """Begin with no state, for the pipeline named ``job``."""
        return cls(job, sources or {}, None)

    # ------------------------------------------------------------ edits

    def put(self, operator: str, state: str, key: Any, value: Any) -> None:
        """Set the value of a key, or of a tuple (key, namespace, entry). Raise ConfigError if it cannot be stored."""
        self._opened(operator, state)[state].put(key, value)

    def delete(self, operator: str, state: str, key: Any) -> None:
        """Delete a key, or a tuple as for ``put``."""
        self._opened(operator, state)[state].delete(key)

    def drop(self, operator: str) -> None:
        """Drop an operator: its state in the base, and all edits of it so far.

        A join whose table was read already cannot start without its state: bootstrap it, or the start is refused.
        """
        if self._base is not None and operator not in self._edited:
            self._base.handles_of(operator)
        if operator in self._edited:
            self._edited.pop(operator).close()
        self._dropped.add(operator)

    def retain(self, operator: str, keep: Callable[[Any], bool]) -> None:
        """Keep only the state of the keys for which ``keep`` returns true."""
        self._kept[operator] = keep

    def bootstrap(
        self,
        operator: str,
        state: str,
        items: Any,
        *,
        value: Any,
        key: str | Sequence[str] | None = None,
        key_codec: Codec[Any] | None = None,
        kind: StateKind = "value",
        namespaced: bool = False,
    ) -> int:
        """Give an operator a state: (key, value) pairs, or a DataFrame or pyarrow Table. Returns how many rows.

        ``value`` is the type that the job declares for the state (of values, elements, accumulators), or its codec. Of
        a table, ``key`` names the column (or columns, for keys that are tuples) of the key, and the other columns are
        the fields of the value.

        ``kind`` and ``namespaced`` as the job declares the state. With namespaces the key is a tuple (key, namespace);
        of a map one entry is a row, and its key (key, entry) or (key, namespace, entry); rows of a list are its
        elements, in their order.
        """
        codec = state_codec(value)
        if operator in self._edited and state in self._edited[operator]:
            raise ConfigError(
                f"state {state!r} of operator {operator!r} is open already: bootstrap it before other edits"
            )
        namespace, entry = KeyCodec() if namespaced else None, _ENTRIES.get(kind)
        name, of_key = ensure_name(state, "state name"), key_codec or KeyCodec()
        self._open(operator).declare(StateDescriptor(name, of_key, codec, kind, namespace, entry))
        count = 0
        for count, (of, found) in enumerate(to_pairs(items, key, codec), start=1):  # noqa: B007
            self._edited[operator][state].add(of, found)
        return count

    def bootstrap_fold(
        self, operator: str, items: Any, *, accumulator: Any = None, key: str | Sequence[str] | None = None
    ) -> int:
        """Set the keys and accumulators of a fold or reduce, as ``bootstrap`` does. Updates count from 0."""
        codec = state_codec(accumulator)
        entries = ((of, (0, found)) for of, found in to_pairs(items, key, codec))
        return self.bootstrap(operator, "accumulator", entries, value=CountedCodec(codec))

    # ------------------------------------------------------------ the result

    def write(self, path: str | Path) -> Savepoint:
        """Write the savepoint to a directory that does not exist yet, and close. ConfigError if it is taken."""
        with self, savepoints.draft_savepoint(Path(path)) as draft:
            base = None if self._base is None else self._base.content
            handles = [handle for edited in self._edited.values() for handle in edited.snapshot(self._store)]
            operators = write_canonical_state(handles, self._store, draft, self._select)
            in_flight: tuple[InFlightRows, ...] = ()
            if self._base is not None:
                operators += write_canonical_state(self._untouched(), self._base.storage, draft, self._select)
                in_flight = copy_in_flight(self._base.content.in_flight, self._base.storage, draft)
            savepoint = Savepoint(
                job=self.job,
                id=savepoints.new_id(),
                epoch=0 if base is None else base.epoch,
                term=0 if base is None else base.term,
                created_at=savepoints.now_ms(),
                plan="" if base is None else base.plan,
                max_key_groups=MAX_KEY_GROUPS,
                sources=self._positions(),
                operators=tuple(sorted(operators, key=lambda handle: (handle.operator, handle.key_groups))),
                in_flight=in_flight,
                identity=None if base is None else base.identity,
            )
            draft.publish(savepoint)
        return savepoint

    def close(self) -> None:
        """Forget all edits."""
        for edited in self._edited.values():
            edited.close()
        self._edited.clear()
        self._scratch.close()

    def __enter__(self) -> SavepointBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ inside

    def _select(self, operator: str, described: Mapping[str, Json], rows: Iterator[Row]) -> Iterator[Row]:
        """Return the rows of the keys that are retained."""
        if (keep := self._kept.get(operator)) is None:
            return rows
        layout = RowKeyCodec(descriptor_of(described))
        places = ((row, layout.decode(row[0])) for row in rows)
        return (row for row, place in places if keep(place if layout.is_single_part else place[0]))

    def _positions(self) -> dict[str, Positions]:
        """Return the base's positions; those of tables without the note that a dropped join has received their rows."""
        lost = self._dropped.difference(self._edited)
        return {name: bootstrap.without_joins(at, lost) for name, at in self.sources.items()} if lost else self.sources

    def _untouched(self) -> list[StateHandle]:
        assert self._base is not None
        return [h for h in self._base.handles if h.operator not in self._edited and h.operator not in self._dropped]

    def _opened(self, operator: str, state: str) -> EditedOperator:
        """Return the operator with that state open."""
        if operator not in self._edited or state not in self._edited[operator]:
            if self._base is None or operator in self._dropped:
                raise ConfigError(f"operator {operator!r} has no state {state!r} yet: bootstrap it")
            states = self._base.states(operator)
            if state not in states:
                raise ConfigError(f"operator {operator!r} has no state {state!r}; it has: {', '.join(states)}")
            self._open(operator).declare(descriptor_of(states[state].description))
        return self._edited[operator]

    def _open(self, operator: str) -> EditedOperator:
        if operator not in self._edited:
            handles = self._brought(operator)
            local = any(map(is_local, handles))
            # Local state is edited per subtask: once merged, it could not be divided again.
            parts = [[handle] for handle in handles] if local else [handles]
            backends = [self._backend(operator, part, local) for part in parts]
            self._edited[operator] = EditedOperator(operator, backends)
        return self._edited[operator]

    def _backend(self, operator: str, handles: Sequence[StateHandle], local: bool) -> StateBackend:
        first, last = handles[0].key_groups if local else (0, MAX_KEY_GROUPS - 1)
        directory, groups = self._directory / f"operator-{next(self._serial)}", range(first, last + 1)
        given = (self._store, LIMITS.builder_cache_entries)
        return open_backend("rocksdb", operator, directory, groups, handles, *given, local=local)

    def _brought(self, operator: str) -> list[StateHandle]:
        """Return an operator's stored state handles, with their files copied to the scratch store."""
        base = None if operator in self._dropped else self._base
        handles = [] if base is None else [handle for handle in base.handles if handle.operator == operator]
        for ref in index_files(handles, ()).values():
            assert base is not None
            path = self._directory / "brought"
            base.storage.fetch(ref, path)
            self._store.upload(path, ref.name)
            path.unlink()
        return handles


# ---------------------------------------------------------------- tables


def to_pairs(items: Any, key: str | Sequence[str] | None, codec: Codec[Any]) -> Iterator[tuple[Any, Any]]:
    """Convert pairs, a DataFrame or an Arrow table to keys and values."""
    if hasattr(items, "to_batches"):
        rows = (row for batch in items.to_batches() for row in batch.to_pylist())
    elif hasattr(items, "itertuples"):
        rows = (dict(zip(items.columns, row, strict=True)) for row in items.itertuples(index=False, name=None))
    else:
        yield from ((of, typed(codec, value)) for of, value in items)
        return
    if key is None:
        raise ConfigError('name the key column of the table: key="name", or a list of names')
    names = [key] if isinstance(key, str) else list(key)
    for row in rows:
        found = [_builtin(row.pop(name)) for name in names]
        fields = {name: _builtin(value) for name, value in row.items()}
        yield found[0] if isinstance(key, str) else tuple(found), _value(codec, fields)


def typed(codec: Codec[Any], value: Any) -> Any:
    """Convert plain values to the codec's type; an instance of it stays unchanged."""
    if isinstance(codec, CountedCodec):
        if not (isinstance(value, tuple) and len(value) == 2):
            raise ConfigError(f"{value!r} is not a pair of updates and accumulator; see bootstrap_fold")
        return value[0], typed(codec.inner, value[1])
    tp = Any if codec.type is None else codec.type
    if tp is Any or (isinstance(tp, type) and isinstance(value, tp)):
        return value
    try:
        return tp.model_validate(value) if hasattr(tp, "model_validate") else msgspec.convert(value, tp)
    except ValueError as error:
        raise ConfigError(f"{value!r} is not a valid {tp}: {error}") from error


def _value(codec: Codec[Any], fields: dict[str, Any]) -> Any:
    """Return a row without its key: the fields of a record, or the only remaining column itself."""
    tp = Any if codec.type is None else codec.type
    record = any(hasattr(tp, name) for name in ("model_validate", "__struct_fields__", "__dataclass_fields__"))
    return typed(codec, next(iter(fields.values())) if len(fields) == 1 and not record else fields)


def _builtin(value: Any) -> Any:
    """Convert NumPy scalars to Python's own types."""
    return value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value
