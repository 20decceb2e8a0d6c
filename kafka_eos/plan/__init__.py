"""The plan of a pipeline: its nodes, the graph that they make, its segments, and what makes it valid."""

from kafka_eos.plan.clients import kafka_share
from kafka_eos.plan.forwards import with_forwards
from kafka_eos.plan.graph import Path
from kafka_eos.plan.nodes import (
    DerivedNameWarning,
    Exchange,
    Feedback,
    Filter,
    FlatMap,
    Fold,
    Forward,
    KeyBy,
    Loop,
    Map,
    MapBatches,
    Node,
    OnError,
    PartialFold,
    Partitioning,
    Process,
    Reduce,
    Sink,
    Source,
    Timestamps,
    Union,
    Where,
    union_lane,
)
from kafka_eos.plan.plan import Plan
from kafka_eos.plan.segments import Segment

__all__ = [
    "DerivedNameWarning",
    "Exchange",
    "Feedback",
    "Filter",
    "FlatMap",
    "Fold",
    "Forward",
    "KeyBy",
    "Loop",
    "Map",
    "MapBatches",
    "Node",
    "OnError",
    "PartialFold",
    "Partitioning",
    "Path",
    "Plan",
    "Process",
    "Reduce",
    "Segment",
    "Sink",
    "Source",
    "Timestamps",
    "Union",
    "Where",
    "kafka_share",
    "union_lane",
    "with_forwards",
]
