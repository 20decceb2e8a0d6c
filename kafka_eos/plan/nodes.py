"""The nodes of a plan: one operator each, frozen, with the line of the user's program that created it.

This module has those without keyed state, and the exchanges. The other nodes are in ``keyed_nodes``, ``join_nodes``,
``pattern_nodes``, ``async_nodes`` and ``broadcast_nodes``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct, field

from kafka_eos import abc as interfaces
from kafka_eos._util.call_site import CodeLocation
from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.core.fault_attribution import ErrorRules
from kafka_eos.core.json_values import Json
from kafka_eos.plan.watermarks import WatermarkStrategy

SAME_KEYS = (
    "Declare the type of the topic's keys, KafkaSource.records(topic, key=str, ...), and use the same type in key_by."
)
"""The remedy for a stream whose keys cannot occur in a table."""

OnError: TypeAlias = Literal["stop"] | DeadLetters
"""The policy of a source for a record that cannot be processed."""


class DerivedNameWarning(UserWarning):
    """A checkpoint stores an operator's state under a name that depends on its position in the pipeline.

    After the pipeline is edited, the state is left behind, or another operator takes it for its own.
    """


class Partitioning(enum.Enum):
    """The rule by which an exchange chooses the subtask that receives a row."""

    HASH = "hash"
    """The owner of the key's group."""
    REBALANCE = "rebalance"
    """Any subtask, in even shares."""
    BROADCAST = "broadcast"
    """All subtasks."""
    FEEDBACK = "feedback"
    """The sending subtask: back to the head of a loop."""
    FORWARD = "forward"
    """The sending subtask: on to the next operator chain."""


class Node(Struct, frozen=True, kw_only=True):
    """One operator of the plan. ``inputs`` are names of nodes; ``has_generated_name``: the user gave no name."""

    kind: ClassVar[str] = "node"
    stateful: ClassVar[bool] = False
    """Whether it has state in every checkpoint."""
    keyed: ClassVar[bool] = False
    """Whether its state belongs to keys."""

    name: str
    code_line: CodeLocation
    inputs: tuple[str, ...] = ()
    has_generated_name: bool = False

    @property
    def sets_timers(self) -> bool:
        """Return whether the operator sets timers, in event or processing time."""
        return False

    @property
    def waits_for_event_time(self) -> bool:
        """Return whether the operator waits for watermarks."""
        return False

    @property
    def definition(self) -> Json:
        """Return the definition that is stored with the operator's rows; see ``StateDescriptor``."""
        return None

    @property
    def time_rules(self) -> Json:
        """Return the event-time settings that the plan's fingerprint includes."""
        return None

    @property
    def partitioning(self) -> Partitioning | None:
        """Return how the node's output is distributed to the next chain; None if it is not an exchange."""
        return None

    @property
    def exchange_codec(self) -> ListCodec[Any] | None:
        """Return the codec of values in the exchange; None if there is none."""
        return None


class SourceNode(Node, frozen=True, kw_only=True):
    kind: ClassVar[str] = "source"

    source: interfaces.Source[Any]
    on_error: OnError = "stop"
    attribution: ErrorRules = field(default_factory=ErrorRules)
    after: str | None = None
    """The source that is read to its end before this one is started; see ``protocol.source_dependencies``."""

    @property
    def time_rules(self) -> Json:
        return None if self.after is None else {"after": self.after}


class TableNode(SourceNode, frozen=True, kw_only=True):
    """A source whose rows are the current value of each key.

    It is read to its end before the streams that are joined with it; see ``protocol.source_dependencies``.
    """

    kind: ClassVar[str] = "table"


class MapNode(Node, frozen=True, kw_only=True):
    kind: ClassVar[str] = "map"

    fn: Callable[[Any], Any]


class FilterNode(Node, frozen=True, kw_only=True):
    kind: ClassVar[str] = "filter"

    fn: Callable[[Any], object]


class FlatMapNode(Node, frozen=True, kw_only=True):
    kind: ClassVar[str] = "flat-map"

    fn: Callable[[Any], Iterable[Any]]


class MapBatchesNode(Node, frozen=True, kw_only=True):
    kind: ClassVar[str] = "map-batches"

    fn: Callable[[list[Any]], list[Any]]


