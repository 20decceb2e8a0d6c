"""The nodes of a plan: one operator each, frozen, with the line of the user's program that made it.

Here are those without state of keys, and what moves rows. ``keyed``, ``joins``, ``patterns``, ``requests`` and
``broadcasts`` have the others.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from kafka_eos import abc as interfaces
from kafka_eos._util.call_site import Where
from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.core.fault_attribution import Attribution
from kafka_eos.core.json_values import Json
from kafka_eos.plan.watermarks import WatermarkStrategy

SAME_KEYS = "Say how the topic has its keys, KafkaSource.records(topic, key=str, ...), and key_by the same."
"""What to do about keys of a stream that a table cannot have."""

OnError: TypeAlias = Literal["stop"] | DeadLetters
"""What a source does with a record that cannot be processed."""


class DerivedNameWarning(UserWarning):
    """What a checkpoint holds of an operator is under a name that depends on its position: with another place in the
    pipeline it is orphaned, or another operator takes it for its own."""


class Partitioning(enum.Enum):
    """How an exchange chooses the subtask that gets a row."""

    HASH = "hash"
    """The owner of the key's group."""
    REBALANCE = "rebalance"
    """Any; even shares."""
    BROADCAST = "broadcast"
    """All of them."""
    FEEDBACK = "feedback"
    """The one that sends it: back to the head of a loop."""
    FORWARD = "forward"
    """The one that sends it: on to the next segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator. ``inputs`` are names of nodes; ``derived`` says that the name was not given by the user."""

    kind: ClassVar[str] = "node"
    stateful: ClassVar[bool] = False
    """It has something in every checkpoint."""
    keyed: ClassVar[bool] = False
    """What it has there belongs to keys."""

    name: str
    where: Where
    inputs: tuple[str, ...] = ()
    derived: bool = False

    @property
    def sets_timers(self) -> bool:
        """In whichever time."""
        return False

    @property
    def waits(self) -> bool:
        """Does it wait for event time?"""
        return False

    @property
    def definition(self) -> Json:
        """What its rows are held for, as it is stored beside them; see ``StateDescriptor``."""
        return None

    @property
    def time_rules(self) -> Json:
        """What it is told of event time, for the plan's fingerprint."""
        return None

    @property
    def partitioning(self) -> Partitioning | None:
        """How the node's output comes to the next segment; None if there is no exchange."""
        return None

    @property
    def wire(self) -> ListCodec[Any] | None:
        """The codec of values on their way through the exchange; None if there is none."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Node):
    kind: ClassVar[str] = "source"

    source: interfaces.Source[Any]
    on_error: OnError = "stop"
    attribution: Attribution = field(default_factory=Attribution)
    after: str | None = None
    """The source that is read to its end before this one is begun; see ``protocol.source_dependencies``."""

    @property
    def time_rules(self) -> Json:
        return None if self.after is None else {"after": self.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Source):
    """A source whose rows are what keys have now: ``key`` and ``value`` of each, None for nothing any more.

    It is read to its end before the streams that are joined with it; see ``protocol.source_dependencies``.
    """

    kind: ClassVar[str] = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Node):
    kind: ClassVar[str] = "map"

    fn: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    kind: ClassVar[str] = "filter"

    fn: Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMap(Node):
    kind: ClassVar[str] = "flat-map"

    fn: Callable[[Any], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBatches(Node):
    kind: ClassVar[str] = "map-batches"

    fn: Callable[[list[Any]], list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestamps(Node):
    """Gives rows their event times, and makes the watermarks of ``source``, whose splits are told apart here.

    ``fn`` is None where the time of a row is that of its record. What it has in a checkpoint belongs to splits.
    """

    kind: ClassVar[str] = "timestamps"
    stateful: ClassVar[bool] = True

    fn: Callable[[Any], int] | None = None
    strategy: WatermarkStrategy
    source: str

    @property
    def time_rules(self) -> Json:
        told = self.strategy
        return [told.delay, told.idle_after, told.clock_after, told.generator is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBy(Node):
    kind: ClassVar[str] = "key-by"

    fn: Callable[[Any], Any]
    key_codec: Codec[Any]
    values: ListCodec[Any]
    local: bool = False
    """The user vouches that all records of a key come from splits that one subtask reads: no exchange."""

    @property
    def partitioning(self) -> Partitioning | None:
        return None if self.local else Partitioning.HASH

    @property
    def wire(self) -> ListCodec[Any] | None:
        return None if self.local else self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialFold(KeyBy):
    """The ``key_by`` before a fold with ``merge=``: sums up in each subtask, and sends accumulators once an epoch.

    ``values`` is the codec of accumulators. It keeps no state: an epoch ends with nothing in it.
    """

    kind: ClassVar[str] = "partial-fold"

    init: Callable[[], Any]
    step: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    by_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Node):
    """Moves rows and does nothing else: ``rebalance``, ``broadcast``, and the way back of ``iterate``."""

    kind: ClassVar[str] = "exchange"

    how: Partitioning
    values: ListCodec[Any]

    @property
    def partitioning(self) -> Partitioning:
        return self.how

    @property
    def wire(self) -> ListCodec[Any]:
        return self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward(Node):
    """Rows stay in their subtask, and go on in another segment: one that waits for barriers from elsewhere, too.

    It leaves no trace on them, in their provenance neither: it may be there or not.
    """

    kind: ClassVar[str] = "forward"

    values: ListCodec[Any]

    @property
    def typed(self) -> bool:
        """Is the type of the rows known? If not, nobody can say beforehand whether they can be written."""
        return self.values.schema != {}

    @property
    def partitioning(self) -> Partitioning:
        return Partitioning.FORWARD

    @property
    def wire(self) -> ListCodec[Any]:
        return self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutput(Node):
    """Takes one output of an operator that has several: that of ``tag``, or the main one if that is None."""

    kind: ClassVar[str] = "output"

    tag: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Union(Node):
    """The engine renumbers lanes with ``union_lane``; there is no operator to build."""

    kind: ClassVar[str] = "union"
    timed_by_first: ClassVar[bool] = False
    """Is event time behind it that of its first input alone?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect(Union):
    """Two streams with keys on their way into one operator. It is a union that keeps the keys.

    So watermarks and barriers meet there, and lanes tell the operator which stream a batch is of: see ``input_of``.
    """

    kind: ClassVar[str] = "connect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(Connect):
    """A stream, and then a table, on their way into a ``TableJoin``."""

    kind: ClassVar[str] = "lookup"
    timed_by_first: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Node):
    """The head of a loop: rows from before it, and rows that come back. There is no operator to build."""

    kind: ClassVar[str] = "loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback(Exchange):
    """Takes rows back to the loop named ``to``: the one edge of the plan that does not lead to a later node."""

    kind: ClassVar[str] = "feedback"

    how: Partitioning = Partitioning.FEEDBACK
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Node):
    """With ``dead_letters`` the node stands for the source's ``on_error``: it gets refused records, no batches."""

    kind: ClassVar[str] = "sink"

    sink: interfaces.Sink[Any]
    dead_letters: bool = False


def union_lane(lane: int, inputs: int, index: int) -> int:
    """The lane of a batch after a union of ``inputs`` streams that it entered as number ``index``.

    Two different paths never get the same lane: (lane, index) can be read back from the result.
    """
    return lane * inputs + index


def input_of(lane: int, inputs: int) -> int:
    """Which of the ``inputs`` of the union right before it a batch came by; 0 where there is but one."""
    return lane % inputs


def for_dead_letters(node: Node) -> bool:
    return isinstance(node, Sink) and node.dead_letters
