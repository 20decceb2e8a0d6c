"""Spark: the same pipelines at scale, and an exactly-once Kafka sink for any Structured Streaming query.

``SparkEngine``: an epoch is one Spark job, decided and committed by the shared coordinator. ``exactly_once_kafka``: a
query of Spark's own, whose micro-batches Spark decides; it lives in a room above, ``kafka_eos.structured_streaming``.

Rule: a name is imported when it is asked for. Executors import parts of this package and need no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_eos.spark.engine import SparkEngine
    from kafka_eos.structured_streaming.query import ExactlyOnceQuery
    from kafka_eos.structured_streaming.sink import exactly_once_kafka

__all__ = ["ExactlyOnceQuery", "SparkEngine", "exactly_once_kafka"]

_HOMES = {
    "ExactlyOnceQuery": "kafka_eos.structured_streaming.query",
    "SparkEngine": "kafka_eos.spark.engine",
    "exactly_once_kafka": "kafka_eos.structured_streaming.sink",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
