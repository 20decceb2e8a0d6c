"""The graph that the nodes of a plan make, and what can be asked of it.

Rule: every question can be asked of a graph that nobody has validated yet, if its nodes read what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kafka_eos._util.call_site import Where
from kafka_eos.abc.guarantee import Guarantee, SaysWhy
from kafka_eos.core.fault_attribution import Attribution
from kafka_eos.plan.broadcast_nodes import BroadcastConnect
from kafka_eos.plan.join_nodes import AsOfJoin, TableJoin
from kafka_eos.plan.nodes import (
    Connect,
    Feedback,
    Forward,
    KeyBy,
    Loop,
    Node,
    PartialFold,
    Sink,
    Source,
    Table,
    Timestamps,
    Union,
)
from kafka_eos.plan.watermarks import Alignment


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


@dataclass(frozen=True)
class Graph:
    """Nodes and who reads whom. ``nodes`` are in topological order: inputs before those who read them."""

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

    def attribution(self, source: str) -> Attribution:
        """What the user has said about exceptions on records of ``source``; on what timers made, of all before them."""
        said = [node.attribution for node in self.sources if node.name == source or source in self._fired_below(node)]
        return Attribution(
            tuple(dict.fromkeys(error for each in said for error in each.environment)),
            tuple(dict.fromkeys(error for each in said for error in each.record)),
        )

    def _fired_below(self, source: Source) -> frozenset[str]:
        """Operators that wait for event time, with rows of the source: their names stand where a source's would."""
        return frozenset(node.name for node in self.timed_operators if node.name in self.below(source.name))

    @cached_property
    def timed_operators(self) -> tuple[Node, ...]:
        """Operators with timers, in whichever time."""
        return tuple(node for node in self.nodes if node.sets_timers)

    @cached_property
    def timed(self) -> frozenset[str]:
        """Nodes behind which every row has an event time, and watermarks come.

        Not in a loop, which would wait for its own watermarks, nor behind a fold with ``merge``: its outputs are of
        many rows, and come when an epoch ends.
        """
        found: set[str] = set()
        for node in self.nodes:
            above = node.inputs[:1] if isinstance(node, Union) and node.timed_by_first else node.inputs
            behind = bool(above) and found.issuperset(above) and not isinstance(node, PartialFold)
            if isinstance(node, Timestamps) or (behind and not isinstance(node, Loop)):
                found.add(node.name)
        return frozenset(found)

    @cached_property
    def meets(self) -> dict[str, frozenset[str]]:
        """By source, those that are read before it: the tables that its rows may be joined with, and what it is after.

        Sources that wait for none, and tables, are left out.
        """
        joins = {join: table for table, joins in self.joins_of_tables.items() for join in joins}
        streams = (source.name for source in self.sources if not isinstance(source, Table))
        met = {name: frozenset(joins[join] for join in joins.keys() & self.below(name)) for name in streams}
        first = {source.name: frozenset((source.after,)) for source in self.sources if source.after is not None}
        return {name: awaited for name in met if (awaited := met[name] | first.get(name, frozenset()))}

    @cached_property
    def awaited(self) -> dict[str, frozenset[str]]:
        """Sources that others wait for; by each, the joins that keep its rows, if it is a table."""
        first = (source.after for source in self.sources if source.after is not None)
        return {**dict.fromkeys(first, frozenset[str]()), **self.joins_of_tables}

    @cached_property
    def following(self) -> frozenset[str]:
        """Sources that are after others: as long as they wait, event time goes on without them."""
        return frozenset(source.name for source in self.sources if source.after is not None)

    @cached_property
    def joins_of_tables(self) -> dict[str, frozenset[str]]:
        """By table, the joins that look into it, and the broadcast states that are made of it."""
        joins = [node for node in self.nodes if isinstance(node, TableJoin | AsOfJoin | BroadcastConnect)]
        tables = (source.name for source in self.sources if isinstance(source, Table))
        return {table: frozenset(join.name for join in joins if join.table == table) for table in tables}

    @property
    def aligned(self) -> tuple[tuple[Timestamps, Alignment], ...]:
        """Where splits that are ahead are told apart from those that they wait for: one node a source at most."""
        nodes = (node for node in self.nodes if isinstance(node, Timestamps))
        return tuple((node, node.strategy.alignment) for node in nodes if node.strategy.alignment is not None)

    @cached_property
    def exchanges(self) -> tuple[Node, ...]:
        """Nodes behind which the plan is cut, in plan order: their output comes to another segment."""
        return tuple(node for node in self.nodes if node.partitioning is not None)

    @cached_property
    def copying(self) -> frozenset[str]:
        """Exchanges of which every subtask has processed the same rows at each barrier: broadcast state is made of
        them. So no barrier overtakes rows there, nor waits behind fewer of them in one subtask than in another.
        """
        told = (node.inputs[1] for node in self.nodes if isinstance(node, BroadcastConnect))
        return frozenset(name for name in told if self._by_name[name].partitioning is not None)

    @property
    def feedbacks(self) -> tuple[Feedback, ...]:
        """The exchanges that lead back to loops."""
        return tuple(node for node in self.nodes if isinstance(node, Feedback))

    def keeps_local(self, name: str) -> bool:
        """Does the operator have state of whatever keys reach its subtask, because no exchange brings them together?"""
        node = self._by_name[name]
        if isinstance(node, BroadcastConnect):
            return False  # its state is whole in each
        return node.stateful and any(key_by.local for above in node.inputs for key_by in self.key_bys(above))

    def key_bys(self, name: str) -> tuple[KeyBy, ...]:
        """Where rows behind a node have their keys from: a ``key_by``, one for each input of a ``Connect``, or none."""
        node = self._by_name[name]
        if isinstance(node, KeyBy):
            return (node,)
        above = node.inputs if isinstance(node, Connect | Forward) else ()
        return tuple(key_by for each in above for key_by in self.key_bys(each))

    def below(self, name: str) -> frozenset[str]:
        """Every node that rows of this one may reach, by whatever way; in a loop that is the node itself, too."""
        todo, seen = [name], set[str]()
        while todo:
            found = {reader.name for reader, _ in self.downstream(todo.pop())} - seen
            seen |= found
            todo += found
        return frozenset(seen)

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
            asked = f"sink {sink.name!r} was asked for at-least-once by name"
            return Path(nodes, Guarantee.AT_LEAST_ONCE, sink.sink.because if isinstance(sink.sink, SaysWhy) else asked)
        if source.source.guarantee is Guarantee.AT_LEAST_ONCE:
            return Path(nodes, Guarantee.AT_LEAST_ONCE, f"source {source.name!r} cannot be read again exactly")
        return Path(nodes, Guarantee.EXACTLY_ONCE, "offsets, state and output are committed as one epoch")
