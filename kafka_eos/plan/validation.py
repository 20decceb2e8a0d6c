"""Validation of a plan: whether it can run and keep its guarantees. Every error quotes the line of the user's file."""

from __future__ import annotations

from collections import Counter

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.core.errors import Bug, ConfigError, PlanError
from kafka_eos.core.ids import ensure_name
from kafka_eos.plan.broadcast_nodes import BroadcastConnectNode
from kafka_eos.plan.feedback_edges import back_edges
from kafka_eos.plan.graph import Graph
from kafka_eos.plan.join_nodes import JoinNode
from kafka_eos.plan.keyed_nodes import CountWindowNode, FoldNode, WindowNode
from kafka_eos.plan.nodes import (
    ConnectNode,
    ExchangeNode,
    FeedbackNode,
    FilterNode,
    FlatMapNode,
    KeyByNode,
    LoopNode,
    MapBatchesNode,
    MapNode,
    Node,
    PartialFoldNode,
    SideOutputNode,
    SinkNode,
    SourceNode,
    TableConnectNode,
    TableNode,
    TimestampsNode,
    is_dead_letter_sink,
)
from kafka_eos.plan.pattern_nodes import PatternNode


def validate(plan: Graph) -> None:
    """Raise PlanError for the first error found."""
    _check_names(plan)
    _check_edges(plan)
    _check_use(plan)
    _check_loops(plan)
    _check_connected(plan)
    _check_local(plan)
    _check_event_time(plan)
    _check_alignment(plan)
    _check_sinks(plan)
    _check_sources(plan)
    _check_guarantees(plan)


def _check_names(plan: Graph) -> None:
    for what, name, where in [
        ("pipeline", plan.name, plan.where),
        *((n.kind, n.name, n.code_line) for n in plan.nodes),
    ]:
        try:
            ensure_name(name, f"the {what} name")
        except ConfigError as error:
            raise PlanError(f"{error}\n  {where}") from None
    first: dict[str, Node] = {}
    for node in plan.nodes:
        if (other := first.setdefault(node.name, node)) is not node:
            raise PlanError(
                f"two operators are named {node.name!r}; rename one of them, name=.\n  "
                f"{other.code_line}\n  {node.code_line}"
            )


def _check_edges(plan: Graph) -> None:
    seen: dict[str, Node] = {}
    for node in plan.nodes:
        for name in node.inputs:
            if name not in seen:
                raise PlanError(
                    f"{node.kind} {node.name!r} reads {name!r}, which is not a stream of pipeline "
                    f"{plan.name!r} before it.\n  {node.code_line}"
                )
            if isinstance(seen[name], SinkNode):
                raise PlanError(f"{node.kind} {node.name!r} reads the sink {name!r}.\n  {node.code_line}")
            if node.keyed and not plan.key_bys(name):
                raise PlanError(
                    f"{node.kind} {node.name!r} keeps state for a key, but its input {name!r} has no key; "
                    f"put .key_by(...) before it.\n  {node.code_line}"
                )
        if len(set(node.inputs)) < len(node.inputs):
            raise PlanError(
                f"{node.kind} {node.name!r} has the same stream twice; every record would be processed "
                f"twice.\n  {node.code_line}"
            )
        seen[node.name] = node


def _check_use(plan: Graph) -> None:
    if not plan.sources:
        raise PlanError(f"pipeline {plan.name!r} has no source; start with pipeline.source(name, ...).\n  {plan.where}")
    for node in plan.nodes:
        readers = [reader for reader, _ in plan.downstream(node.name) if not is_dead_letter_sink(reader)]
        if not isinstance(node, SinkNode) and not readers:
            raise PlanError(f"{_unread(plan, node)}\n  {node.code_line}")


