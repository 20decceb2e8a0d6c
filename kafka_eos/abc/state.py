"""Keyed state: the states that an operator declares, and the backend that stores them.

Rule: state is stored with its codecs, so that a later program can check whether it reads the same values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

from msgspec import Struct

from kafka_eos._util.call_site import quotes_user_line
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.storage import CheckpointStorage, FileBatch, FileRef
from kafka_eos.core.durations import Seconds, to_seconds
from kafka_eos.core.errors import PlanError
from kafka_eos.core.ids import Epoch
from kafka_eos.core.json_values import Json

T = TypeVar("T")

Clocks: TypeAlias = Literal["processing", "event"]
Refresh: TypeAlias = Literal["write", "read-write"]


@dataclass(frozen=True, slots=True, init=False)
class Ttl:
    """Time to live of a value, of one entry of a map, or of one element of a list.

    It expires ``seconds`` after the last write; with ``refresh="read-write"`` reads count as well. The clock is the
    machine's (``processing``), or the highest record timestamp that the subtask's operator has seen (``event``).
    Neither follows a sudden jump (docs/state.md, "clocks that are wrong"). Raises PlanError if an argument is invalid.
    """

    seconds: float
    clock: Clocks
    refresh: Refresh

    @quotes_user_line
    def __init__(self, seconds: Seconds, clock: Clocks = "processing", refresh: Refresh = "write") -> None:
        for name, given in (("seconds", to_seconds(seconds)), ("clock", clock), ("refresh", refresh)):
            object.__setattr__(self, name, given)
        if type(self.seconds) not in (int, float) or not 0 < self.seconds < math.inf:
            raise PlanError(
                f"a time to live must be a finite number of seconds greater than 0 (got {seconds!r}); "
                "to keep state forever, omit ttl="
            )
        for parameter, tp in (("clock", Clocks), ("refresh", Refresh)):
            if (given := getattr(self, parameter)) not in get_args(tp):
                known = " or ".join(map(repr, get_args(tp)))
                raise PlanError(f"{parameter}= of a time to live must be {known} (got {given!r})")


StateKind: TypeAlias = Literal["value", "list", "map", "reducing", "aggregating", "timer", "pane", "broadcast"]


class StateDescriptor(Struct, Generic[T], frozen=True):
    """One named state of one operator: its codecs are stored with the data.

    ``namespace``   if set, a key has one value per namespace (a window, say), and state keys are ``(key, namespace)``
    ``entry``       maps, lists, timers and panes: codec of the last part of the state key, which identifies an entry
    ``definition``  the definition that the rows are for, if their content depends on it, such as windows. Rows that
                    were stored for another one are refused
    """

    name: str
    key: Codec[Any]
    value: Codec[T]
    kind: StateKind = "value"
    namespace: Codec[Any] | None = None
    entry: Codec[Any] | None = None
    ttl: Ttl | None = None
    definition: Json = None


class BackendState(Protocol[T]):
    """One named state as a backend stores it: a value per state key (key, namespace, entry).

    Reads see the job's own writes at once.

    A state key is a key, or, if the descriptor says so, a tuple ``(key, namespace)``, ``(key, entry)`` or ``(key,
    namespace, entry)``.
    """

    def get(self, key: Any) -> T | None: ...

    def put(self, key: Any, value: T) -> None: ...

    def delete(self, key: Any) -> None: ...

    def view(self, keys: Iterable[Any]) -> MutableMapping[Any, T]:
        """Return a live mapping for the hot path, with each of ``keys`` that has a value.

        Note: every key of ``keys`` counts as written, and only those may be written, until the next call.
        """

    def get_last_written(self, keys: Sequence[Any]) -> Sequence[T]:
        """Return what was last written for each key, expired or not. Raises KeyError if a key has no value.

        Only for keys of the last ``view``.
        """

    def scan_prefix(self, *parts: Any) -> Iterable[tuple[Any, T]]:
        """Iterate over state keys that begin with the given parts, with their values.

        The order is that of their encoded bytes, the same in every run. Do not write while you iterate. Raises Bug if
        the state's keys have only one part.
        """

    def scan_between(self, key: Any, first: Any, end: Any) -> Iterable[tuple[Any, T]]:
        """Iterate over state keys ``(key, entry)`` from the entry ``first`` to before ``end``, with their values.

        Like ``scan_prefix``, which does it for all entries.
        """

    def scan_keys(self, *parts: Any) -> Iterable[Any]:
        """Iterate over state keys that begin with the given parts, without values."""

    def items(self) -> Iterable[tuple[Any, T]]:
        """Iterate over all state keys and values, in no order; for audits and tests, not for the hot path."""

    def next_entry(self) -> int:
        """Return the number of a new list element, higher than all before. Raises Bug for any other kind."""

    def advance(self, timestamp: int) -> None:
        """Announce the time of the next record (ms since the epoch). Moves the clock of an event-time ``Ttl``."""


class TimerService(Protocol):
    """Pending timers of one operator in one subtask, with the current time of its keys."""

    def get_time(self, key: Any) -> int:
        """Return the current time of a key. It never decreases, not even after a restart."""

    def get_max_time(self) -> int:
        """Return the highest event time that any key has reached."""

    def add(self, key: Any, time: int) -> None:
        """Add a timer; a key has each time once.

        Raises Bug if it is not later than ``get_time(key)``: it may have fired already.
        """

    def remove(self, key: Any, time: int) -> None:
        """Remove a timer. One that does not exist is ignored."""

    def pop_due(self, until: int) -> Iterable[tuple[int, Any, int]]:
        """Remove and yield all timers up to ``until``, in order.

        Each timer is removed when it is yielded. The current time is that timer's until the next one is requested, and
        ``until`` at the end. Timers added meanwhile are yielded in order too. After a restore, remaining timers of
        times that were already reached come first, whatever ``until`` is.
        """

    def get_next_time(self) -> int | None:
        """Return a lower bound of the next timer's time; None if none is pending.

        Call it only after all due timers were yielded.
        """

    def get_group_time(self, group: int) -> int:
        """Return the event time of a key group."""

    def begin_time(self, time: int) -> None:
        """Enter an event time whose effects, apart from timers, are not finished yet."""


class PaneContents(Struct, Generic[T], frozen=True):
    """Keys and values taken out of a pane, as columns.

    Columns of equal lengths, in the order of groups and of encoded keys.
    """

    groups: list[int]
    encoded: list[bytes]
    keys: list[Any]
    values: list[T]


class Panes(Protocol[T]):
    """Values by key and pane: a range of event time, named by its start, that closes for all keys at once.

    State keys are ``(key, pane)``. Rule: a pane that was taken is gone, and no key gets a value in it again.
    """

    def get(self, place: tuple[Any, int]) -> T | None: ...

    def delete(self, place: tuple[Any, int]) -> None: ...

    def views(self, keys: Mapping[int, Sequence[Any]]) -> Mapping[int, MutableMapping[Any, T]]:
        """Return, by pane, a live mapping for the hot path, with each of its ``keys`` that has a value.

        Note: all of ``keys`` count as written, and only those may be written, until the next call.
        """

    def get_first_pane(self) -> int | None:
        """Return the first pane that may hold a value."""

    def get_restored_panes(self) -> Sequence[tuple[int, int]]:
        """Return the first restored, untouched pane of each key group."""

    def take_pane(self, pane: int, groups: Collection[int] | None = None) -> Iterator[PaneContents[T]]:
        """Remove and yield a pane's contents, in chunks. Do not write to the pane meanwhile."""


