"""The graph of a plan's nodes, and queries on it.

Rule: every query works on a graph that was not validated yet, if the inputs of its nodes exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from msgspec import Struct

from kafka_eos._util.call_site import CodeLocation
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.core.fault_attribution import ErrorRules
from kafka_eos.plan.broadcast_nodes import BroadcastConnectNode
from kafka_eos.plan.join_nodes import AsOfJoinNode, TableJoinNode
from kafka_eos.plan.nodes import (
    ConnectNode,
    FeedbackNode,
    ForwardNode,
    KeyByNode,
    LoopNode,
    Node,
    PartialFoldNode,
    SinkNode,
    SourceNode,
    TableNode,
    TimestampsNode,
    UnionNode,
)
from kafka_eos.plan.watermarks import WatermarkAlignment


class PlanPath(Struct, frozen=True):
    """A path from a source to a sink, with its guarantee and the reason."""

    nodes: tuple[str, ...]
    guarantee: Guarantee
    reason: str

    @property
    def source(self) -> str:
        return self.nodes[0]

    @property
    def sink(self) -> str:
        return self.nodes[-1]


@dataclass(frozen=True)
class Graph:
    """Nodes and the nodes that read them. ``nodes`` are in topological order: inputs before their readers."""

    name: str
    nodes: tuple[Node, ...]
    where: CodeLocation

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _downstream(self) -> dict[str, tuple[tuple[Node, int], ...]]:
        edges: dict[str, list[tuple[Node, int]]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for index, name in enumerate(node.inputs):
                edges[name].append((node, index))
            if isinstance(node, FeedbackNode):
                edges[node.name].append((self._by_name[node.to], 1))
        return {name: tuple(readers) for name, readers in edges.items()}

    def node(self, name: str) -> Node:
        """Return the node of that name. Raises KeyError if there is none."""
        return self._by_name[name]

    def downstream(self, name: str) -> tuple[tuple[Node, int], ...]:
        """Return the readers of a node, in plan order, each with the number of the input at which it reads the node."""
        return self._downstream[name]

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        """Return every sink, including those for dead letters."""
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))

    def find_dead_letter_sink(self, source: str) -> SinkNode | None:
        """Return the dead letter sink of a source, or None.

        For a timer's operator in place of a source, it is that of the first source above it, if each of them has one.
        """
        sinks = [self._dead_letter_sinks.get(name) for name in self._sources_above_timers.get(source, (source,))]
        return sinks[0] if sinks and all(sinks) else None

    @cached_property
    def _dead_letter_sinks(self) -> dict[str, SinkNode]:
        return {sink.inputs[0]: sink for sink in self.sinks if sink.is_dead_letter_sink}

    @cached_property
    def _sources_above_timers(self) -> dict[str, list[str]]:
        fired = {source.name: self._fired_below(source) for source in self.sources}
        return {node.name: [name for name in fired if node.name in fired[name]] for node in self.timer_operators}

    def has_records(self, source: str) -> bool:
        """Return whether a row's source is a source of the plan, and not an operator whose timers emitted the row."""
        return source not in self._sources_above_timers

    def attribution(self, source: str) -> ErrorRules:
        """Return the user's rules for exceptions on records of ``source``.

        For a timer's operator in place of a source, they are the rules of all sources above it.
        """
        rules = [node.attribution for node in self.sources if node.name == source or source in self._fired_below(node)]
        return ErrorRules(
            tuple(dict.fromkeys(error for each in rules for error in each.environment)),
            tuple(dict.fromkeys(error for each in rules for error in each.record)),
        )

    def _fired_below(self, source: SourceNode) -> frozenset[str]:
        """Return the operators with event-time timers behind the source; for a timer, they stand in place of a
        source."""
        return frozenset(node.name for node in self.timer_operators if node.name in self.find_descendants(source.name))

    @cached_property
    def timer_operators(self) -> tuple[Node, ...]:
        """Return the operators with timers, in event or processing time."""
        return tuple(node for node in self.nodes if node.sets_timers)

    @cached_property
    def event_time_nodes(self) -> frozenset[str]:
        """Return the nodes behind which every row has an event time and watermarks arrive.

        Excluded are nodes in a loop, which would wait for its own watermarks, and those behind a fold with ``merge``:
        its outputs combine many rows, and are emitted when an epoch ends.
        """
        found: set[str] = set()
        for node in self.nodes:
            above = node.inputs[:1] if isinstance(node, UnionNode) and node.timed_by_first else node.inputs
            behind = bool(above) and found.issuperset(above) and not isinstance(node, PartialFoldNode)
            if isinstance(node, TimestampsNode) or (behind and not isinstance(node, LoopNode)):
                found.add(node.name)
        return frozenset(found)

    @cached_property
    def prerequisites(self) -> dict[str, frozenset[str]]:
        """Return, by source, the sources that are read to their end before it.

        Tables, and sources that wait for none, are omitted.
        """
        joins = {join: table for table, joins in self.joins_of_tables.items() for join in joins}
        streams = (source.name for source in self.sources if not isinstance(source, TableNode))
        met = {name: frozenset(joins[join] for join in joins.keys() & self.find_descendants(name)) for name in streams}
        first = {source.name: frozenset((source.after,)) for source in self.sources if source.after is not None}
        return {name: awaited for name in met if (awaited := met[name] | first.get(name, frozenset()))}

    @cached_property
    def awaited_sources(self) -> dict[str, frozenset[str]]:
        """Return the sources that others wait for, with the joins that keep their rows."""
        first = (source.after for source in self.sources if source.after is not None)
        return {**dict.fromkeys(first, frozenset[str]()), **self.joins_of_tables}

    @cached_property
    def deferred_sources(self) -> frozenset[str]:
        """Return the sources that start after another one has ended."""
        return frozenset(source.name for source in self.sources if source.after is not None)

    @cached_property
    def joins_of_tables(self) -> dict[str, frozenset[str]]:
        """Return, by table, the joins that look it up, and the broadcast states that are built from it."""
        joins = [node for node in self.nodes if isinstance(node, TableJoinNode | AsOfJoinNode | BroadcastConnectNode)]
        tables = (source.name for source in self.sources if isinstance(source, TableNode))
        return {table: frozenset(join.name for join in joins if join.table == table) for table in tables}

    @property
    def watermark_alignments(self) -> tuple[tuple[TimestampsNode, WatermarkAlignment], ...]:
        """Return the nodes with watermark alignment, each with its settings."""
        nodes = (node for node in self.nodes if isinstance(node, TimestampsNode))
        return tuple((node, node.strategy.alignment) for node in nodes if node.strategy.alignment is not None)

    @cached_property
    def exchanges(self) -> tuple[Node, ...]:
        """Return the nodes behind which the plan is cut, in plan order: another chain reads their output."""
        return tuple(node for node in self.nodes if node.partitioning is not None)

    @cached_property
    def replicating_exchanges(self) -> frozenset[str]:
        """Return the broadcast exchanges that feed broadcast state, where barriers must align.

        So no barrier overtakes rows there, and every barrier has the same rows before it in all subtasks.
        """
        broadcast_inputs = (node.inputs[1] for node in self.nodes if isinstance(node, BroadcastConnectNode))
        return frozenset(name for name in broadcast_inputs if self._by_name[name].partitioning is not None)

    @property
    def feedbacks(self) -> tuple[FeedbackNode, ...]:
        """Return the exchanges that lead back to loops."""
        return tuple(node for node in self.nodes if isinstance(node, FeedbackNode))

    def has_local_state(self, name: str) -> bool:
        """Return whether the operator has state behind key_by(local=True)."""
        node = self._by_name[name]
        if isinstance(node, BroadcastConnectNode):
            return False  # each subtask has a complete copy of its state
        return node.stateful and any(key_by.local for above in node.inputs for key_by in self.key_bys(above))

    def key_bys(self, name: str) -> tuple[KeyByNode, ...]:
        """Return the origin of the keys behind a node: a ``key_by``, one per input of a ``ConnectNode``, or none."""
        node = self._by_name[name]
        if isinstance(node, KeyByNode):
            return (node,)
        above = node.inputs if isinstance(node, ConnectNode | ForwardNode) else ()
        return tuple(key_by for each in above for key_by in self.key_bys(each))

    def find_descendants(self, name: str) -> frozenset[str]:
        """Return every node that rows of this one may reach."""
        todo, seen = [name], set[str]()
        while todo:
            found = {reader.name for reader, _ in self.downstream(todo.pop())} - seen
            seen |= found
            todo += found
        return frozenset(seen)

    @cached_property
    def paths(self) -> tuple[PlanPath, ...]:
        """Return every path from a source to a sink, in plan order."""
        return tuple(path for source in self.sources for path in self._walk((source.name,)))

    def _walk(self, nodes: tuple[str, ...]) -> Iterator[PlanPath]:
        for reader, _ in self._downstream[nodes[-1]]:
            if isinstance(reader, FeedbackNode):
                continue  # a row that returns has taken this path before
            if isinstance(reader, SinkNode):
                yield self._path((*nodes, reader.name))
            else:
                yield from self._walk((*nodes, reader.name))

    def _path(self, nodes: tuple[str, ...]) -> PlanPath:
        source, sink = self._by_name[nodes[0]], self._by_name[nodes[-1]]
        assert isinstance(source, SourceNode)
        assert isinstance(sink, SinkNode)
        if sink.sink.guarantee is Guarantee.AT_LEAST_ONCE:
            asked = f'sink {sink.name!r} has delivery="at-least-once"'
            return PlanPath(
                nodes,
                Guarantee.AT_LEAST_ONCE,
                sink.sink.guarantee_reason or asked,
            )
        if source.source.guarantee is Guarantee.AT_LEAST_ONCE:
            return PlanPath(nodes, Guarantee.AT_LEAST_ONCE, f"source {source.name!r} cannot be read again exactly")
        return PlanPath(nodes, Guarantee.EXACTLY_ONCE, "offsets, state and output are committed as one epoch")
