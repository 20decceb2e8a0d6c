"""The operators, independent of the engine: a batch in, a batch out, state through the context.

One close family per file. ``build_operator`` is the only way from a node of the plan to its operator.
"""

from __future__ import annotations

from kafka_eos import plan
from kafka_eos.core.errors import Bug
from kafka_eos.plan.window_assigners import SessionWindows
from kafka_eos.runtime.operators.async_io.async_map import AsyncMapOperator
from kafka_eos.runtime.operators.async_io.cached_async_map import CachedAsyncMapOperator
from kafka_eos.runtime.operators.broadcast.broadcast_operator import BroadcastOperator, KeyedBroadcastOperator
from kafka_eos.runtime.operators.fold import FoldOperator, ReduceOperator
from kafka_eos.runtime.operators.joins.as_of_join import AsOfJoinOperator
from kafka_eos.runtime.operators.joins.interval_join import IntervalJoinOperator
from kafka_eos.runtime.operators.joins.join_operator import JoinOperator
from kafka_eos.runtime.operators.joins.table_join import TableJoinOperator
from kafka_eos.runtime.operators.joins.window_join import PanedJoinOperator, SessionJoinOperator
from kafka_eos.runtime.operators.operator import Operator, OperatorContext
from kafka_eos.runtime.operators.patterns.pattern_operator import PatternOperator
from kafka_eos.runtime.operators.process import ProcessOperator
from kafka_eos.runtime.operators.side_outputs import SideOutputOperator
from kafka_eos.runtime.operators.stateless import (
    FilterOperator,
    FlatMapOperator,
    KeyByOperator,
    MapBatchesOperator,
    MapOperator,
)
from kafka_eos.runtime.operators.two_phase_fold import MergingFoldOperator, PartialFoldOperator
from kafka_eos.runtime.operators.watermark_generation import TimestampsOperator
from kafka_eos.runtime.operators.windows.count_windows import RowCountWindowOperator
from kafka_eos.runtime.operators.windows.paned_windows import PanedWindowOperator
from kafka_eos.runtime.operators.windows.session_windows import SessionWindowOperator
from kafka_eos.runtime.operators.windows.single_pane_windows import SinglePaneWindowOperator
from kafka_eos.runtime.operators.windows.window_operator import WindowOperator

__all__ = ["Operator", "OperatorContext", "build_operator", "join", "process", "windows"]


def join(node: plan.JoinNode) -> JoinOperator:
    """Return a new operator for a join."""
    match node:
        case plan.AsOfJoinNode():
            return AsOfJoinOperator(node)
        case plan.IntervalJoinNode():
            return IntervalJoinOperator(node)
        case plan.WindowJoinNode():
            assigner = node.assigner
            return (
                SessionJoinOperator(node, assigner)
                if isinstance(assigner, SessionWindows)
                else PanedJoinOperator(node, assigner)
            )
    raise Bug(f"node {node.name!r} of kind {node.kind!r} is not a known join")


def windows(node: plan.WindowNode) -> WindowOperator:
    """Return a new operator for windows."""
    match node.assigner:
        case SessionWindows() as sessions:
            return SessionWindowOperator(node, sessions)
        case paned if paned.is_shared or node.lateness:
            return PanedWindowOperator(node, paned)
        case paned:
            return SinglePaneWindowOperator(node, paned)


def process(node: plan.ProcessNode) -> ProcessOperator:
    """Return a new operator for a keyed process function."""
    if isinstance(node, plan.KeyedBroadcastNode):
        return KeyedBroadcastOperator(node.factory, node.key_codec)
    return ProcessOperator(node.factory, node.key_codec, node.methods)


def build_operator(node: plan.Node) -> Operator:
    """Return a new operator for a plan node. Raises Bug for sources, sinks and unions, which the engine runs itself."""
    match node:
        case plan.MapNode():
            return MapOperator(node.fn)
        case plan.FilterNode():
            return FilterOperator(node.fn)
        case plan.FlatMapNode():
            return FlatMapOperator(node.fn)
        case plan.CachedAsyncMapNode():
            return CachedAsyncMapOperator(node)
        case plan.AsyncMapNode():
            return AsyncMapOperator(node)
        case plan.MapBatchesNode():
            return MapBatchesOperator(node.fn)
        case plan.TimestampsNode():
            return TimestampsOperator(node.fn, node.strategy)
        case plan.PartialFoldNode():
            return PartialFoldOperator(
                node.fn, node.key_codec, node.init, node.step, node.merge, node.value_codec, node.by_time
            )
        case plan.KeyByNode():
            return KeyByOperator(node.fn, node.key_codec)
        case plan.FoldNode(merge=merge) if merge is not None:
            return MergingFoldOperator(merge, node.emit, node.key_codec, node.entry_codec, node.ttl)
        case plan.FoldNode():
            return FoldOperator(
                node.init, node.step, node.emit, node.key_codec, node.entry_codec, node.ttl, node.by_time
            )
        case plan.ReduceNode():
            return ReduceOperator(node.fn, node.key_codec, node.entry_codec, node.ttl)
        case plan.BroadcastProcessNode():
            return BroadcastOperator(node.factory)
        case plan.ProcessNode():
            return process(node)
        case plan.CountWindowNode():
            return RowCountWindowOperator(node)
        case plan.WindowNode():
            return windows(node)
        case plan.JoinNode():
            return join(node)
        case plan.PatternNode():
            return PatternOperator(node)
        case plan.TableJoinNode():
            return TableJoinOperator(node)
        case plan.SideOutputNode():
            return SideOutputOperator(node.tag)
    raise Bug(f"node {node.name!r} of kind {node.kind!r} has no operator")
