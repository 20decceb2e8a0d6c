"""Nodes with keyed state: folds, user functions, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.abc.state import Ttl
from kafka_eos.core.errors import Bug
from kafka_eos.core.json_values import Json
from kafka_eos.plan.nodes import KeyByNode, Node, PartialFoldNode
from kafka_eos.plan.triggers import WindowTrigger
from kafka_eos.plan.window_assigners import PanedAssigner, RowCountWindows, SessionWindows, describe_window
from kafka_eos.plan.window_contents import WindowContents


class FoldNode(Node, frozen=True, kw_only=True):
    """Folds the values of a key into an accumulator.

    With ``merge`` its input is a ``PartialFoldNode``, whose rows are accumulators; it emits one output per key and
    epoch. ``by_time``: ``step`` takes pairs of a value and its event-time sort key; with ``merge``, in the
    ``PartialFoldNode``.
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


class ReduceNode(Node, frozen=True, kw_only=True):
    kind: ClassVar[str] = "reduce"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    fn: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    entry_codec: Codec[tuple[int, Any]]
    ttl: Ttl | None = None


class ProcessNode(Node, frozen=True, kw_only=True):
    """Runs a keyed process function.

    ``timers``: it defines ``on_timer``. ``processing_timers``: it defines ``on_processing_timer``. ``grows``: it is
    known to store a row for every key forever.
    """

    kind: ClassVar[str] = "process"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    methods: ClassVar[tuple[str, ...]] = ("process",)
    """The function's methods that take records, one per input."""

    factory: Callable[[], Any]
    key_codec: Codec[Any]
    timers: bool = False
    processing_timers: bool = False
    grows: bool = False

    @property
    def sets_timers(self) -> bool:
        return self.timers or self.processing_timers

    @property
    def waits_for_event_time(self) -> bool:
        return self.timers


class CoProcessNode(ProcessNode, frozen=True, kw_only=True):
    """Runs a process function of two keyed streams. Its input is a ``ConnectNode``."""

    kind: ClassVar[str] = "co-process"
    methods: ClassVar[tuple[str, ...]] = ("process_left", "process_right")


class WindowNode(Node, frozen=True, kw_only=True):
    """Event-time windows of each key. ``late``: the tag of late rows.

    ``trigger``: emits results before the end of a window. With a count trigger, the contents are pairs: the rows since
    the last result, and the contents of all rows.
    """

    kind: ClassVar[str] = "window"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    assigner: PanedAssigner | SessionWindows
    contents: WindowContents
    key_codec: Codec[Any]
    lateness: int = 0
    late: str | None = None
    trigger: WindowTrigger | None = None

    @property
    def definition(self) -> Json:
        return {**describe_window(self.assigner), "lateness": self.lateness}

    @property
    def time_rules(self) -> Json:
        return [self.definition, None if self.trigger is None else repr(self.trigger)]

    @property
    def sets_timers(self) -> bool:
        return True

    @property
    def waits_for_event_time(self) -> bool:
        return True


class CountWindowNode(Node, frozen=True, kw_only=True):
    """Count windows of each key."""

    kind: ClassVar[str] = "window"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    assigner: RowCountWindows
    contents: WindowContents
    key_codec: Codec[Any]
    ttl: Ttl | None = None

    @property
    def definition(self) -> Json:
        return describe_window(self.assigner)


class _UnsentRows(ListCodec[Any]):
    """The codec of rows that a fold in two phases does not send: it sends accumulators in their place."""

    name = "unsent"

    def encode(self, values: Sequence[Any]) -> bytes:
        raise Bug("rows in front of a fold in two phases were sent")

    def expect_encodable(self, values: Sequence[Any]) -> None: ...

    def decode(self, data: bytes) -> list[Any]:
        raise Bug("rows in front of a fold in two phases were sent")


def one_phase(node: Node) -> Node:
    """Return the node as part of a plan in which each fold has one phase."""
    match node:
        case PartialFoldNode():
            shared = {name: getattr(node, name) for name in KeyByNode.__struct_fields__}
            return KeyByNode(**{**shared, "value_codec": _UnsentRows()})
        case FoldNode(merge=merge) if merge is not None:
            return replace(node, merge=None)
    return node
