"""What a user implements for ``process``: a function with named state a key, of one stream or of two.

Rules for all state: what one record writes takes effect only when its call has returned normally, and None means "no
value". The trap: a value that is changed in place is not written; write the value that you want to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, overload

from kafka_eos.abc.state import Ttl

T = TypeVar("T")
K = TypeVar("K")
U = TypeVar("U")
V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class _Keyed(Protocol):
    """What all states have in common. Each holds the data of the current key."""

    def clear(self) -> None:
        """Forget what the key (and namespace) has."""

    def of(self, namespace: Any) -> Self:
        """The same state in a namespace of the key: str, int, bytes, or a tuple of these.

        PlanError if the state was not declared with ``namespaced=True``.
        """

    def namespaces(self) -> list[Any]:
        """The namespaces in which the key has something, in the order of their encoded bytes: the same in every run.

        None among them is the namespace of the state itself. Reads a row for each value (entry, element) of the key; a
        ``Ttl`` counts none of them as read. PlanError if the state was not declared with ``namespaced=True``.
        """


class KeyState(_Keyed, Protocol[T]):
    """One value."""

    def get(self) -> T:
        """The value, or the default if the key has none."""

    def put(self, value: T) -> None: ...


class ListState(_Keyed, Protocol[T]):
    """Values in the order in which they were added. ``add`` does not read the list."""

    def add(self, value: T) -> None: ...

    def add_all(self, values: Iterable[T]) -> None: ...

    def get(self) -> list[T]:
        """All elements; empty if there are none."""

    def __iter__(self) -> Iterator[T]: ...


class MapState(_Keyed, Protocol[K, V]):
    """Values by a second key: str, int, bytes, or a tuple of these. Touching one entry does not read the others.

    The order of ``items``, ``keys`` and ``values`` is that of the encoded second keys: not that of insertion, but the
    same in every run. What you write while you iterate does not change what the iteration returns.
    """

    def get(self, key: K) -> V | None: ...

    def put(self, key: K, value: V) -> None: ...

    def remove(self, key: K) -> None:
        """Absent is fine."""

    def contains(self, key: K) -> bool: ...

    def __contains__(self, key: K) -> bool: ...

    def items(self) -> Iterator[tuple[K, V]]: ...

    def keys(self) -> Iterator[K]: ...

    def values(self) -> Iterator[V]: ...


class ReducingState(_Keyed, Protocol[T]):
    """The values that were added, reduced to one."""

    def add(self, value: T) -> None: ...

    def get(self) -> T | None:
        """None if nothing was added."""


class AggregatingState(_Keyed, Protocol[T_contra, R_co]):
    """Values that were added, as an accumulator of another type; ``get`` gives the result of it."""

    def add(self, value: T_contra) -> None: ...

    def get(self) -> R_co | None:
        """None if nothing was added."""


@dataclass(frozen=True, slots=True)
class OutputTag(Generic[T]):
    """Names a side output of an operator, and the type of its values: ``OutputTag("late", Order)``.

    Two of the same name and type are the same tag.
    """

    name: str
    tp: type[T]


class Counter(Protocol):
    """A number that metrics show; see ``ProcessContext.counter``."""

    def inc(self, n: int = 1) -> None:
        """Count ``n`` more. ValueError if that is no whole number, or less than 0."""


class ProcessContext(Protocol):
    """What ``open`` gets: each method declares a state of the operator, for the key at hand when it is used.

    Types decide how values are stored: pydantic models as Avro, the rest as MessagePack. ``ttl`` lets each value (each
    entry of a map, each element of a list) expire. ``namespaced`` gives the state namespaces; see ``of``.
    PlanError if the name is taken, or ``open`` is over.
    """

    @overload
    def value_state(
        self, name: str, tp: type[T], *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> KeyState[T | None]: ...

    @overload
    def value_state(
        self, name: str, tp: type[T], default: T, *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> KeyState[T]: ...

    def value_state(
        self, name: str, tp: Any, default: Any = None, *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> KeyState[Any]:
        """One value a key. ``default`` is what a key without a value reads; all keys share it: never change it."""

    def list_state(
        self, name: str, tp: type[T], *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> ListState[T]: ...

    def map_state(
        self, name: str, key_tp: type[K], value_tp: type[V], *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> MapState[K, V]: ...

    def reducing_state(
        self, name: str, tp: type[T], fn: Callable[[T, T], T], *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> ReducingState[T]:
        """``fn(so far, value)`` gives the new value; the first one is kept as it is."""

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
        """``add(acc, value)`` gives the new accumulator, a new object: one changed in place is not undone."""

    def counter(self, name: str) -> Counter:
        """What you count, as ``kafka_eos_counted_total`` with the labels ``operator`` and ``name``: of all workers.

        It is for watching: records that are processed again after a failure count again, and so do those that your
        function has refused. PlanError if ``open`` is over, or if the name is no text.
        """

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit ``value`` to a side output, while a record is processed or a timer fires. See ``Stream.side_output``.

        What a call that raises has emitted does not count. PlanError if the function does not declare the tag.
        """

    def timers(self) -> Timers:
        """The timers in event time of the key at hand. PlanError if the function does not define ``on_timer``."""

    def processing_timers(self) -> Timers:
        """Those in processing time. PlanError if the function does not define ``on_processing_timer``."""

    @property
    def timestamp(self) -> int:
        """The event time of the record at hand, or of the timer that fires.

        PlanError if the stream has none: see ``Stream.with_timestamps``.
        """

    @property
    def watermark(self) -> int:
        """The event time that the key has come to: records of this time or before it are late. -2**63 at the beginning.

        It stands still at each timer while that fires. How far it is when a record comes depends on chance, and on the
        engine; so should nothing that you emit. PlanError if the function does not define ``on_timer``.
        """

    @property
    def processing_time(self) -> int:
        """What the clock shows, in milliseconds since the Unix epoch. Another attempt at the same record sees another.

        PlanError if the function does not define ``on_processing_timer``.
        """


