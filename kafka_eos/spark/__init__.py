"""Spark: the same pipelines at scale, and an exactly-once Kafka sink for any Structured Streaming query.

``SparkEngine``: an epoch is one Spark job, decided and committed by the shared coordinator. ``exactly_once_kafka``: a
query of Spark's own, whose micro-batches Spark decides.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_eos.spark.door import ExactlyOnceQuery, exactly_once_kafka
    from kafka_eos.spark.engine import SparkEngine

__all__ = ["ExactlyOnceQuery", "SparkEngine", "exactly_once_kafka"]

_HOMES = {"ExactlyOnceQuery": "door", "SparkEngine": "engine", "exactly_once_kafka": "door"}


def __getattr__(name: str) -> Any:
    """Loaded on first use: executors import parts of this package and need no driver."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