def _unread(plan: Graph, node: Node) -> str:
    """Describe the output that no node reads, and the remedy."""
    if isinstance(node, SideOutputNode):
        function = node.inputs[0]
        if node.tag is None:
            return f"nothing reads the output of {function!r}; end it with .sink(connector, name=...)."
        return (
            f"nothing reads the side output {node.tag!r} of {function!r}: call .side_output(tag) on the output of "
            f"{function!r}, and end that stream with .sink(connector, name=...)."
        )
    if isinstance(node, KeyByNode) and isinstance(plan.node(node.inputs[0]), TableNode):
        return (
            f"table {node.inputs[0]!r} is not used: join a stream with it, keyed.join(table, fn), "
            "send it to all workers, table.broadcast(), or remove it."
        )
    return (
        f"nothing reads the output of {node.kind} {node.name!r}; end it with .sink(connector, name=...) or remove it."
    )


def _check_loops(plan: Graph) -> None:
    """Check that only edges of feedback nodes lead back: barriers wait for all other edges."""
    ways = [(node.name, reader.name) for node in plan.nodes for reader, _ in plan.downstream(node.name)]
    back = back_edges((node.name for node in plan.nodes), ways)
    declared = {(node.name, node.to): node for node in plan.feedbacks}
    for (_, to), node in declared.items():
        if (node.name, to) not in back:
            raise PlanError(
                f"the stream that the body of loop {to!r} feeds back does not come from the loop; "
                f"derive it from the stream that the body receives.\n  {node.code_line}"
            )
    if others := back - declared.keys():
        raise Bug(f"the plan has a cycle through {sorted(others)} without a loop")


def _check_connected(plan: Graph) -> None:
    """Check that all rows of a key, from both streams, go to one subtask."""
    for node in plan.nodes:
        if isinstance(node, ConnectNode) and not isinstance(node, BroadcastConnectNode):
            key_bys = plan.key_bys(node.name)
            if len(key_bys) != len(node.inputs):
                raise Bug(f"{node.kind} {node.name!r} has an input without a key: {', '.join(node.inputs)}")
            if len({key_by.local for key_by in key_bys}) > 1:
                local = next(key_by for key_by in key_bys if key_by.local)
                if isinstance(node, TableConnectNode):
                    raise PlanError(
                        f"{local.kind} {local.name!r} is local=True, but a table is partitioned by key: rows would "
                        f"look it up in the wrong subtask. Leave local=True out.\n  {local.code_line}"
                    )
                raise PlanError(
                    f"{node.kind} {node.name!r}: {local.kind} {local.name!r} is local=True but the other stream is "
                    "not, so rows of one key would be in two subtasks. Set it for both or for neither.\n  "
                    f"{local.code_line}"
                )


def _check_local(plan: Graph) -> None:
    """Check that operators with local state, or that hold rows until the end of the epoch, are where that is sound."""
    for node in plan.nodes:
        below = plan.find_descendants(node.name)
        if isinstance(node, KeyByNode) and node.local and node.name in below:
            raise PlanError(
                f"{node.kind} {node.name!r} is local=True in a loop: rows that return are not "
                "distributed by partition, so the location of their keys is undefined. Omit "
                f"local=True.\n  {node.code_line}"
            )
        if isinstance(node, PartialFoldNode) and any(isinstance(plan.node(name), LoopNode) for name in below):
            raise PlanError(
                f"the output of the fold after {node.name!r} goes into a loop, but with merge= the "
                "fold emits only at the end of an epoch, so the last rows would never pass through "
                f"the loop. Omit merge= there.\n  {node.code_line}"
            )
        if isinstance(node, ExchangeNode) and not isinstance(node, FeedbackNode):
            for name in sorted(below):
                reader = plan.node(name)
                if isinstance(reader, KeyByNode) and reader.local:
                    raise PlanError(
                        f"{reader.kind} {name!r} is local=True, but {node.strategy.value} "
                        f"{node.name!r} before it puts rows "
                        f"of a key into any subtask. Leave local=True out.\n  {reader.code_line}"
                    )


