"""Spark: the same pipelines on the machines of a cluster.

``SparkEngine``: the workers of a job run in Spark's tasks, and the driver is their supervisor. ``StateDataSource``: the
state of a job as a DataFrame. For queries of Spark's own there is a sink in ``kafka_eos.structured_streaming``.

Rule: a name is imported when it is asked for. Executors import parts of this package and need no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_eos.spark.engine import SparkEngine
    from kafka_eos.spark.state_data_source import StateDataSource

__all__ = ["SparkEngine", "StateDataSource"]

_HOMES = {"SparkEngine": "kafka_eos.spark.engine", "StateDataSource": "kafka_eos.spark.state_data_source"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
