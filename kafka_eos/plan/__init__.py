"""The plan of a pipeline: its nodes, their graph, its operator chains, and its validation."""

from kafka_eos._util.call_site import CodeLocation
from kafka_eos.plan.async_nodes import AsyncMapNode, CachedAsyncMapNode, RequestExchangeNode
from kafka_eos.plan.broadcast_nodes import (
    AnyBroadcastNode,
    BroadcastConnectNode,
    BroadcastProcessNode,
    KeyedBroadcastNode,
)
from kafka_eos.plan.forward_exchanges import insert_forwards
from kafka_eos.plan.graph import PlanPath
from kafka_eos.plan.join_nodes import AsOfJoinNode, IntervalJoinNode, JoinNode, TableJoinNode, WindowJoinNode
from kafka_eos.plan.kafka_client_count import kafka_share
from kafka_eos.plan.keyed_nodes import CoProcessNode, CountWindowNode, FoldNode, ProcessNode, ReduceNode, WindowNode
from kafka_eos.plan.nodes import (
    SAME_KEYS,
    ConnectNode,
    DerivedNameWarning,
    ExchangeNode,
    FeedbackNode,
    FilterNode,
    FlatMapNode,
    ForwardNode,
    KeyByNode,
    LoopNode,
    MapBatchesNode,
    MapNode,
    Node,
    OnError,
    PartialFoldNode,
    Partitioning,
    SideOutputNode,
    SinkNode,
    SourceNode,
    TableConnectNode,
    TableNode,
    TimestampsNode,
    UnionNode,
    input_of,
    union_lane,
)
from kafka_eos.plan.pattern_nodes import PatternNode
from kafka_eos.plan.plan import Plan
from kafka_eos.plan.segments import ChainSpec

__all__ = [
    "SAME_KEYS",
    "AsOfJoinNode",
    "AsyncMapNode",
    "BroadcastConnectNode",
    "BroadcastProcessNode",
    "AnyBroadcastNode",
    "CachedAsyncMapNode",
    "CoProcessNode",
    "ConnectNode",
    "CountWindowNode",
    "DerivedNameWarning",
    "ExchangeNode",
    "FeedbackNode",
    "FilterNode",
    "FlatMapNode",
    "FoldNode",
    "ForwardNode",
    "IntervalJoinNode",
    "JoinNode",
    "KeyByNode",
    "KeyedBroadcastNode",
    "TableConnectNode",
    "LoopNode",
    "MapNode",
    "MapBatchesNode",
    "Node",
    "OnError",
    "PartialFoldNode",
    "Partitioning",
    "PlanPath",
    "PatternNode",
    "Plan",
    "ProcessNode",
    "ReduceNode",
    "RequestExchangeNode",
    "ChainSpec",
    "SideOutputNode",
    "SinkNode",
    "SourceNode",
    "TableNode",
    "TableJoinNode",
    "TimestampsNode",
    "UnionNode",
    "CodeLocation",
    "WindowJoinNode",
    "WindowNode",
    "input_of",
    "kafka_share",
    "union_lane",
    "insert_forwards",
]
