"""What a user implements for rules that all workers hold: a function of a stream, and of another one that is broadcast.

Every subtask has all rows of the broadcast stream, and a whole copy of what ``process_broadcast`` makes of them. Rule:
that must be the same in each, so it depends on the row and the broadcast state alone, and it makes no outputs.
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
    """Values by key (str, int, bytes, or a tuple of these), of which every subtask has all.

    ``process`` and timers read it, ``process_broadcast`` changes it; elsewhere a change is a PlanError. It is held in
    memory. The order of ``items``, ``keys`` and ``values`` is that of the encoded keys, the same everywhere.
    """

    def get(self, key: K) -> V | None: ...

    def contains(self, key: K) -> bool: ...

    def __contains__(self, key: K) -> bool: ...

    def __len__(self) -> int: ...

    def items(self) -> Iterator[tuple[K, V]]: ...

    def keys(self) -> Iterator[K]: ...

    def values(self) -> Iterator[V]: ...

    def put(self, key: K | None, value: V | None) -> None:
        """A value that is changed in place is not written: put a new one. A value of None removes, a tombstone does.

        ValueError for a key of None, which refuses the record.
        """

    def remove(self, key: K) -> None:
        """Absent is fine."""

    def clear(self) -> None:
        """Remove all."""


class BroadcastContext(Protocol):
    """What ``open`` of a ``BroadcastProcessFunction`` gets."""

    def broadcast_state(self, name: str, key_tp: type[K], value_tp: type[V]) -> BroadcastState[K, V]:
        """Declare a state that every subtask holds whole. Types decide how values are stored, as those of any state.

        PlanError if the name is taken, or ``open`` is over.
        """

    def counter(self, name: str) -> Counter:
        """See ``ProcessContext.counter``. Rows of the broadcast stream count in every subtask."""

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit ``value`` to a side output, while a record of the stream is processed, or a timer fires.

        PlanError if the function does not declare the tag, or where a record of the broadcast stream is.
        """

    @property
    def timestamp(self) -> int:
        """The event time of the record at hand. PlanError if its stream has none: see ``Stream.with_timestamps``."""


class KeyedBroadcastContext(BroadcastContext, ProcessContext, Protocol):
    """What ``open`` of a ``KeyedBroadcastProcessFunction`` gets: also the state and the timers of keys."""


class BroadcastProcessFunction(Generic[T, B, U]):
    """Subclass it for ``connect(stream, rules.broadcast()).process``, where the stream has no keys.

    Every session of a worker starts with a fresh one.
    """

    side_outputs: Sequence[OutputTag[Any]] = ()
    """The tags that it emits to with ``ctx.output``. Somebody must read each of them."""

    def open(self, ctx: BroadcastContext) -> None:
        """Declare broadcast states here and keep the handles. Nothing else on ``self`` survives a restart."""

    def close(self) -> None:
        """Let go of what ``open`` has opened, as ``ProcessFunction.close`` does."""

    def process(self, value: T) -> Iterable[U]:
        """Outputs for one record of the stream. It reads broadcast state and does not change it."""
        raise NotImplementedError(f"{type(self).__name__} does not define process(value)")

    def process_broadcast(self, value: B) -> None:
        """What one record of the broadcast stream changes. Called in every subtask: the same must follow in each.

        Records of one partition come in its order. The trap: those of two partitions come in any, another one in each
        subtask; so let those that concern one key be in one partition.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process_broadcast(value)")


class KeyedBroadcastProcessFunction(TimedFunction[K, U], Generic[K, T, B, U]):
    """Subclass it for ``connect(keyed, rules.broadcast()).process``: it has state and timers of keys, too.

    Every session of a worker starts with a fresh one.
    """

    def open(self, ctx: KeyedBroadcastContext) -> None:
        """Declare states here and keep the handles. Nothing else that is kept on ``self`` survives a restart."""

    def process(self, key: K, value: T) -> Iterable[U]:
        """Outputs for one record of the stream. Called in order within a key. It reads broadcast state."""
        raise NotImplementedError(f"{type(self).__name__} does not define process(key, value)")

    def process_broadcast(self, value: B) -> None:
        """What one record of the broadcast stream changes, as for ``BroadcastProcessFunction``. No key is at hand."""
        raise NotImplementedError(f"{type(self).__name__} does not define process_broadcast(value)")
