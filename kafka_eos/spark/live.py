"""The Spark session that this process has already, whoever opened it: Spark has one a process.

Rule: nothing here starts Spark. Whoever asks has made sure that pyspark is there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_submitted() -> bool:
    """Was this program started by spark-submit, which says where Spark is?"""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_live() -> bool:
    """Has the program a session, or a context that one would be made on?"""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def submitted_session() -> SparkSession | None:
    """The session that a submitted program has opened itself; None if it has none."""
    if not is_submitted() or not is_live():
        return None
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()
