"""The plan of a pipeline: its nodes, the graph that they make, its segments, and what makes it valid."""

from kafka_eos._util.call_site import Where
from kafka_eos.plan.async_nodes import AsyncMap, CachedAsyncMap, Requests
from kafka_eos.plan.broadcast_nodes import BroadcastConnect, Broadcasting, BroadcastProcess, KeyedBroadcastProcess
from kafka_eos.plan.forward_exchanges import with_forwards
from kafka_eos.plan.graph import Path
from kafka_eos.plan.join_nodes import AsOfJoin, IntervalJoin, Join, TableJoin, WindowJoin
from kafka_eos.plan.kafka_client_count import kafka_share
from kafka_eos.plan.keyed_nodes import CoProcess, CountedWindows, Fold, Process, Reduce, Windows
from kafka_eos.plan.nodes import (
    SAME_KEYS,
    Connect,
    DerivedNameWarning,
    Exchange,
    Feedback,
    Filter,
    FlatMap,
    Forward,
    KeyBy,
    Lookup,
    Loop,
    Map,
    MapBatches,
    Node,
    OnError,
    PartialFold,
    Partitioning,
    SideOutput,
    Sink,
    Source,
    Table,
    Timestamps,
    Union,
    input_of,
    union_lane,
)
from kafka_eos.plan.pattern_nodes import Patterns
from kafka_eos.plan.plan import Plan
from kafka_eos.plan.segments import Segment

__all__ = [
    "SAME_KEYS",
    "AsOfJoin",
    "AsyncMap",
    "BroadcastConnect",
    "BroadcastProcess",
    "Broadcasting",
    "CachedAsyncMap",
    "CoProcess",
    "Connect",
    "CountedWindows",
    "DerivedNameWarning",
    "Exchange",
    "Feedback",
    "Filter",
    "FlatMap",
    "Fold",
    "Forward",
    "IntervalJoin",
    "Join",
    "KeyBy",
    "KeyedBroadcastProcess",
    "Lookup",
    "Loop",
    "Map",
    "MapBatches",
    "Node",
    "OnError",
    "PartialFold",
    "Partitioning",
    "Path",
    "Patterns",
    "Plan",
    "Process",
    "Reduce",
    "Requests",
    "Segment",
    "SideOutput",
    "Sink",
    "Source",
    "Table",
    "TableJoin",
    "Timestamps",
    "Union",
    "Where",
    "WindowJoin",
    "Windows",
    "input_of",
    "kafka_share",
    "union_lane",
    "with_forwards",
]
