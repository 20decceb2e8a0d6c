"""The plan: what a pipeline does, as frozen nodes in topological order.

An engine reads the plan and nothing else of the user's program. Nodes name their inputs, so a plan is plain
data plus the user's functions.

Rule: a plan that exists in an engine's hands is valid. ``validate`` refuses everything that could not keep its
guarantee, and every refusal quotes the line of the user's file it is about.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

from kafka_eos import interfaces
from kafka_eos.errors import ConfigError, PlanError
from kafka_eos.ids import token
from kafka_eos.interfaces import Codec, DeadLetters, Guarantee, ListCodec

OnError: TypeAlias = Literal["stop"] | DeadLetters
"""What a source does with a record that cannot be processed."""


class DerivedNameWarning(UserWarning):
    """A stateful operator has a name that depends on its position: editing the pipeline can orphan its state."""


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


# ---------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator. ``inputs`` are names of nodes; ``derived`` says that the name was not given by the user."""

    kind: ClassVar[str] = "node"
    stateful: ClassVar[bool] = False

    name: str
    where: Where
    inputs: tuple[str, ...] = ()
    derived: bool = False

    @property
    def partitioning(self) -> Partitioning | None:
        """How the node's output changes subtasks; None if it stays where it is ("forward")."""
        return None

    @property
    def wire(self) -> ListCodec[Any] | None:
        """The codec of values that change subtasks here; None where they do not."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Node):
    kind: ClassVar[str] = "source"

    source: interfaces.Source[Any]
    on_error: OnError = "stop"


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
class Fold(Node):
    """``entry_codec`` is the codec of what is stored for a key: the pair (updates, accumulator).

    With ``merge`` its input is a ``PartialFold``: its rows are accumulators, and it has one output a key and epoch.
    """

    kind: ClassVar[str] = "fold"
    stateful: ClassVar[bool] = True

    init: Callable[[], Any]
    step: Callable[[Any, Any], Any]
    emit: Callable[[Any, Any], Any] | None
    key_codec: Codec[Any]
    entry_codec: Codec[tuple[int, Any]]
    merge: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Node):
    kind: ClassVar[str] = "reduce"
    stateful: ClassVar[bool] = True

    fn: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    entry_codec: Codec[tuple[int, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Node):
    """``factory`` makes a fresh process function for every session of a worker."""

    kind: ClassVar[str] = "process"
    stateful: ClassVar[bool] = True

    factory: Callable[[], Any]
    key_codec: Codec[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Union(Node):
    """The engine renumbers lanes with ``union_lane``; there is no operator to build."""

    kind: ClassVar[str] = "union"


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


# ---------------------------------------------------------------- paths


@dataclass(frozen=True, slots=True)
class Path:
    """One way from a source to a sink, with what it guarantees and why."""

    nodes: tuple[str, ...]
    guarantee: Guarantee
    reason: str

    @property
    def source(self) -> str:
        return self.nodes[0]

    @property
    def sink(self) -> str:
        return self.nodes[-1]


# ---------------------------------------------------------------- segments


@dataclass(frozen=True, slots=True)
class Segment:
    """Operators that work on a row in one go, in one subtask: what lies between two exchanges.

    ``heads`` are where rows come in: sources, and exchanges whose output is read here. ``tails`` are the exchanges
    that rows leave through; an exchange node itself works in the segment before it. ``nodes`` are all nodes that
    work here, in plan order; sinks for dead letters are in every segment that can refuse a record for them.
    """

    index: int
    heads: tuple[str, ...]
    tails: tuple[str, ...]
    nodes: tuple[str, ...]


# ---------------------------------------------------------------- plan


@dataclass(frozen=True)
class Plan:
    """A whole pipeline. ``nodes`` are in topological order: inputs before those who read them."""

    name: str
    nodes: tuple[Node, ...]
    where: Where

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _downstream(self) -> dict[str, tuple[tuple[Node, int], ...]]:
        edges: dict[str, list[tuple[Node, int]]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for index, name in enumerate(node.inputs):
                edges[name].append((node, index))
            if isinstance(node, Feedback):
                edges[node.name].append((self._by_name[node.to], 1))
        return {name: tuple(readers) for name, readers in edges.items()}

    def node(self, name: str) -> Node:
        """The node of that name; KeyError if there is none."""
        return self._by_name[name]

    def downstream(self, name: str) -> tuple[tuple[Node, int], ...]:
        """Who reads the node, in plan order, each with the number of the input it reads it at."""
        return self._downstream[name]

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(node for node in self.nodes if isinstance(node, Source))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Every sink, those for dead letters included."""
        return tuple(node for node in self.nodes if isinstance(node, Sink))

    def dead_letters(self, source: str) -> Sink | None:
        """The sink that takes refused records of ``source``, if it has one."""
        return next((sink for sink in self.sinks if sink.dead_letters and sink.inputs == (source,)), None)

    @cached_property
    def exchanges(self) -> tuple[Node, ...]:
        """Nodes whose output changes subtasks, in plan order."""
        return tuple(node for node in self.nodes if node.partitioning is not None)

    @property
    def feedbacks(self) -> tuple[Node, ...]:
        """The exchanges that lead back to loops."""
        return tuple(node for node in self.nodes if isinstance(node, Feedback))

    def keeps_local(self, name: str) -> bool:
        """Does the operator have state of whatever keys reach its subtask, because no exchange brings them together?"""
        node = self._by_name[name]
        above = [self._by_name[each] for each in node.inputs]
        return node.stateful and any(isinstance(each, KeyBy) and each.local for each in above)

    @cached_property
    def one_by_one(self) -> Plan:
        """The same plan with every fold in one phase: outputs for each record, where this has one a key and epoch."""
        return replace(self, nodes=tuple(map(_one_phase, self.nodes)))

    def below(self, name: str) -> frozenset[str]:
        """Every node that rows of this one may reach, by whatever way; in a loop that is the node itself, too."""
        todo, seen = [name], set[str]()
        while todo:
            found = {reader.name for reader, _ in self.downstream(todo.pop())} - seen
            seen |= found
            todo += found
        return frozenset(seen)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The plan cut at its exchanges, in the order of their first heads: what several subtasks run."""
        return tuple(_segments(self, self.exchanges))

    @cached_property
    def loops_only(self) -> tuple[Segment, ...]:
        """The plan cut where it leads back, and nowhere else: what a single subtask runs."""
        return tuple(_segments(self, self.feedbacks))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of names, kinds and edges. The user's code and settings do not change it."""
        shape = [[node.name, node.kind, list(node.inputs)] for node in self.nodes]
        return hashlib.sha256(json.dumps([self.name, shape], separators=(",", ":")).encode()).hexdigest()

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Every way from a source to a sink, in plan order."""
        return tuple(path for source in self.sources for path in self._walk((source.name,)))

    def _walk(self, nodes: tuple[str, ...]) -> Iterator[Path]:
        for reader, _ in self._downstream[nodes[-1]]:
            if isinstance(reader, Feedback):
                continue  # what comes back has been this way
            if isinstance(reader, Sink):
                yield self._path((*nodes, reader.name))
            else:
                yield from self._walk((*nodes, reader.name))

    def _path(self, nodes: tuple[str, ...]) -> Path:
        source, sink = self._by_name[nodes[0]], self._by_name[nodes[-1]]
        assert isinstance(source, Source)
        assert isinstance(sink, Sink)
        if sink.sink.guarantee is Guarantee.AT_LEAST_ONCE:
            return Path(nodes, Guarantee.AT_LEAST_ONCE, f"sink {sink.name!r} was asked for at-least-once by name")
        if source.source.guarantee is Guarantee.AT_LEAST_ONCE:
            return Path(nodes, Guarantee.AT_LEAST_ONCE, f"source {source.name!r} cannot be read again exactly")
        return Path(nodes, Guarantee.EXACTLY_ONCE, "offsets, state and output are committed as one epoch")

    # ------------------------------------------------------------ validation

    def validate(self) -> Plan:
        """Return the plan if it can run and keep its guarantees, else raise PlanError that quotes the line."""
        _check_names(self)
        _check_edges(self)
        _check_use(self)
        _check_local(self)
        _check_sinks(self)
        _check_guarantees(self)
        return self


def _segments(plan: Plan, cuts: Collection[Node]) -> Iterator[Segment]:
    """Unions of nodes that pass rows to each other directly; ``group`` leads to a set's first member."""
    group: dict[str, str] = {}

    def find(member: str) -> str:
        while group.setdefault(member, member) != member:
            member = group[member]
        return member

    def join(one: str, other: str) -> None:
        group[find(other)] = find(one)

    def out(name: str) -> str:
        return f"{name} " if plan.node(name) in cuts else name

    for node in plan.nodes:
        find(node.name)
        if not _for_dead_letters(node):
            for name in node.inputs:
                join(out(name), node.name)
            if isinstance(node, Feedback):
                join(out(node.name), node.to)
    heads = [*plan.sources, *cuts]
    for index, first in enumerate(dict.fromkeys(find(out(head.name)) for head in heads)):
        sources = {s for s in plan.sources if _reaches(plan, s.name, first, find, out)}
        letters = {sink.name for s in sources if (sink := plan.dead_letters(s.name)) is not None}
        yield Segment(
            index,
            tuple(head.name for head in heads if find(out(head.name)) == first),
            tuple(node.name for node in cuts if find(node.name) == first),
            tuple(
                node.name
                for node in plan.nodes
                if (node.name in letters if _for_dead_letters(node) else find(node.name) == first)
            ),
        )


