"""The user's way to write a plan: ``Pipeline``, ``Stream``, ``KeyedStream``, ``WindowedStream``."""

from kafka_eos.dsl.pipeline import Engine, Pipeline
from kafka_eos.dsl.streams import KeyedStream, Stream, WindowedStream

__all__ = ["Engine", "KeyedStream", "Pipeline", "Stream", "WindowedStream"]
