"""The door for Structured Streaming: any query's output to Kafka exactly once, with Spark's commits as the decision.

Rule: tasks prepare, Spark decides, the finaliser ends. None of the three does another's part.
"""

from __future__ import annotations

from kafka_eos.spark.door.query import ExactlyOnceQuery
from kafka_eos.spark.door.sink import exactly_once_kafka

__all__ = ["ExactlyOnceQuery", "exactly_once_kafka"]
