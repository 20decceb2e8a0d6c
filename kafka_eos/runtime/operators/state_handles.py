"""The handles of keyed state that ``ProcessContext`` returns, bound to the current key.

    PendingWrites   the writes of the current record to one state
    KeyTimers       the timers of the current key, and those that the current record has set or deleted
    KeyedValue, KeyedMap …   the handles; see the protocols in ``plan.process_functions``

Rule: a handle writes only to ``PendingWrites``, and reads its own writes. The state changes when the record's call has
returned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import BackendState, TimerService
from kafka_eos.codecs import KeyCodec
from kafka_eos.core.error_messages import UnfitValue, show_value
from kafka_eos.core.errors import PlanError
from kafka_eos.core.records import EVENT_TIMES
from kafka_eos.runtime.operators.storability import StorableValues
from kafka_eos.runtime.state.entry_states import ElementNumberCodec

NAMESPACE_CODEC = ENTRY_CODEC = KeyCodec()
_NUMBERS = ElementNumberCodec()


class PendingWrites:
    """Writes of the current record to one state; applied when its call has returned.

    None stands for "no value", in both directions.
    """

    def __init__(self, state: BackendState[Any], name: str, codec: Codec[Any]) -> None:
        self.state, self._get = state, state.get
        self._storable = StorableValues(codec, f"a value of state {name!r}", "Store a value of its declared type.")
        self.key: Any = None
        self._written: dict[Any, Any] = {}

    def begin(self, key: Any) -> None:
        """Switch to the next record's key; discard writes that were not applied."""
        self.key = key
        if self._written:
            self._written = {}

    def apply(self) -> None:
        for place, value in self._written.items():
            if value is None:
                self.state.delete(place)
            else:
                self.state.put(place, value)

    def read(self, place: Any) -> Any:
        return self._written[place] if place in self._written else self._get(place)

    def write(self, place: Any, value: Any) -> None:
        """Note a write. Raises ValueError if the value cannot be stored."""
        if value is not None:
            self._storable.check(value)
        self._written[place] = value

    def within(self, parts: tuple[Any, ...], encode: Callable[[Any], bytes]) -> Iterator[tuple[Any, Any]]:
        """Yield entries whose state keys begin with ``parts``, all but the last part, in the order of that part's
        bytes."""
        stored = self.state.scan_prefix(*parts)
        written = {place: value for place, value in self._written.items() if place[:-1] == parts}
        if not written:
            return iter(stored)
        merged = {**dict(stored), **written}
        places = sorted(merged, key=lambda place: encode(place[-1]))
        return ((place, merged[place]) for place in places if merged[place] is not None)

    def namespaces(self) -> list[Any]:
        """Return the namespaces of the current key with a value, in the order of their encoded bytes.

        It checks each state key, not each namespace: a record that removes the last entry of a map removes its
        namespace.
        """
        places = set(self.state.scan_keys(self.key))
        for place, value in self._written.items():
            if value is None:
                places.discard(place)
            else:
                places.add(place)
        return sorted({place[1] for place in places}, key=NAMESPACE_CODEC.encode)


class KeyTimers:
    """Timers of the current key over the pending timers of the operator; see ``plan.process_functions.Timers``."""

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self.key: Any = None
        self._changes: list[tuple[int, bool]] = []
        """Times, and whether a timer is to be there."""

    def begin(self, key: Any) -> None:
        self.key = key
        if self._changes:
            self._changes = []

    def apply(self) -> None:
        for time, there in self._changes:
            if there:
                self._timers.add(self.key, time)
            else:
                self._timers.remove(self.key, time)

    def due(self, until: int) -> Iterable[tuple[int, Any, int]]:
        """Yield due timers, for the operator; see ``abc.TimerService.pop_due``."""
        return self._timers.pop_due(until)

    def soonest(self) -> int | None:
        """Return a lower bound of the next timer, for the operator; see ``abc.TimerService.get_next_time``."""
        return self._timers.get_next_time()

    @property
    def now(self) -> int:
        """Return the time that the current key has reached."""
        return self._timers.get_time(self.key)

    def newest(self) -> int:
        """Return the highest time that any key has reached."""
        return self._timers.get_max_time()

    def time_of(self, key: Any) -> int:
        """Return the time that a key has reached."""
        return self._timers.get_time(key)

    def register(self, time: int) -> int:
        at = max(_time(time), self._timers.get_time(self.key) + 1)
        self._changes.append((at, True))
        return at

    def delete(self, time: int) -> None:
        self._changes.append((_time(time), False))


