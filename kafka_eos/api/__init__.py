"""The API for writing a plan: ``Pipeline``, its streams, ``connect``, and the aggregates ``agg``."""

from kafka_eos.api import aggregates as agg
from kafka_eos.api.broadcast_input import Broadcast
from kafka_eos.api.connected_streams import (
    BroadcastConnectedStream,
    ConnectedStreams,
    KeyedBroadcastConnectedStream,
    connect,
)
from kafka_eos.api.engine import Engine
from kafka_eos.api.pipeline import Pipeline
from kafka_eos.api.streams import BroadcastStream, KeyedStream, Stream, WindowedStream
from kafka_eos.api.table import Table, VersionedTable

__all__ = [
    "Broadcast",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "ConnectedStreams",
    "Engine",
    "KeyedBroadcastConnectedStream",
    "KeyedStream",
    "Pipeline",
    "Stream",
    "Table",
    "VersionedTable",
    "WindowedStream",
    "agg",
    "connect",
]
