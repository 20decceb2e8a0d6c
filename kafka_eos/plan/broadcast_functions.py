"""Base classes for functions of a stream and a broadcast stream, such as rules that all workers hold.

Every subtask receives all rows of the broadcast stream and keeps a complete copy of the state that
``process_broadcast`` derives from them. Rule: the copies must be equal. So ``process_broadcast`` depends only on its
row and the broadcast state, and it emits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from kafka_eos.plan.process_functions import Counter, OutputTag, ProcessContext, TimedFunction

T = TypeVar("T")
K = TypeVar("K")
U = TypeVar("U")
V = TypeVar("V")
B = TypeVar("B")


class BroadcastState(Protocol[K, V]):
    """Values by key (str, int, bytes, or a tuple of these), of which every subtask has a complete copy.

    ``process`` and timers read it, ``process_broadcast`` changes it; elsewhere a change raises PlanError. It is held in
    memory. The order of ``items``, ``keys`` and ``values`` is that of the encoded keys, the same everywhere.
    """

    def get(self, key: K) -> V | None:
        """Return the value of the key, or None."""

    def contains(self, key: K) -> bool:
        """Return whether the key has a value."""

    def __contains__(self, key: K) -> bool: ...

    def __len__(self) -> int: ...

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all keys with their values."""

    def keys(self) -> Iterator[K]:
        """Return all keys."""

    def values(self) -> Iterator[V]:
        """Return all values."""

    def put(self, key: K | None, value: V | None) -> None:
        """Store a value. A value of None removes the key, and so does a tombstone.

        A value that is modified in place is not stored: put a new one. Raises ValueError for a key of None, which
        rejects the record.
        """

    def remove(self, key: K) -> None:
        """Remove the key if it exists."""

    def clear(self) -> None:
        """Remove all keys and values."""


class BroadcastContext(Protocol):
    """The context that ``open`` of a ``BroadcastProcessFunction`` receives."""

    def broadcast_state(self, name: str, key_tp: type[K], value_tp: type[V]) -> BroadcastState[K, V]:
        """Declare a state of which every subtask holds a complete copy. Types decide how values are stored, as in any
        state.

        Raises PlanError if the name is taken, or if ``open`` has returned.
        """

    def counter(self, name: str) -> Counter:
        """Return a counter; see ``ProcessContext.counter``. Rows of the broadcast stream count in every subtask."""

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit ``value`` to a side output, while a record of the stream is processed, or a timer fires.

        Raises PlanError if the function does not declare the tag, or while a record of the broadcast stream is
        processed.
        """

    @property
    def timestamp(self) -> int:
        """Return the event time of the current record.

        Raises PlanError if its stream has none: see ``Stream.with_timestamps``.
        """


class KeyedBroadcastContext(BroadcastContext, ProcessContext, Protocol):
    """The context that ``open`` of a ``KeyedBroadcastProcessFunction`` receives: it adds keyed state and timers."""


class BroadcastProcessFunction(Generic[T, B, U]):
    """The base class of functions for ``connect(stream, rules.broadcast()).process`` if the stream has no keys.

    Every session of a worker starts with a new instance.
    """

    side_outputs: Sequence[OutputTag[Any]] = ()
    """The tags to which it emits with ``ctx.output``. The pipeline must read each of them."""

    def open(self, ctx: BroadcastContext) -> None:
        """Declare broadcast states here and keep the handles.

        All other attributes of ``self`` are lost at a restart.
        """

    def close(self) -> None:
        """Release what ``open`` has opened, as ``ProcessFunction.close`` does."""

    def process(self, value: T) -> Iterable[U]:
        """Return the outputs for one record of the stream. It may read broadcast state but not change it."""
        raise NotImplementedError(f"{type(self).__name__} does not define process(value)")

    def process_broadcast(self, value: B) -> None:
        """Update broadcast state for one record of the broadcast stream. Every subtask calls it and must make the same
        change.

        Records of one partition arrive in order.

        Note: the order between two partitions differs from subtask to subtask, so keep all records that concern one key
        in one partition.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process_broadcast(value)")


class KeyedBroadcastProcessFunction(TimedFunction[K, U], Generic[K, T, B, U]):
    """The base class of functions for ``connect(keyed, rules.broadcast()).process``, with keyed state and timers.

    Every session of a worker starts with a new instance.
    """

    def open(self, ctx: KeyedBroadcastContext) -> None:
        """Declare states here and keep the handles. All other attributes of ``self`` are lost at a restart."""

    def process(self, key: K, value: T) -> Iterable[U]:
        """Return the outputs for one record of the stream.

        Called in order within a key. It may read broadcast state.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process(key, value)")

    def process_broadcast(self, value: B) -> None:
        """Update broadcast state for one record, as in ``BroadcastProcessFunction``. There is no current key."""
        raise NotImplementedError(f"{type(self).__name__} does not define process_broadcast(value)")
