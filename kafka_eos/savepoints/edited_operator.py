"""The state of one operator while it is edited for another savepoint.

Rule: a value that the job could not read is refused at once, and a key stays where it is. State behind
``key_by(local=True)`` is edited one subtask at a time and keeps its attributes, because it is unknown which subtask a
new key belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import BackendState, StateBackend, StateDescriptor, StateHandle
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.codecs import KeyCodec
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Epoch
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.row_keys import RowKeyCodec

_ENTRIES = {"list": ["number"], "map": ["entry"], "timer": ["time"], "pane": ["time"]}
"""The parts of a state key besides the key, by kind of state; for messages."""


class EditedOperator:
    """``backends``: one for all keys; or those of the subtasks, where keys have to stay with theirs."""

    def __init__(self, operator: str, backends: Sequence[StateBackend]) -> None:
        self._operator, self._backends = operator, backends
        self._states: dict[str, EditedState] = {}

    def __contains__(self, state: str) -> bool:
        return state in self._states

    def declare(self, descriptor: StateDescriptor[Any]) -> None:
        """Open a state, once, before it is edited. ConfigError if it is stored as something else."""
        where = f"state {descriptor.name!r} of operator {self._operator!r}"
        parts = [backend.value(descriptor) for backend in self._backends]
        self._states[descriptor.name] = EditedState(where, descriptor, parts)

    def __getitem__(self, state: str) -> EditedState:
        return self._states[state]

    def snapshot(self, storage: CheckpointStorage) -> list[StateHandle]:
        return [backend.snapshot(Epoch(0))(storage) for backend in self._backends]

    def close(self) -> None:
        for backend in self._backends:
            backend.close()


class EditedState:
    """One state, in all subtasks."""

    def __init__(self, where: str, descriptor: StateDescriptor[Any], parts: Sequence[BackendState[Any]]) -> None:
        self._where = where
        self._descriptor = descriptor
        self._parts = parts
        self._layout = RowKeyCodec(descriptor)

    def put(self, state_key: Any, value: Any) -> None:
        """Set the value of a state key in the subtask that owns it, and delete it in all others."""
        self._check(state_key, value)
        home = self._home(state_key)
        for part in self._parts:
            if part is home:
                part.put(state_key, value)
            else:
                part.delete(state_key)

    def add(self, state_key: Any, value: Any) -> None:
        """Add an entry, as ``put`` does. For a list, omit the number: the element becomes the last one."""
        if self._descriptor.kind == "list":
            namespaced = self._descriptor.namespace is not None and isinstance(state_key, tuple)
            front = state_key if namespaced else (state_key,)
            state_key = (*front, self._home(front).next_entry())
        self.put(state_key, value)

    def delete(self, state_key: Any) -> None:
        """Delete a state key."""
        for part in self._parts:
            part.delete(state_key)

    def _home(self, state_key: Any) -> BackendState[Any]:
        """Return the subtask that has the key, the first one if several have it."""
        if len(self._parts) == 1:
            return self._parts[0]
        homes = (part for part in self._parts if self._has(part, state_key))
        if (home := next(homes, None)) is None:
            raise ConfigError(
                f"{self._where} follows key_by(local=True) and was stored by {len(self._parts)} "
                f"workers, none of which has the key of {state_key!r}: which of them reads its records "
                "depends on the input's partitions. Change only existing keys; or read the state, "
                "drop the operator and bootstrap it with all its keys: then the job starts with "
                "parallelism=1, or without local=True"
            )
        return home

    def _has(self, part: BackendState[Any], state_key: Any) -> bool:
        if self._layout.is_single_part:
            return part.get(state_key) is not None
        return any(found[0] == state_key[0] for found, _ in part.scan_prefix(state_key[0]))

    def _check(self, state_key: Any, value: Any) -> None:
        """Raise ConfigError now for a key or value that the flush would refuse much later."""
        codecs = self._layout.codecs
        try:
            for codec, part in zip(
                codecs, (state_key,) if self._layout.is_single_part else self._divided(state_key), strict=True
            ):
                _check_part(codec, part)
            self._descriptor.value.encode(value)
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigError(f"{self._where}, key {state_key!r}: {error}") from error

    def _divided(self, state_key: Any) -> tuple[Any, ...]:
        codecs = self._layout.codecs
        if not (isinstance(state_key, tuple) and len(state_key) == len(codecs)):
            names = _ENTRIES.get(self._descriptor.kind, [])
            namespace = ["namespace"] if self._descriptor.namespace is not None else []
            raise ValueError(f"a key of this state is a tuple ({', '.join(['key', *namespace, *names])})")
        return state_key


def _check_part(codec: Codec[Any], part: Any) -> None:
    if isinstance(codec, KeyCodec):
        codec.check_key(part)
    elif isinstance(codec, ElementNumberCodec) and not (type(part) is int and part >= 0):
        raise ValueError(f"the number of an element must be an int of at least 0 (got {part!r})")
    else:
        codec.encode(part)
