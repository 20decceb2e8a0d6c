"""The user's way to write a plan: ``Pipeline``, its streams, and ``connect``."""

from kafka_eos.dsl.broadcast import Broadcast
from kafka_eos.dsl.connected import BroadcastConnected, ConnectedStreams, KeyedBroadcastConnected, connect
from kafka_eos.dsl.pipeline import Engine, Pipeline
from kafka_eos.dsl.streams import BroadcastStream, KeyedStream, Stream, WindowedStream
from kafka_eos.dsl.tables import Table, VersionedTable

__all__ = [
    "Broadcast",
    "BroadcastConnected",
    "BroadcastStream",
    "ConnectedStreams",
    "Engine",
    "KeyedBroadcastConnected",
    "KeyedStream",
    "Pipeline",
    "Stream",
    "Table",
    "VersionedTable",
    "WindowedStream",
    "connect",
]