def _reaches(plan: Plan, source: str, first: str, find: Callable[[str], str], out: Callable[[str], str]) -> bool:
    """Do rows of ``source`` come into the segment of ``first``?"""
    todo, seen = [source], set[str]()
    while todo:
        name = todo.pop()
        if find(out(name)) == first:
            return True
        if name not in seen:
            seen.add(name)
            todo += [reader.name for reader, _ in plan.downstream(name)]
    return False


def _check_names(plan: Plan) -> None:
    for what, name, where in [("pipeline", plan.name, plan.where), *((n.kind, n.name, n.where) for n in plan.nodes)]:
        try:
            token(name, f"the {what} name")
        except ConfigError as error:
            raise PlanError(f"{error}\n  {where}") from None
    first: dict[str, Node] = {}
    for node in plan.nodes:
        if (other := first.setdefault(node.name, node)) is not node:
            raise PlanError(
                f"two operators are named {node.name!r}; give one another name.\n  {other.where}\n  {node.where}"
            )


def _check_edges(plan: Plan) -> None:
    seen: dict[str, Node] = {}
    for node in plan.nodes:
        for name in node.inputs:
            if name not in seen:
                raise PlanError(
                    f"{node.kind} {node.name!r} reads {name!r}, which is not a stream of pipeline "
                    f"{plan.name!r} before it.\n  {node.where}"
                )
            if isinstance(seen[name], Sink):
                raise PlanError(f"{node.kind} {node.name!r} reads the sink {name!r}.\n  {node.where}")
            if node.stateful and not isinstance(seen[name], KeyBy):
                raise PlanError(
                    f"{node.kind} {node.name!r} keeps state for a key, but its input {name!r} has no key; "
                    f"put .key_by(...) before it.\n  {node.where}"
                )
        if len(set(node.inputs)) < len(node.inputs):
            raise PlanError(
                f"union {node.name!r} has the same stream twice; every record would count double.\n  {node.where}"
            )
        seen[node.name] = node