def _check_event_time(plan: Graph) -> None:
    """Check that watermarks are generated where the splits of a source are known, and reach all nodes that need
    them."""
    for node in plan.nodes:
        if isinstance(node, TimestampsNode):
            above = plan.node(node.inputs[0])
            while isinstance(above, MapNode | FilterNode | FlatMapNode | MapBatchesNode):
                above = plan.node(above.inputs[0])
            if not isinstance(above, SourceNode):
                raise PlanError(
                    f"{node.kind} {node.name!r} comes after {above.kind} {above.name!r}, where the order "
                    "of a partition's records is lost; put .with_timestamps(...) directly after the "
                    f"source.\n  {node.code_line}"
                )
        if _goes_by_time(node) and node.inputs[0] not in plan.event_time_nodes:
            raise PlanError(
                f"{node.kind} {node.name!r} orders rows by event time (first, last, collect), but "
                "some rows have no event time: they have not passed .with_timestamps(...), or the "
                "operator is in a loop or after a fold with merge=. Put .with_timestamps(...) after "
                f"every source before it, or define the order with by=.\n  {node.code_line}"
            )
    for node in plan.timer_operators:
        if node.waits_for_event_time and node.inputs[0] not in plan.event_time_nodes:
            timers = "(on_timer, deduplicate), and its timers would never fire"
            never = "and would never emit" if isinstance(node, WindowNode | JoinNode | PatternNode) else timers
            raise PlanError(
                f"{node.kind} {node.name!r} waits for event time {never}: it does not receive "
                "watermarks from every source, because some rows have not passed "
                ".with_timestamps(...), or it is in a loop or after a fold with merge=. Put "
                f".with_timestamps(...) after every source before it.\n  {node.code_line}"
            )


def _check_alignment(plan: Graph) -> None:
    """Check that a source aligns by one clock: with two, in different groups, sources could wait for each other."""
    first: dict[str, Node] = {}
    for node, _ in plan.watermark_alignments:
        if (other := first.setdefault(node.source, node)) is not node:
            raise PlanError(
                f"source {node.source!r} gets event times from {other.name!r} and from {node.name!r}, and both use "
                "with_alignment: its partitions could wait for each other forever. Remove with_alignment from one of "
                f"them.\n  {other.code_line}\n  {node.code_line}"
            )


def _goes_by_time(node: Node) -> bool:
    if isinstance(node, CountWindowNode):
        return node.contents.by_time
    return (isinstance(node, PartialFoldNode) or (isinstance(node, FoldNode) and node.merge is None)) and node.by_time


def _check_sinks(plan: Graph) -> None:
    chosen = [node for node in plan.sinks if not node.is_dead_letter_sink]
    uses = Counter(id(node.sink) for node in chosen)
    for node in chosen:
        if uses[id(node.sink)] > 1:
            raise PlanError(
                f"the sink object of {node.name!r} is attached to more than one stream; use "
                f".union(...) before one sink, or create a sink for each.\n  {node.code_line}"
            )
    kept: dict[str, str] = {}
    for node in chosen:
        resource = node.sink.exclusive_resource
        if resource is not None and (other := kept.setdefault(resource, node.name)) != node.name:
            raise PlanError(
                f"the sinks {other!r} and {node.name!r} have the same {resource}: use a different one "
                f"for each.\n  {node.code_line}"
            )


def _check_sources(plan: Graph) -> None:
    """Check that no source reads what the pipeline writes, unless intended: rows would circulate forever."""
    for node in plan.sources:
        if (why := find_feedback(plan, node)) is not None:
            raise PlanError(f"source {node.name!r} {why}\n  {node.code_line}")


def find_feedback(plan: Graph, node: SourceNode, ctx: JobContext | None = None) -> str | None:
    """Return why a source reads what the pipeline writes from its rows, or None. ``ctx``: that of a start."""
    below = plan.find_descendants(node.name)
    reasons = (
        node.source.find_feedback(sink.sink, refused=sink.is_dead_letter_sink, ctx=ctx)
        for sink in plan.sinks
        if sink.name in below
    )
    return next((why for why in reasons if why is not None), None)


def _check_guarantees(plan: Graph) -> None:
    for path in plan.paths:
        sink = plan.node(path.sink)
        assert isinstance(sink, SinkNode)
        if path.guarantee is Guarantee.AT_LEAST_ONCE and sink.sink.guarantee is Guarantee.EXACTLY_ONCE:
            raise PlanError(
                f"{' -> '.join(path.nodes)} cannot be exactly-once: {path.reason}. To accept "
                'duplicates on this path, set delivery="at-least-once" on the sink.\n  '
                f"{sink.code_line}"
            )
