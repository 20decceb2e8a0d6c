"""A plan, cut where its state begins: a part that runs on records in any grouping, and a part that runs on all rows of
a key.

Pure. Rule: each property of outputs that depends on more than the rows of their key is a named property of ``Cut``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from kafka_eos.abc.sink import Sink as SinkConnector
from kafka_eos.audit.tables.unanswered_requests import UnansweredNode, unanswered, why
from kafka_eos.plan import (
    BroadcastConnectNode,
    CountWindowNode,
    ExchangeNode,
    FilterNode,
    FlatMapNode,
    FoldNode,
    ForwardNode,
    KeyByNode,
    MapNode,
    Node,
    Partitioning,
    PatternNode,
    Plan,
    ProcessNode,
    ReduceNode,
    SinkNode,
    SourceNode,
    TableConnectNode,
    TableJoinNode,
    UnionNode,
    WindowNode,
)
from kafka_eos.plan.deduplication import DeduplicateFunction
from kafka_eos.runtime.operators import process
from kafka_eos.runtime.operators.process import list_declared_states
from kafka_eos.runtime.operators.rejections import hash_operator

if TYPE_CHECKING:
    from pyspark.sql import Column

_NOT_ONE_EACH = FlatMapNode | PatternNode | ProcessNode | TableJoinNode | WindowNode | CountWindowNode
"""Nodes that may make none of a row, or several."""


@dataclass(frozen=True)
class Cut:
    """A plan cut at the ``key_by`` nodes in front of its stateful operators (the *stages*).

    ``head`` runs on records in any grouping; what reaches a stage leaves it through a sink named by
    ``captured``. ``tail`` runs on all rows of a key together: push a batch into it under the stage's name.
    With ``serial`` there is nothing to cut: the whole plan must run in one place.
    """

    plan: Plan
    """The plan with every fold in one phase."""
    whole: Plan
    """The plan as the job runs it. It determines the provenance of outputs."""
    stages: tuple[str, ...]
    serial: bool
    parallelism: int = 1
    """The number of workers of the job; more than one if it has changed."""

    @cached_property
    def below(self) -> frozenset[str]:
        """Return the nodes that depend on the order of the records of a key."""
        return descendants(self.plan, self.stages)

    @cached_property
    def head(self) -> Plan:
        nodes = [node for node in self.plan.nodes if node.name not in self.below]
        captures = [capture(self.plan.node(stage)) for stage in self.stages]
        return Plan(self.plan.name, (*nodes, *captures), self.plan.where)

    @cached_property
    def tail(self) -> Plan:
        letters = {sink.name for sink in self.plan.sinks if sink.is_dead_letter_sink}
        kept: list[Node] = []
        for node in self.plan.nodes:
            if node.name in self.stages:
                kept.append(replace(node, inputs=()))
            elif node.name in self.below or node.name in letters or isinstance(node, SourceNode):
                kept.append(node)
        return Plan(self.plan.name, tuple(kept), self.plan.where)

    @property
    def head_sinks(self) -> frozenset[str]:
        """Return the sinks whose outputs do not depend on state. Both halves write dead letters."""
        return frozenset(sink.name for sink in self.plan.sinks if sink.name not in self.below)

    @property
    def one_an_update(self) -> bool:
        """Return whether each row at a stage emits at most one output, so that update numbers of a key are unique."""
        stateful = [node for node in self.plan.nodes if node.keyed]
        below = [self.plan.node(name) for name in self.below]
        manifold = self.copied or any(isinstance(node, _NOT_ONE_EACH | UnionNode) for node in below)
        return not self.serial and len(self.stages) == 1 and len(stateful) == 1 and not manifold

    @property
    def one_to_one(self) -> bool:
        """Return whether each row at a stage emits exactly one output, so that update numbers define the order."""
        return self.one_an_update and not any(isinstance(self.plan.node(name), FilterNode) for name in self.below)

    @property
    def steady(self) -> bool:
        """Return whether the order of records affects only the contents of outputs, and not which outputs exist."""
        return not any(isinstance(self.plan.node(name), _NOT_ONE_EACH | FilterNode) for name in self.below)

    @cached_property
    def lookups(self) -> tuple[str, ...]:
        """Return the stages where rows of a stream look up a table. These rows have no order among themselves."""
        return tuple(stage for stage in self.stages if isinstance(self.plan.node(stage), TableConnectNode))

    @cached_property
    def looking(self) -> frozenset[str]:
        """Return the nodes after a join with a table, including dead letters."""
        names = [node.name for node in self.plan.nodes if isinstance(node, TableJoinNode)]
        return frozenset({*descendants(self.plan, names), *(self.letters if names else ())})

    @cached_property
    def tables(self) -> frozenset[str]:
        """Return the sources whose current values are looked up."""
        return frozenset(node.table for node in self.plan.nodes if isinstance(node, TableJoinNode))

    @property
    def fans_out(self) -> bool:
        """Return whether one record may reach a stage as several rows."""
        return any(isinstance(node, FlatMapNode) for node in self.head.nodes)

    @cached_property
    def shuffled(self) -> frozenset[str]:
        """Return the nodes where rows arrive in no order, after a loop or an exchange other than by key."""
        return descendants(self.plan, [node.name for node in self.plan.nodes if isinstance(node, ExchangeNode)])

    @cached_property
    def parted(self) -> frozenset[str]:
        """Return the nodes that rows of one input partition may reach through several workers, after two exchanges."""
        names = [node.name for node in self.plan.exchanges if not isinstance(node, ForwardNode)]
        return descendants(self.plan, [*descendants(self.plan, names).intersection(names)])

    @cached_property
    def astray(self) -> frozenset[str]:
        """Return the nodes where updates of a key arrive in no order, because such an exchange follows the state."""
        stateful = {node.name for node in self.plan.nodes if node.keyed}
        found: set[str] = set()
        todo = [(name, False) for name in stateful]
        seen = set(todo)
        while todo:
            name, moved = todo.pop()
            moved = moved or isinstance(self.plan.node(name), ExchangeNode)
            near = {(reader.name, moved) for reader, _ in self.plan.downstream(name) if reader.name not in stateful}
            found |= {reader for reader, far in near if far}
            todo += near - seen
            seen |= near
        return frozenset(found)

    @property
    def letters(self) -> tuple[str, ...]:
        """Return the sinks of dead letters."""
        return tuple(sink.name for sink in self.plan.sinks if sink.is_dead_letter_sink)

    @property
    def unsteady(self) -> frozenset[str]:
        """Return the sinks whose outputs may exist or not, depending on the order of records.

        If records may be rejected, this applies to each of them: any step or codec after state may reject its row.
        """
        if self.steady and not self.letters:
            return frozenset()
        return frozenset({*self.below, *self.letters} - {*self.summed})

    @cached_property
    def nested(self) -> bool:
        """Return whether a key may depend on state. Its rows are then unknown if the order of that state's input is."""
        return bool(self.below.intersection(self.stages))

    # ------------------------------------------------------------ state that expires

    @cached_property
    def expiring(self) -> frozenset[str]:
        """Return the nodes whose rows depend on the state that had expired, and so on when each record was read."""
        return descendants(self.plan, self._expire)

    @cached_property
    def unlasting(self) -> frozenset[str]:
        """Return the sinks of ``unsteady`` whose outputs depend on expired state, whatever the order of records."""
        letters = self.letters if self._expire else ()
        return self.unsteady.intersection({*self.expiring, *letters})

    @cached_property
    def _expire(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.plan.nodes if expires(node))

    # ------------------------------------------------------------ folds in two phases

    @cached_property
    def merging(self) -> tuple[FoldNode, ...]:
        """Return the folds that emit one output per key and epoch."""
        return tuple(node for node in self.whole.nodes if isinstance(node, FoldNode) and node.merge is not None)

    @cached_property
    def summed(self) -> frozenset[str]:
        """Return the nodes whose rows depend on where epochs ended."""
        return descendants(self.plan, [fold.name for fold in self.merging])

    @cached_property
    def totals(self) -> frozenset[str]:
        """Return the sinks of ``summed`` where the last value of each key does not depend on where epochs ended."""
        return frozenset(
            sink.name for sink in self.plan.sinks if not sink.is_dead_letter_sink and self._tells_totals(sink)
        )

    @cached_property
    def summing(self) -> frozenset[str]:
        """Return the stages whose rows all go into a fold before one of ``totals``."""
        folds = {
            fold.name: fold.inputs[0] for fold in self.merging if self.totals & self.plan.find_descendants(fold.name)
        }
        return frozenset(
            stage for stage in folds.values()
            if all(reader.name in folds for reader, _ in self.plan.downstream(stage))
        )  # fmt: skip

    def _tells_totals(self, sink: SinkNode) -> bool:
        node = self.whole.node(sink.inputs[0])
        while isinstance(node, MapNode | ForwardNode):
            node = self.whole.node(node.inputs[0])
        if node not in self.merging:
            return False
        if node.ttl is not None:
            return False
        key_by = self.whole.node(node.inputs[0])
        assert isinstance(key_by, KeyByNode)  # the first phase
        above = [other.name for other in self.plan.nodes if other.keyed and other.name != node.name]
        return not (key_by.local or node.name in self.copied or node.name in descendants(self.plan, above))

    # ------------------------------------------------------------ answers of services

    @cached_property
    def asked(self) -> frozenset[str]:
        """Return the nodes that send requests to a service, and all nodes after them."""
        names = [node.name for node in self.plan.nodes if isinstance(node, UnansweredNode)]
        return frozenset({*names, *descendants(self.plan, names)})

    def why_unknown(self, name: str) -> str:
        """Return the reason why the input of one of ``asked`` is unknown."""
        return why(self.plan, name)

    # ------------------------------------------------------------ timers

    @cached_property
    def timed(self) -> frozenset[str]:
        """Return the operators with timers, and the nodes after them. No record states the watermark at its arrival."""
        names = [node.name for node in self.plan.timer_operators if not forgets(node)]
        return frozenset({*names, *descendants(self.plan, names)})

    @cached_property
    def forgetful(self) -> tuple[str, ...]:
        """Return the operators whose timers emit nothing and only delete state that no row needs any more."""
        return tuple(node.name for node in self.plan.nodes if forgets(node))

    @cached_property
    def forgetting(self) -> frozenset[str]:
        """Return ``forgetful`` and the nodes after them. If no row is late, their outputs depend only on the rows of
        their key.
        """
        return frozenset({*self.forgetful, *descendants(self.plan, self.forgetful)})

    @cached_property
    def lasting(self) -> frozenset[str]:
        """Return the nodes that depend on the order of the records of a key, and not on time."""
        return self.below - self.timed

    @property
    def moody(self) -> tuple[str, ...]:
        """Return the operators, as named in branches, that may reject other records if the order of records differs."""
        return tuple(str(hash_operator(name)) for name in sorted(self.below))

    def refusers(self) -> tuple[str, ...]:
        """Return the operators, as named in branches, whose dead letters cannot be predicted."""
        return tuple(
            str(hash_operator(name))
            for name in sorted(
                {*self.summed, *self.timed, *self.forgetting, *self.asked, *(fold.name for fold in self.merging)}
            )
        )

    # ------------------------------------------------------------ what the number of workers decides

    @cached_property
    def copied(self) -> frozenset[str]:
        """Return the nodes that a row reaches once in each worker, including dead letters."""
        return frozenset({*descendants(self.plan, self.broadcasts), *self.letters} if self.broadcasts else ())

    @cached_property
    def broadcasts(self) -> tuple[str, ...]:
        """Return the exchanges that copy rows, if there are several workers. Broadcast state has no rows."""
        nodes = [node.name for node in self.plan.exchanges if node.partitioning is Partitioning.BROADCAST]
        nodes = [name for name in nodes if any(not _is_told(node) for node, _ in self.plan.downstream(name))]
        return tuple(nodes) if self.parallelism > 1 else ()


