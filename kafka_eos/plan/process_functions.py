"""Base classes for ``process``: functions with named keyed state, of one stream or of two.

Rules for all state: the writes of one call take effect only when it returns normally, and None means "no value".

Note: a value that is modified in place is not stored; write the value that you want to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar, overload

from msgspec import Struct

from kafka_eos.abc.state import Ttl

T = TypeVar("T")
K = TypeVar("K")
U = TypeVar("U")
V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class _StateBase(Protocol):
    """The base of all states of a process function; each is bound to the current key."""

    def clear(self) -> None:
        """Delete the state of the key, or of its namespace."""

    def of(self, namespace: Any) -> Self:
        """Return the same state in a namespace of the key: str, int, bytes, or a tuple of these.

        Raises PlanError if the state was not declared with ``namespaced=True``.
        """

    def namespaces(self) -> list[Any]:
        """Return the namespaces in which the key has a value, in the order of their encoded bytes, the same in every
        run.

        None stands for the state without a namespace. This reads one row per value, entry or element of the key, and
        does not extend their time to live. Raises PlanError if the state was not declared with ``namespaced=True``.
        """


class ValueState(_StateBase, Protocol[T]):
    """One value per key, returned by ``ctx.value_state()``; Flink's ValueState."""

    def get(self) -> T:
        """Return the value, or the default if the key has none."""

    def put(self, value: T) -> None:
        """Store a value for the key."""


class ListState(_StateBase, Protocol[T]):
    """Values in the order in which they were added. ``add`` does not read the list."""

    def add(self, value: T) -> None:
        """Append a value to the list of the key."""

    def add_all(self, values: Iterable[T]) -> None:
        """Append values to the list of the key, in order."""

    def get(self) -> list[T]:
        """Return all elements; empty if there are none."""

    def __iter__(self) -> Iterator[T]: ...


class MapState(_StateBase, Protocol[K, V]):
    """Values by a second key: str, int, bytes, or a tuple of these. Access to one entry does not read the others.

    The order of ``items``, ``keys`` and ``values`` is that of the encoded second keys: not that of insertion, but the
    same in every run. Writes during an iteration do not change its result.
    """

    def get(self, key: K) -> V | None:
        """Return the value of an entry, or None."""

    def put(self, key: K, value: V) -> None:
        """Store the value of an entry."""

    def remove(self, key: K) -> None:
        """Remove the entry if it exists."""

    def contains(self, key: K) -> bool:
        """Return whether the entry exists."""

    def __contains__(self, key: K) -> bool: ...

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all entries: second keys with their values."""

    def keys(self) -> Iterator[K]:
        """Return all second keys."""

    def values(self) -> Iterator[V]:
        """Return all values."""


class ReducingState(_StateBase, Protocol[T]):
    """The added values, reduced to one."""

    def add(self, value: T) -> None:
        """Reduce a value into that of the key."""

    def get(self) -> T | None:
        """Return the reduced value, or None if nothing was added."""


class AggregatingState(_StateBase, Protocol[T_contra, R_co]):
    """Added values as an accumulator of another type; ``get`` returns its result."""

    def add(self, value: T_contra) -> None:
        """Add a value to the accumulator of the key."""

    def get(self) -> R_co | None:
        """Return the result, or None if nothing was added."""


class OutputTag(Struct, Generic[T], frozen=True):
    """The name of a side output and the type of its values: ``OutputTag("late", Order)``.

    Two with the same name and type are the same tag.
    """

    name: str
    tp: type[T]


class Counter(Protocol):
    """A counter shown in metrics; see ``ProcessContext.counter``."""

    def inc(self, n: int = 1) -> None:
        """Increase the counter by ``n``. Raises ValueError unless it is an integer of at least 0."""


class ProcessContext(Protocol):
    """The context that ``open`` receives. Its methods declare states of the operator, each bound to the current key.

    Types decide how values are stored: pydantic models as Avro, the rest as MessagePack. ``ttl`` lets each value (each
    entry of a map, each element of a list) expire. ``namespaced`` gives the state namespaces; see ``of``. Raises
    PlanError if the name is taken, or if ``open`` has returned.
    """

    @overload
    def value_state(
        self, name: str, tp: type[T], *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> ValueState[T | None]: ...

    @overload
    def value_state(
        self, name: str, tp: type[T], default: T, *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> ValueState[T]: ...

    def value_state(
        self, name: str, tp: Any, default: Any = None, *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> ValueState[Any]:
        """Declare one value per key.

        ``default`` is returned for a key without a value; all keys share it: never modify it.
        """

    def list_state(self, name: str, tp: type[T], *, ttl: Ttl | None = None, namespaced: bool = False) -> ListState[T]:
        """Declare a list per key."""

    def map_state(
        self, name: str, key_tp: type[K], value_tp: type[V], *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> MapState[K, V]:
        """Declare a map per key."""

    def reducing_state(
        self, name: str, tp: type[T], fn: Callable[[T, T], T], *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> ReducingState[T]:
        """Declare a reduced value per key: ``fn(so far, value)`` returns the new value; the first one is stored
        unchanged."""

    def aggregating_state(
        self,
        name: str,
        acc_tp: type[A],
        *,
        create: Callable[[], A],
        add: Callable[[A, T], A],
        result: Callable[[A], R],
        ttl: Ttl | None = None,
        namespaced: bool = False,
    ) -> AggregatingState[T, R]:
        """Declare an accumulator per key: ``add(acc, value)`` returns a new object.

        If ``add`` modifies the accumulator in place and the record is rejected, the change is not undone.
        """

    def counter(self, name: str) -> Counter:
        """Return a counter, summed over workers.

        Its metric is ``kafka_eos_user_counter_total`` with the labels ``operator`` and ``name``.

        It is for monitoring only: records that are processed again after a failure count again, and so do records that
        your function rejected. Raises PlanError if ``open`` has returned, or if the name is not a string.
        """

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit ``value`` to a side output, while a record is processed or a timer fires. See ``Stream.side_output``.

        Outputs of a call that raises are discarded. Raises PlanError if the function does not declare the tag.
        """

    def timers(self) -> Timers:
        """Return the event-time timers of the current key.

        Raises PlanError if the function does not define ``on_timer``.
        """

    def processing_timers(self) -> Timers:
        """Return the processing-time timers of the current key.

        Raises PlanError if the function does not define ``on_processing_timer``.
        """

    @property
    def timestamp(self) -> int:
        """Return the event time of the current record, or of the timer that fires.

        Raises PlanError if the stream has none: see ``Stream.with_timestamps``.
        """

    @property
    def watermark(self) -> int:
        """Return the watermark of the current key: records at or before it are late. It is -2**63 at the beginning.

        While a timer fires, it is the timer's time. For a record, it depends on timing and on the engine; so do not let
        outputs depend on it. Raises PlanError if the function does not define ``on_timer``.
        """

    @property
    def processing_time(self) -> int:
        """Return the clock time in milliseconds since the Unix epoch. Another attempt at the same record sees another
        time.

        Raises PlanError if the function does not define ``on_processing_timer``.
        """


