"""The user's way to write a plan: ``Pipeline``, its streams, and ``connect``."""

from kafka_eos.dsl.connected import ConnectedStreams, connect
from kafka_eos.dsl.pipeline import Engine, Pipeline
from kafka_eos.dsl.streams import KeyedStream, Stream, WindowedStream
from kafka_eos.dsl.tables import Table, VersionedTable

__all__ = [
    "ConnectedStreams",
    "Engine",
    "KeyedStream",
    "Pipeline",
    "Stream",
    "Table",
    "VersionedTable",
    "WindowedStream",
    "connect",
]