def _is_told(node: Node) -> bool:
    return isinstance(node, BroadcastConnectNode)


def expires(node: Node) -> bool:
    """Return whether the node has state with a time to live. Opens a process function to find out."""
    if isinstance(node, FoldNode | ReduceNode | CountWindowNode):
        return node.ttl is not None
    if not isinstance(node, ProcessNode):
        return False
    return any(state.ttl is not None for state in list_declared_states(process(node)))


def forgets(node: Node) -> bool:
    """Return whether timers of the node only delete a key's state that no row on time can need any more."""
    return isinstance(node, ProcessNode) and isinstance(node.factory(), DeduplicateFunction)


def captured(stage: str) -> str:
    """Return the name of the sink of ``Cut.head`` that receives the rows of ``stage``."""
    return f"{stage}-captured"


def cut(plan: Plan, parallelism: int = 1) -> Cut:
    """Cut a plan in front of its stateful operators, if they can be separated by key."""
    whole = unanswered(plan)
    plan = whole.without_partial_folds
    stages = tuple(dict.fromkeys(node.inputs[0] for node in plan.nodes if node.keyed))
    below = descendants(plan, stages)
    nested = any(stage in below for stage in stages)
    mixed = any(
        name not in below and name not in stages for node in plan.nodes if node.name in below for name in node.inputs
    )
    return Cut(plan, whole, stages, nested or mixed, parallelism)


def descendants(plan: Plan, names: Sequence[str]) -> frozenset[str]:
    """Return every node that a record may reach after one of ``names``; in a loop, also the node itself."""
    return frozenset[str]().union(*map(plan.find_descendants, names))


def capture(stage: Node) -> SinkNode:
    nothing = cast("SinkConnector[Any]", None)  # a chain hands batches to outputs by name; it never asks the sink
    return SinkNode(name=captured(stage.name), code_line=stage.code_line, inputs=(stage.name,), sink=nothing)


def refuser_of(column: str) -> Column:
    """Return the operator that rejected the record of a dead letter, from the letter's id; see ``OperatorChain``."""
    from pyspark.sql import functions as F

    return F.regexp_extract(column, r"-(\d+)-\d+$", 1)