class StateHandle(Struct, frozen=True):
    """The stored state of one operator and key-group range after an epoch."""

    operator: str
    backend: str
    key_groups: tuple[int, int]
    """First and last key group, inclusive."""
    files: tuple[FileRef, ...]
    states: tuple[Mapping[str, Json], ...]
    """One entry per state: name, key and value codec with the writer's schema, and what else decides how rows are
    read.

    Absent is the default: ``kind`` value, no ``namespace``, ``entry`` or ``ttl``; see docs/state.md.
    """


class InFlightRows(Struct, frozen=True):
    """Stored files with the in-flight rows of one exchange, as one subtask saw them."""

    exchange: str
    codec: Mapping[str, Json]
    """Name and schema of the codec of the values."""
    files: tuple[FileRef, ...]
    overtaken: bool
    """The rows had not left their sender: process them after those that had reached their receivers."""


class StateUpload(Protocol):
    """The frozen state of one operator in an epoch. It is stored once, from any thread."""

    def add_to(self, batch: FileBatch) -> Callable[[], StateHandle]:
        """Add its files to a batch. The returned function is called when the batch is stored."""

    def __call__(self, storage: CheckpointStorage) -> StateHandle:
        """Store its files without those of other operators."""


class CacheUse(Struct, frozen=True):
    """The memory use of cached state.

    ``misses`` counts state keys that were not in memory when they were read, since the backend was opened. ``entries``
    counts the objects that are in memory now.
    """

    misses: int
    entries: int


class StateBackend(Protocol):
    """The keyed state of one operator in one subtask. Single-threaded, except what ``snapshot`` returns."""

    def value(self, descriptor: StateDescriptor[T]) -> BackendState[T]: ...

    def timers(self, descriptor: StateDescriptor[Any]) -> TimerService:
        """Return the timers of that name; ``descriptor`` is of the kind "timer"."""

    def panes(self, descriptor: StateDescriptor[T]) -> Panes[T]:
        """Return the panes of that name; ``descriptor`` is of the kind "pane"."""

    def drop(self, name: str) -> None:
        """Drop a stored state that was not opened. One that does not exist is ignored."""

    def snapshot(self, epoch: Epoch) -> StateUpload:
        """Freeze the current state (short: it blocks the worker); the returned part uploads it."""

    def pending_timers(self) -> int | None:
        """Return how many timers were pending at the last ``snapshot``; None if the operator sets none."""

    def cache(self) -> CacheUse:
        """Return the memory use of the operator's states, without timers."""

    def close(self) -> None: ...
