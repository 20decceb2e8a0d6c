"""The Spark session that exists in this process, opened by any code: Spark allows one per process.

Rule: nothing here starts Spark. The caller has made sure that pyspark is installed.
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
    # Spark's own pages show plans, settings and errors to everybody who reaches this machine.
    "spark.ui.enabled": "false",
    "spark.redaction.regex": "(?i)secret|passw|token|credential|jaas|private|user[.]info|access[.]?key|account[.]?key",
    # Otherwise pyspark looks up the calling line of the program at each column function, which is never shown.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Settings of a session that we open ourselves: Python takes them over once in a process."""


def is_submitted() -> bool:
    """Return whether spark-submit started this program; its environment then names Spark's directory."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def has_active_session() -> bool:
    """Return whether this process has a Spark session or context."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def submitted_session() -> SparkSession | None:
    """Return the session that a submitted program has opened; None if it has none."""
    if not is_submitted() or not has_active_session():
        return None
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def cache_jvm_classes(session: SparkSession) -> None:
    """Cache the JVM classes that pyspark would look up for each column."""
    jvm = session._jvm
    for name in _ASKED_FOR:
        setattr(jvm, name, getattr(jvm, name))