class Timers(Protocol):
    """Timers of the key at hand. Each time is there once, however often it is set.

    Those in event time call ``on_timer`` when the watermark has come to their time: all rows up to it are processed,
    but those that are late. Those in processing time call ``on_processing_timer`` when the clock has. Timers of one
    kind fire in the order of their times; the timer is gone then.
    """

    def register(self, time: int) -> int:
        """Set one, in milliseconds since the Unix epoch; returns when it fires.

        That is ``time``, or the first moment that is not over: one for the past fires as soon as time goes on.
        """

    def delete(self, time: int) -> None:
        """Absent is fine. ``time`` is what ``register`` has returned."""


class TimedFunction(Generic[K, U]):
    """What functions of streams with keys have in common: side outputs and timers."""

    side_outputs: Sequence[OutputTag[Any]] = ()
    """The tags that it emits to with ``ctx.output``. Somebody must read each of them."""

    def close(self) -> None:
        """Let go of what ``open`` has opened: a client, a file. Called at the end of each session, behind all records.

        A process that is killed calls nothing, so nothing may depend on it; what is raised here is a warning.
        """

    def on_timer(self, key: K, time: int) -> Iterable[U]:
        """Outputs for a timer of a key, that fires now. Define it to set timers (``ctx.timers()``).

        There is no record that could be sent aside, so what it raises stops the job, or takes it back to the last
        checkpoint if the environment is to blame.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define on_timer(key, time)")

    def on_processing_timer(self, key: K, time: int) -> Iterable[U]:
        """The same for a timer in processing time (``ctx.processing_timers()``), which may fire later than ``time``."""
        raise NotImplementedError(f"{type(self).__name__} does not define on_processing_timer(key, time)")


class KeyedFunction(TimedFunction[K, U]):
    """What ``ProcessFunction`` and ``CoProcessFunction`` have in common: also the state of keys."""

    def open(self, ctx: ProcessContext) -> None:
        """Declare states here and keep the handles. Nothing else that is kept on ``self`` survives a restart."""


class ProcessFunction(KeyedFunction[K, U], Generic[K, T, U]):
    """Subclass it for ``KeyedStream.process``. Every session of a worker starts with a fresh one."""

    def process(self, key: K, value: T) -> Iterable[U]:
        """Outputs for one record. Called in order within a key."""
        raise NotImplementedError(f"{type(self).__name__} does not define process(key, value)")


class CoProcessFunction(KeyedFunction[K, U], Generic[K, T, V, U]):
    """Subclass it for ``connect(left, right).process``: two streams over one state.

    Every session of a worker starts with a fresh one.
    Records of a key are in order within each stream; which of the two streams comes first is chance.
    """

    def process_left(self, key: K, value: T) -> Iterable[U]:
        """Outputs for one record of the first stream."""
        raise NotImplementedError(f"{type(self).__name__} does not define process_left(key, value)")

    def process_right(self, key: K, value: V) -> Iterable[U]:
        """Outputs for one record of the second stream."""
        raise NotImplementedError(f"{type(self).__name__} does not define process_right(key, value)")


def defines(function: object, method: str) -> bool:
    """Does a process function define that method of timers itself? ``function`` may be its class."""
    cls = function if isinstance(function, type) else type(function)
    return getattr(cls, method, None) is not getattr(TimedFunction, method)
