"""The operators, engine-free: a batch in, a batch out, state through the context.

One close family a file. ``build`` is the only way from a node of the plan to the operator that does its work.
"""

from __future__ import annotations

from kafka_eos import plan
from kafka_eos.core.errors import Bug
from kafka_eos.plan.window_assigners import Session
from kafka_eos.runtime.operators.async_io.async_map import AsyncMap
from kafka_eos.runtime.operators.async_io.cached_async_map import CachedAsyncMap
from kafka_eos.runtime.operators.broadcast.broadcast_operator import BroadcastOperator, KeyedBroadcastOperator
from kafka_eos.runtime.operators.fold import Fold, Reduce
from kafka_eos.runtime.operators.joins.as_of_join import AsOfJoinOperator
from kafka_eos.runtime.operators.joins.interval_join import IntervalJoinOperator
from kafka_eos.runtime.operators.joins.join_operator import JoinOperator
from kafka_eos.runtime.operators.joins.table_join import TableJoinOperator
from kafka_eos.runtime.operators.joins.window_join import PanedJoin, SessionJoin
from kafka_eos.runtime.operators.operator import Operator, OperatorContext
from kafka_eos.runtime.operators.patterns.pattern_operator import PatternOperator
from kafka_eos.runtime.operators.process import Process
from kafka_eos.runtime.operators.side_outputs import SideOutput
from kafka_eos.runtime.operators.stateless import Filter, FlatMap, KeyBy, Map, MapBatches
from kafka_eos.runtime.operators.two_phase_fold import MergingFold, PartialFold
from kafka_eos.runtime.operators.watermark_generation import Timestamps
from kafka_eos.runtime.operators.windows.count_windows import CountedWindows
from kafka_eos.runtime.operators.windows.paned_windows import PanedWindows
from kafka_eos.runtime.operators.windows.session_windows import Sessions
from kafka_eos.runtime.operators.windows.single_pane_windows import AloneWindows
from kafka_eos.runtime.operators.windows.window_operator import WindowOperator

__all__ = ["Operator", "OperatorContext", "build", "join", "process", "windows"]


def join(node: plan.Join) -> JoinOperator:
    """A new operator for a join."""
    match node:
        case plan.AsOfJoin():
            return AsOfJoinOperator(node)
        case plan.IntervalJoin():
            return IntervalJoinOperator(node)
        case plan.WindowJoin():
            assigner = node.assigner
            return SessionJoin(node, assigner) if isinstance(assigner, Session) else PanedJoin(node, assigner)
    raise Bug(f"node {node.name!r} of kind {node.kind!r} is no join that is known")


def windows(node: plan.Windows) -> WindowOperator:
    """A new operator for windows."""
    match node.assigner:
        case Session() as sessions:
            return Sessions(node, sessions)
        case paned if paned.shared or node.lateness:
            return PanedWindows(node, paned)
        case paned:
            return AloneWindows(node, paned)


def process(node: plan.Process) -> Process:
    """A new operator for a function of a stream with keys."""
    if isinstance(node, plan.KeyedBroadcastProcess):
        return KeyedBroadcastOperator(node.factory, node.key_codec)
    return Process(node.factory, node.key_codec, node.methods)


def build(node: plan.Node) -> Operator:
    """A new operator for a node. Sources, sinks and unions have none: the engine does their work (Bug)."""
    match node:
        case plan.Map():
            return Map(node.fn)
        case plan.Filter():
            return Filter(node.fn)
        case plan.FlatMap():
            return FlatMap(node.fn)
        case plan.CachedAsyncMap():
            return CachedAsyncMap(node)
        case plan.AsyncMap():
            return AsyncMap(node)
        case plan.MapBatches():
            return MapBatches(node.fn)
        case plan.Timestamps():
            return Timestamps(node.fn, node.strategy)
        case plan.PartialFold():
            return PartialFold(node.fn, node.key_codec, node.init, node.step, node.merge, node.values, node.by_time)
        case plan.KeyBy():
            return KeyBy(node.fn, node.key_codec)
        case plan.Fold(merge=merge) if merge is not None:
            return MergingFold(merge, node.emit, node.key_codec, node.entry_codec, node.ttl)
        case plan.Fold():
            return Fold(node.init, node.step, node.emit, node.key_codec, node.entry_codec, node.ttl, node.by_time)
        case plan.Reduce():
            return Reduce(node.fn, node.key_codec, node.entry_codec, node.ttl)
        case plan.BroadcastProcess():
            return BroadcastOperator(node.factory)
        case plan.Process():
            return process(node)
        case plan.CountedWindows():
            return CountedWindows(node)
        case plan.Windows():
            return windows(node)
        case plan.Join():
            return join(node)
        case plan.Patterns():
            return PatternOperator(node)
        case plan.TableJoin():
            return TableJoinOperator(node)
        case plan.SideOutput():
            return SideOutput(node.tag)
    raise Bug(f"node {node.name!r} of kind {node.kind!r} has no operator")
