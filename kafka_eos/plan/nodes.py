"""The nodes of a plan: one operator each, frozen, with the line of the user's program that made it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeAlias

from kafka_eos import interfaces
from kafka_eos.attribution import Attribution
from kafka_eos.interfaces import (
    Codec,
    Contents,
    DeadLetters,
    Interval,
    Json,
    ListCodec,
    Paned,
    RowCount,
    Session,
    Trigger,
    Ttl,
    WatermarkStrategy,
    defined,
)

SAME_KEYS = "Say how the topic has its keys, KafkaSource.records(topic, key=str, ...), and key_by the same."
"""What to do about keys of a stream that a table cannot have."""

OnError: TypeAlias = Literal["stop"] | DeadLetters
"""What a source does with a record that cannot be processed."""


class DerivedNameWarning(UserWarning):
    """What a checkpoint holds of an operator is under a name that depends on its position: with another place in the
    pipeline it is orphaned, or another operator takes it for its own."""


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the user's program."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.text}" if self.text else "")


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
    """The source that is read to its end before this one is begun; see ``protocol.bootstrap``."""

    @property
    def time_rules(self) -> Json:
        return None if self.after is None else {"after": self.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Source):
    """A source whose rows are what keys have now: ``key`` and ``value`` of each, None for nothing any more.

    It is read to its end before the streams that are joined with it; see ``protocol.bootstrap``.
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

    fn: Callable[[Any], int] | None
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
class Fold(Node):
    """``entry_codec`` is the codec of what is stored for a key: the pair (updates, accumulator).

    With ``merge`` its input is a ``PartialFold``: its rows are accumulators, and it has one output a key and epoch.
    ``by_time``: ``step`` takes pairs, a value and its place in event time; with ``merge`` in the ``PartialFold``.
    """

    kind: ClassVar[str] = "fold"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    init: Callable[[], Any]
    step: Callable[[Any, Any], Any]
    emit: Callable[[Any, Any], Any] | None
    key_codec: Codec[Any]
    entry_codec: Codec[tuple[int, Any]]
    merge: Callable[[Any, Any], Any] | None = None
    ttl: Ttl | None = None
    by_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Node):
    kind: ClassVar[str] = "reduce"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    fn: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    entry_codec: Codec[tuple[int, Any]]
    ttl: Ttl | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Node):
    """``factory`` makes a fresh process function for every session of a worker.

    ``timers``: it defines ``on_timer``, ``processing_timers``: and ``on_processing_timer``.
    """

    kind: ClassVar[str] = "process"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    methods: ClassVar[tuple[str, ...]] = ("process",)
    """Those of the function that take records, one for each input."""

    factory: Callable[[], Any]
    key_codec: Codec[Any]
    timers: bool = False
    processing_timers: bool = False

    @property
    def sets_timers(self) -> bool:
        return self.timers or self.processing_timers

    @property
    def waits(self) -> bool:
        return self.timers


@dataclass(frozen=True, slots=True, kw_only=True)
class CoProcess(Process):
    """A process function of two streams. Its input is a ``Connect``."""

    kind: ClassVar[str] = "co-process"
    methods: ClassVar[tuple[str, ...]] = ("process_left", "process_right")


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows(Node):
    """``lateness``: milliseconds for which a window that is over still takes rows. ``late``: the tag of later ones.

    ``trigger``: when it has results before its end, if it has. By count, what it holds are pairs: rows since
    the last result, and what it holds of all.
    """

    kind: ClassVar[str] = "window"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    assigner: Paned | Session
    contents: Contents
    key_codec: Codec[Any]
    lateness: int = 0
    late: str | None = None
    trigger: Trigger | None = None

    @property
    def definition(self) -> Json:
        return {**defined(self.assigner), "lateness": self.lateness}

    @property
    def time_rules(self) -> Json:
        return [self.definition, None if self.trigger is None else repr(self.trigger)]

    @property
    def sets_timers(self) -> bool:
        return True

    @property
    def waits(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedWindows(Node):
    """Windows of so many rows: they wait for no time."""

    kind: ClassVar[str] = "window"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    assigner: RowCount
    contents: Contents
    key_codec: Codec[Any]

    @property
    def definition(self) -> Json:
        return defined(self.assigner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Node):
    """Two streams, joined in event time. Its input is a ``Connect``; pairs have one for each of its streams.

    ``values``: codecs of stored rows. ``unmatched``: the tags of rows that were in no pair. ``late``: of rows that came
    when all was over; those of a stream without one are refused.
    """

    kind: ClassVar[str] = "join"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    fn: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    values: tuple[Codec[Any], Codec[Any]]
    unmatched: tuple[str | None, str | None] = (None, None)
    late: tuple[str | None, str | None] = (None, None)

    @property
    def sets_timers(self) -> bool:
        return True

    @property
    def waits(self) -> bool:
        return True

    def seen(self, side: int, value: Any) -> Any:
        """What of a row is joined and stored."""
        return value

    def made(self, left: Any, right: Any) -> Sequence[Any]:
        """What comes out of two rows that belong together."""
        return (self.fn(left, right),)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoin(Join):
    """Rows whose times are near each other: ``interval`` says how far one of the second stream is behind the other."""

    kind: ClassVar[str] = "interval-join"

    interval: Interval

    @property
    def definition(self) -> Json:
        asked = [name for name, tag in zip(("left", "right"), self.unmatched, strict=True) if tag is not None]
        return {**defined(self.interval), "unmatched": list[Json](asked)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowJoin(Join):
    """Rows that are in one window."""

    kind: ClassVar[str] = "window-join"

    assigner: Paned | Session

    @property
    def definition(self) -> Json:
        return defined(self.assigner)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfJoin(Join):
    """Each row of a stream with what a table had for its key at its time. The second stream are the table's rows.

    ``table``: its name. ``outer``: rows of keys that it had nothing for are given to ``fn`` too, with None.
    """

    kind: ClassVar[str] = "as-of-join"

    table: str
    outer: bool

    @property
    def definition(self) -> Json:
        return {"as-of": self.table}

    def seen(self, side: int, value: Any) -> Any:
        return value.value if side else value

    def made(self, left: Any, right: Any) -> Sequence[Any]:
        return () if right is None and not self.outer else (self.fn(left, right),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin(Node):
    """Each row of a stream with what a table has for its key. Its input is a ``Lookup``; it waits for no time.

    ``table``: its name. ``value``: the codec of what is stored for a key. ``keys``: the class of its keys, if it is
    known. ``unmatched``: rows of keys that the table does not have are given to ``fn`` too, with None.
    """

    kind: ClassVar[str] = "table-join"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    table: str
    fn: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    value: Codec[Any]
    unmatched: bool
    keys: type[Any] | None = None

    @property
    def definition(self) -> Json:
        return {"table": self.table}


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


def one_phase(node: Node) -> Node:
    match node:
        case PartialFold():
            shared = {field.name: getattr(node, field.name) for field in fields(KeyBy)}
            return KeyBy(**shared)
        case Fold(merge=merge) if merge is not None:
            return replace(node, merge=None)
    return node
