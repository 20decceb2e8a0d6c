"""The sink for Structured Streaming: any query's output to Kafka exactly once, with Spark's commits as the decision.

Rule: tasks prepare, Spark decides, the batch committer ends. A name is imported when
it is asked for: executors import parts of this package and need no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_eos.structured_streaming.query import ExactlyOnceQuery
    from kafka_eos.structured_streaming.sink import exactly_once_kafka

__all__ = ["ExactlyOnceQuery", "exactly_once_kafka"]

_HOMES = {
    "ExactlyOnceQuery": "kafka_eos.structured_streaming.query",
    "exactly_once_kafka": "kafka_eos.structured_streaming.sink",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