class Timers(Protocol):
    """The timers of the current key. Each time is registered once, however often it is set.

    Event-time timers call ``on_timer`` when the watermark reaches their time: all rows up to it, except late ones, are
    processed then. Processing-time timers call ``on_processing_timer`` when the clock reaches their time. Timers of one
    kind fire in the order of their times, and each fires once.
    """

    def register(self, time: int) -> int:
        """Register a timer, in milliseconds since the Unix epoch; return when it fires.

        That is ``time``, or the first moment that has not passed: a timer in the past fires as soon as time advances.
        """

    def delete(self, time: int) -> None:
        """Delete the timer if it exists. ``time`` is what ``register`` returned."""


class TimedFunction(Generic[K, U]):
    """The base of functions on keyed streams: side outputs and timers."""

    side_outputs: Sequence[OutputTag[Any]] = ()
    """The tags to which it emits with ``ctx.output``. The pipeline must read each of them."""

    def close(self) -> None:
        """Release what ``open`` has opened: a client, a file. Called at the end of each session, after all records.

        It is not called if the process is killed, so nothing may depend on it; its exceptions become warnings.
        """

    def on_timer(self, key: K, time: int) -> Iterable[U]:
        """Return the outputs for a timer of a key that fires now. Define it to set timers (``ctx.timers()``).

        There is no record that could become a dead letter, so its exception stops the job, or restarts it from the last
        checkpoint if the environment is at fault.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define on_timer(key, time)")

    def on_processing_timer(self, key: K, time: int) -> Iterable[U]:
        """Return the outputs for a processing-time timer (``ctx.processing_timers()``), which may fire later than
        ``time``."""
        raise NotImplementedError(f"{type(self).__name__} does not define on_processing_timer(key, time)")


class KeyedFunction(TimedFunction[K, U]):
    """The base of ``ProcessFunction`` and ``CoProcessFunction``: it adds keyed state."""

    def open(self, ctx: ProcessContext) -> None:
        """Declare states here and keep the handles. All other attributes of ``self`` are lost at a restart."""


class ProcessFunction(KeyedFunction[K, U], Generic[K, T, U]):
    """The base class of functions for ``KeyedStream.process``. Every session of a worker starts with a new instance."""

    def process(self, key: K, value: T) -> Iterable[U]:
        """Return the outputs for one record. Called in order within a key."""
        raise NotImplementedError(f"{type(self).__name__} does not define process(key, value)")


class CoProcessFunction(KeyedFunction[K, U], Generic[K, T, V, U]):
    """The base class of functions for ``connect(left, right).process``: two streams that share state.

    Every session of a worker starts with a new instance. Records of a key are in order within each stream; the order
    between the two streams is not defined.
    """

    def process_left(self, key: K, value: T) -> Iterable[U]:
        """Return the outputs for one record of the first stream."""
        raise NotImplementedError(f"{type(self).__name__} does not define process_left(key, value)")

    def process_right(self, key: K, value: V) -> Iterable[U]:
        """Return the outputs for one record of the second stream."""
        raise NotImplementedError(f"{type(self).__name__} does not define process_right(key, value)")


def overrides(function: object, method: Callable[..., Any]) -> bool:
    """Return whether a process function, or its class, defines this method of ``TimedFunction`` itself."""
    cls = function if isinstance(function, type) else type(function)
    return getattr(cls, method.__name__) is not method