def _check_use(plan: Plan) -> None:
    if not plan.sources:
        raise PlanError(f"pipeline {plan.name!r} has no source; start with pipeline.source(name, ...).\n  {plan.where}")
    for node in plan.nodes:
        readers = [reader for reader, _ in plan.downstream(node.name) if not _for_dead_letters(reader)]
        if not isinstance(node, Sink) and not readers:
            raise PlanError(
                f"nothing reads the stream that {node.kind} {node.name!r} makes; "
                f"end it with .sink(name, ...) or remove it.\n  {node.where}"
            )


def _check_local(plan: Plan) -> None:
    """What stays in its subtask, or waits there for the end of the epoch, must be in a place where that is sound."""
    for node in plan.nodes:
        below = plan.below(node.name)
        if isinstance(node, KeyBy) and node.local and node.name in below:
            raise PlanError(
                f"{node.kind} {node.name!r} is local=True in a loop: rows that come back were never dealt out by "
                f"partition, so nobody can vouch for where their keys are. Leave local=True out.\n  {node.where}"
            )
        if isinstance(node, PartialFold) and any(isinstance(plan.node(name), Loop) for name in below):
            raise PlanError(
                f"what the fold behind {node.name!r} makes goes into a loop, and with merge= it makes it at the end of "
                f"an epoch only: the last rows would never go round. Leave merge= out there.\n  {node.where}"
            )
        if isinstance(node, Exchange) and not isinstance(node, Feedback):
            for name in sorted(below):
                reader = plan.node(name)
                if isinstance(reader, KeyBy) and reader.local:
                    raise PlanError(
                        f"{reader.kind} {name!r} is local=True, but {node.how.value} {node.name!r} before it puts rows "
                        f"of a key into any subtask. Leave local=True out.\n  {reader.where}"
                    )


def _one_phase(node: Node) -> Node:
    match node:
        case PartialFold():
            shared = {field.name: getattr(node, field.name) for field in fields(KeyBy)}
            return KeyBy(**shared)
        case Fold(merge=merge) if merge is not None:
            return replace(node, merge=None)
    return node


def _check_sinks(plan: Plan) -> None:
    chosen = [node for node in plan.sinks if not node.dead_letters]
    uses = Counter(id(node.sink) for node in chosen)
    for node in chosen:
        if uses[id(node.sink)] > 1:
            raise PlanError(
                f"the sink object of {node.name!r} is attached to more than one stream; "
                f"use .union(...) before one sink, or make a sink for each.\n  {node.where}"
            )


def _check_guarantees(plan: Plan) -> None:
    for path in plan.paths:
        sink = plan.node(path.sink)
        assert isinstance(sink, Sink)
        if path.guarantee is Guarantee.AT_LEAST_ONCE and sink.sink.guarantee is Guarantee.EXACTLY_ONCE:
            raise PlanError(
                f"{' -> '.join(path.nodes)} cannot be exactly-once: {path.reason}. To accept duplicates "
                f'on this path, ask for them on the sink: delivery="at-least-once".\n  {sink.where}'
            )


def _for_dead_letters(node: Node) -> bool:
    return isinstance(node, Sink) and node.dead_letters
