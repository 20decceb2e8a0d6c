"""Keyed state: what an operator asks for, and the backend that keeps it.

Rule: what a state holds is stored with its codecs, so that a later program can tell whether it reads the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

from kafka_eos._util.call_site import quoting
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.errors import PlanError
from kafka_eos.core.ids import Epoch
from kafka_eos.core.json_values import Json

T = TypeVar("T")

Clocks: TypeAlias = Literal["processing", "event"]
Refresh: TypeAlias = Literal["write", "read-write"]


@dataclass(frozen=True, slots=True)
class Ttl:
    """Time to live of what a state holds: of a value, of one entry of a map, of one element of a list.

    ``seconds`` after the last write it is gone; with ``refresh="read-write"`` reads count as well. The clock is the
    machine's (``processing``), or the highest record timestamp that the subtask's operator has seen (``event``);
    neither follows a leap (docs/state.md, "clocks that are wrong"). PlanError if one of the three cannot be.
    """

    seconds: float
    clock: Clocks = "processing"
    refresh: Refresh = "write"

    @quoting
    def __post_init__(self) -> None:
        if type(self.seconds) not in (int, float) or not 0 < self.seconds < math.inf:
            raise PlanError(
                f"a time to live is more than 0 seconds and has an end, not {self.seconds!r}; for state that stays, "
                "leave out ttl="
            )
        for parameter, tp in (("clock", Clocks), ("refresh", Refresh)):
            if (given := getattr(self, parameter)) not in get_args(tp):
                known = " or ".join(map(repr, get_args(tp)))
                raise PlanError(f"{parameter}= of a time to live is {known}, not {given!r}")


StateKind: TypeAlias = Literal["value", "list", "map", "reducing", "aggregating", "timer", "pane", "broadcast"]


@dataclass(frozen=True, slots=True)
class StateDescriptor(Generic[T]):
    """One named state of one operator: its codecs are stored with the data.

    ``namespace``  if set, a key has a value a namespace (a window, say), and places are ``(key, namespace)``
    ``entry``      maps, lists, timers and panes: codec of what tells the entries of one key apart, the last part of the
                   place
    ``definition`` what the rows are held for, where it makes them what they are: windows, say. Those that were stored
                   for another one are refused
    """

    name: str
    key: Codec[Any]
    value: Codec[T]
    kind: StateKind = "value"
    namespace: Codec[Any] | None = None
    entry: Codec[Any] | None = None
    ttl: Ttl | None = None
    definition: Json = None


class ValueState(Protocol[T]):
    """One value a place. Reads see the job's own writes at once.

    A place is a key; or, where the descriptor has them, a tuple ``(key, namespace)``, ``(key, entry)`` or
    ``(key, namespace, entry)``.
    """

    def get(self, key: Any) -> T | None: ...

    def put(self, key: Any, value: T) -> None: ...

    def delete(self, key: Any) -> None: ...

    def view(self, keys: Iterable[Any]) -> MutableMapping[Any, T]:
        """A live mapping for the hot path: holds each of ``keys`` that has a value.

        The trap: every key of ``keys`` counts as written, and only those may be written, until the next call.
        """

    def written(self, keys: Sequence[Any]) -> Sequence[T]:
        """What was last written for each of ``keys``, expired or not. KeyError if one has nothing.

        Of keys that the last ``view`` was asked for.
        """

    def within(self, *parts: Any) -> Iterable[tuple[Any, T]]:
        """Places that begin with ``parts`` (the key, or key and namespace) and their values.

        In the order of their encoded bytes, which is the same in every run. Write nothing while you iterate. Bug if
        the state's places have one part only.
        """

    def places(self, *parts: Any) -> Iterable[Any]:
        """As ``within`` without the values, which a ``Ttl`` does not count as read."""

    def items(self) -> Iterable[tuple[Any, T]]:
        """All places and values, in no order; for audits and tests, not for the hot path."""

    def next_entry(self) -> int:
        """Lists: the number of a new element, higher than all before. Bug for any other kind."""

    def advance(self, timestamp: int) -> None:
        """A record of that time (ms since the epoch) is next. Moves the clock of an event-time ``Ttl``."""


class Timers(Protocol):
    """Pending timers of one operator in one subtask, and the time that it has come to: of events, or of the clock."""

    def now(self, key: Any) -> int:
        """The time of a key. Never less than before, after a restart neither."""

    def newest(self) -> int:
        """The event time that no key has passed."""

    def add(self, key: Any, time: int) -> None:
        """A key has each time once. Bug if it is not later than ``now(key)``: that one may have fired."""

    def remove(self, key: Any, time: int) -> None:
        """Absent is fine."""

    def due(self, until: int) -> Iterable[tuple[int, Any, int]]:
        """Time, key and key group of all timers up to ``until``, in the order of times and, within one, of keys.

        Each is removed when it is given out, and time stands at it until the next one is asked for; in the end at
        ``until``. Timers that are added meanwhile come in their turn. After a restore those come first that were left
        of times which had come already, whatever ``until`` is.
        """

    def soonest(self) -> int | None:
        """No timer fires before; None if none is pending. To be asked when all that is due has been given out."""

    def reached(self, group: int) -> int:
        """The time of the keys of a group."""

    def stand(self, time: int) -> None:
        """Event time stands at ``time`` from now on, and what that makes due beside timers is not done, before the
        next ``due`` is.
        """


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """What a pane held of some keys. Columns of equal lengths, in the order of groups and of encoded keys."""

    groups: list[int]
    encoded: list[bytes]
    keys: list[Any]
    values: list[T]


class Panes(Protocol[T]):
    """Values by key and pane, a stretch of time that is named by its beginning, and ends for all keys at once.

    Places are ``(key, pane)``. Rule: what has been taken is gone, and no key gets a value there again.
    """

    def get(self, place: tuple[Any, int]) -> T | None: ...

    def delete(self, place: tuple[Any, int]) -> None: ...

    def views(self, keys: Mapping[int, Sequence[Any]]) -> Mapping[int, MutableMapping[Any, T]]:
        """By pane, a live mapping for the hot path: holds each of its ``keys`` that has a value.

        The trap: all of ``keys`` count as written, and only those may be written, until the next call.
        """

    def first(self) -> int | None:
        """No pane before it holds anything; None if none does."""

    def restored(self) -> Sequence[tuple[int, int]]:
        """The first pane of each key group, and that group, of those that a snapshot held and nothing has been taken
        of since.
        """

    def take(self, pane: int, groups: Collection[int] | None = None) -> Iterator[Taken[T]]:
        """What a pane holds, of keys of these groups if not of all, some at a time or none; it is gone when it is given
        out. Nothing may be written to the pane meanwhile.
        """


@dataclass(frozen=True, slots=True)
class StateHandle:
    """Where the state of one operator and key-group range is after an epoch."""

    operator: str
    backend: str
    key_groups: tuple[int, int]
    """First and last key group, inclusive."""
    files: tuple[FileRef, ...]
    states: tuple[Mapping[str, Json], ...]
    """One a state: name, key and value codec with the writer's schema, and what else decides how rows are read.

    Absent is the default: ``kind`` value, no ``namespace``, ``entry`` or ``ttl``; see docs/state.md.
    """


@dataclass(frozen=True, slots=True)
class InFlight:
    """Rows that were under way through an exchange when a snapshot was taken, as one subtask saw them."""

    exchange: str
    codec: Mapping[str, Json]
    """Name and schema of the codec of the values."""
    files: tuple[FileRef, ...]
    overtaken: bool
    """They had not left their sender: to be processed after those that had reached their receivers."""


Upload: TypeAlias = Callable[[CheckpointStorage], StateHandle]


@dataclass(frozen=True, slots=True)
class CacheUse:
    """``loads``: places that were not in memory when they were asked for, since the backend was opened; ``entries``:
    objects that are in memory now.
    """

    loads: int
    entries: int


class StateBackend(Protocol):
    """The keyed state of one operator in one subtask. Single-threaded, except what ``snapshot`` returns."""

    def value(self, descriptor: StateDescriptor[T]) -> ValueState[T]: ...

    def timers(self, descriptor: StateDescriptor[Any]) -> Timers:
        """The timers of that name; ``descriptor`` is of the kind "timer"."""

    def panes(self, descriptor: StateDescriptor[T]) -> Panes[T]:
        """The state of that name; ``descriptor`` is of the kind "pane"."""

    def forget(self, name: str) -> None:
        """Drop a state that is stored and not opened. Absent is fine."""

    def snapshot(self, epoch: Epoch) -> Upload:
        """Freeze the state as it is now (short: it blocks the worker); the returned part uploads it."""

    def pending_timers(self) -> int | None:
        """How many there were at the last ``snapshot``; None if the operator has none to set."""

    def cache(self) -> CacheUse:
        """How its states use memory, timers aside."""

    def close(self) -> None: ...
