"""The Spark session that this process has already, whoever opened it: Spark has one a process.

Rule: nothing here starts Spark. Whoever asks has made sure that pyspark is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ASKED_FOR = (
    "PythonSQLUtils",
    "PythonUtils",
    "SimplePythonFunction",
    "functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.classic.SparkSession$",
    "org.apache.spark.sql.execution.python.UserDefinedPythonFunction",
    "org.apache.spark.sql.expressions.Window",
    "org.apache.spark.sql.functions",
)
"""Classes that pyspark names in the JVM."""
OF_OUR_OWN: Final[Mapping[str, str]] = {
    # Else pyspark looks, at each function of a column, for the line of the program that called it: nobody is shown it.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Settings of a session that we open ourselves: Python takes them over once in a process."""


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


def remember_classes(session: SparkSession) -> None:
    """Python asks for these at each column of each query, and the JVM then looks through all its jars for them."""
    jvm = session._jvm
    for name in _ASKED_FOR:
        setattr(jvm, name, getattr(jvm, name))