class TimestampsNode(Node, frozen=True, kw_only=True):
    """Assigns event times and generates watermarks.

    ``fn`` is None if a row's time is that of its record. Its state in a checkpoint belongs to splits.
    """

    kind: ClassVar[str] = "timestamps"
    stateful: ClassVar[bool] = True

    fn: Callable[[Any], int] | None = None
    strategy: WatermarkStrategy
    source: str

    @property
    def time_rules(self) -> Json:
        strategy = self.strategy
        return [strategy.delay, strategy.idle_after, strategy.clock_after, strategy.generator is not None]


class KeyByNode(Node, frozen=True, kw_only=True):
    kind: ClassVar[str] = "key-by"

    fn: Callable[[Any], Any]
    key_codec: Codec[Any]
    value_codec: ListCodec[Any]
    local: bool = False
    """The user guarantees that one subtask reads all records of a key: no exchange is needed."""

    @property
    def partitioning(self) -> Partitioning | None:
        return None if self.local else Partitioning.HASH

    @property
    def exchange_codec(self) -> ListCodec[Any] | None:
        return None if self.local else self.value_codec


class PartialFoldNode(KeyByNode, frozen=True, kw_only=True):
    """Pre-aggregates in each subtask; sends accumulators once per epoch.

    ``value_codec`` is the codec of accumulators. It keeps no state: it is empty at the end of each epoch.
    """

    kind: ClassVar[str] = "partial-fold"

    init: Callable[[], Any]
    step: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    by_time: bool = False


class ExchangeNode(Node, frozen=True, kw_only=True):
    """Repartitions rows: rebalance or broadcast."""

    kind: ClassVar[str] = "exchange"

    strategy: Partitioning
    value_codec: ListCodec[Any]

    @property
    def partitioning(self) -> Partitioning:
        return self.strategy

    @property
    def exchange_codec(self) -> ListCodec[Any]:
        return self.value_codec


class ForwardNode(Node, frozen=True, kw_only=True):
    """A forward exchange: rows stay in their subtask.

    It does not change them or their provenance, so adding or removing it has no effect on output.
    """

    kind: ClassVar[str] = "forward"

    value_codec: ListCodec[Any]

    @property
    def typed(self) -> bool:
        """Return whether the type of the rows is known.

        If not, it is unknown in advance whether they can be encoded.
        """
        return self.value_codec.schema != {}

    @property
    def partitioning(self) -> Partitioning:
        return Partitioning.FORWARD

    @property
    def exchange_codec(self) -> ListCodec[Any]:
        return self.value_codec


class SideOutputNode(Node, frozen=True, kw_only=True):
    """Selects one output of an operator with several."""

    kind: ClassVar[str] = "output"

    tag: str | None


class UnionNode(Node, frozen=True, kw_only=True):
    """Merges streams; each input has its own lane."""

    kind: ClassVar[str] = "union"
    timed_by_first: ClassVar[bool] = False
    """Whether the event time behind it is that of its first input alone."""


class ConnectNode(UnionNode, frozen=True, kw_only=True):
    """Merges two keyed streams as inputs of one operator. It is a union that keeps the keys.

    Watermarks and barriers of both streams are combined here, and lanes identify the stream of a batch: see
    ``input_of``.
    """

    kind: ClassVar[str] = "connect"


class TableConnectNode(ConnectNode, frozen=True, kw_only=True):
    """Merges a keyed stream and a table as inputs of a table join."""

    kind: ClassVar[str] = "lookup"
    timed_by_first: ClassVar[bool] = True


class LoopNode(Node, frozen=True, kw_only=True):
    """The head of a loop: it merges new and returning rows. It has no operator at run time."""

    kind: ClassVar[str] = "loop"


class FeedbackNode(ExchangeNode, frozen=True, kw_only=True):
    """The exchange that returns rows to the head of a loop."""

    kind: ClassVar[str] = "feedback"

    strategy: Partitioning = Partitioning.FEEDBACK
    to: str


class SinkNode(Node, frozen=True, kw_only=True):
    """A sink, or the dead letter sink of a source."""

    kind: ClassVar[str] = "sink"

    sink: interfaces.Sink[Any]
    is_dead_letter_sink: bool = False


def union_lane(lane: int, inputs: int, index: int) -> int:
    """Return the lane of a batch behind a union of ``inputs`` streams that it entered as number ``index``.

    Two different paths never get the same lane: (lane, index) can be computed from the result.
    """
    return lane * inputs + index


def input_of(lane: int, inputs: int) -> int:
    """Return the input of the preceding union by which a batch came; 0 if there is only one input."""
    return lane % inputs


def is_dead_letter_sink(node: Node) -> bool:
    return isinstance(node, SinkNode) and node.is_dead_letter_sink