def _time(time: int) -> int:
    if type(time) is not int or time not in EVENT_TIMES:
        raise UnfitValue(
            f"a timer is set for a whole number of milliseconds since 1970-01-01T00:00Z, not {show_value(time)}"
        )
    return time


class _KeyedState:
    """A state bound to the current key, and to a namespace if it has namespaces."""

    def __init__(self, writes: PendingWrites, namespaced: bool) -> None:
        self._writes, self._namespaced = writes, namespaced
        self._namespace: Any = None

    def of(self, namespace: Any) -> Self:
        """Return the same state in a namespace of the current key. None stands for the state without a namespace."""
        self._expect_namespaces()
        if namespace is not None:
            NAMESPACE_CODEC.check_key(namespace)
        other = copy.copy(self)
        other._namespace = namespace
        return other

    def namespaces(self) -> list[Any]:
        """Return the namespaces of the current key that have a value, in any namespace of this handle."""
        self._expect_namespaces()
        return self._writes.namespaces()

    def _expect_namespaces(self) -> None:
        if not self._namespaced:
            raise PlanError("this state has no namespaces: declare it with namespaced=True")

    def _parts(self) -> tuple[Any, ...]:
        return (self._writes.key, self._namespace) if self._namespaced else (self._writes.key,)


class _KeyedSingle(_KeyedState):
    """A state with one value per key and namespace."""

    def clear(self) -> None:
        self._write(None)

    def _read(self) -> Any:
        writes = self._writes
        return writes.read((writes.key, self._namespace) if self._namespaced else writes.key)

    def _write(self, value: Any) -> None:
        writes = self._writes
        writes.write((writes.key, self._namespace) if self._namespaced else writes.key, value)


class KeyedValue(_KeyedSingle):
    """The handle of a value state; implements ``process_functions.ValueState``."""

    def __init__(self, writes: PendingWrites, namespaced: bool, default: Any) -> None:
        super().__init__(writes, namespaced)
        self._default = default

    def get(self) -> Any:
        value = self._read()
        return self._default if value is None else value

    def put(self, value: Any) -> None:
        self._write(value)


class KeyedReducing(_KeyedSingle):
    """The handle of a reducing state; implements ``process_functions.ReducingState``."""

    def __init__(self, writes: PendingWrites, namespaced: bool, fn: Callable[[Any, Any], Any]) -> None:
        super().__init__(writes, namespaced)
        self._fn = fn

    def add(self, value: Any) -> None:
        before = self._read()
        self._write(value if before is None else self._fn(before, value))

    def get(self) -> Any:
        return self._read()


class KeyedAggregating(_KeyedSingle):
    """The handle of an aggregating state; implements ``process_functions.AggregatingState``. It stores the
    accumulator."""

    def __init__(
        self,
        writes: PendingWrites,
        namespaced: bool,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
    ) -> None:
        super().__init__(writes, namespaced)
        self._create = create
        self._add = add
        self._result = result

    def add(self, value: Any) -> None:
        acc = self._read()
        self._write(self._add(self._create() if acc is None else acc, value))

    def get(self) -> Any:
        acc = self._read()
        return None if acc is None else self._result(acc)


class KeyedMap(_KeyedState):
    """The handle of a map state; implements ``process_functions.MapState``."""

    def get(self, key: Any) -> Any:
        return self._writes.read((*self._parts(), key))

    def put(self, key: Any, value: Any) -> None:
        ENTRY_CODEC.check_key(key)
        self._writes.write((*self._parts(), key), value)

    def remove(self, key: Any) -> None:
        self._writes.write((*self._parts(), key), None)

    def contains(self, key: Any) -> bool:
        return self.get(key) is not None

    __contains__ = contains

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((place[-1], value) for place, value in self._writes.within(self._parts(), ENTRY_CODEC.encode))

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        return (value for _, value in self.items())

    def clear(self) -> None:
        for key in list(self.keys()):
            self.remove(key)


class KeyedList(_KeyedState):
    """The handle of a list state; implements ``process_functions.ListState``. State keys end with the element's
    number."""

    def add(self, value: Any) -> None:
        if value is None:
            raise UnfitValue("None cannot be an element of a list state")
        self._writes.write((*self._parts(), self._writes.state.next_entry()), value)

    def add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def get(self) -> list[Any]:
        return list(self)

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._places())

    def clear(self) -> None:
        for place, _ in list(self._places()):
            self._writes.write(place, None)

    def _places(self) -> Iterator[tuple[Any, Any]]:
        return self._writes.within(self._parts(), _NUMBERS.encode)
