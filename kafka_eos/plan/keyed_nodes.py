"""Nodes with state of keys: folds, functions of the user's, windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import Ttl
from kafka_eos.core.json_values import Json
from kafka_eos.plan.nodes import KeyBy, Node, PartialFold
from kafka_eos.plan.triggers import Trigger
from kafka_eos.plan.window_assigners import Paned, RowCount, Session, defined
from kafka_eos.plan.window_contents import Contents


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

    ``timers``: it defines ``on_timer``, ``processing_timers``: and ``on_processing_timer``. ``grows``: it is known to
    keep a row for every key, for ever.
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
    grows: bool = False

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
    ttl: Ttl | None = None

    @property
    def definition(self) -> Json:
        return defined(self.assigner)


def one_phase(node: Node) -> Node:
    match node:
        case PartialFold():
            shared = {field.name: getattr(node, field.name) for field in fields(KeyBy)}
            return KeyBy(**shared)
        case Fold(merge=merge) if merge is not None:
            return replace(node, merge=None)
    return node
