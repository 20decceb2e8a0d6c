"""The Spark session that the tests of a process share, in a JVM of its own.

Rule: a call to Java that pytest's time limit has interrupted leaves its answer in the connection, and each later call
would take the answer of the one before. Such a session is replaced, with its JVM, before the next test gets it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from kafka_eos.devtools.broker import fetch_jars
from kafka_eos.spark.live_session import OF_OUR_OWN
from tests import spark_java

_ANSWER_SECONDS = 60.0
"""A JVM that has not answered by then is still busy with the interrupted call."""


def settings_of(directory: Path) -> dict[str, str]:
    """Settings of a session with the Kafka connector, which works in ``directory``."""
    return {
        "spark.jars": ",".join(map(str, fetch_jars("spark"))),
        "spark.ui.showConsoleProgress": "false",
        **OF_OUR_OWN,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": spark_java.of_session(),
        "spark.sql.shuffle.partitions": "2",
        # Compiling Java for each plan takes longer than to run it over the few rows of a test.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }


class SparkSessions:
    """The sessions of one process, one after the other: local ones with two cores and four attempts a task."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._session: Any = None

    def live(self) -> Any:
        """Return a session whose answers are those to its questions; open it if there is none."""
        if self._session is not None and not self._answers():
            self._discard()
        if self._session is None:
            self._session = self._opened()
        return self._session

    def close(self) -> None:
        if self._session is None:
            return
        if self._answers():
            self._session.stop()
        else:
            self._discard()

    def _opened(self) -> Any:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2,4]").appName("tests").config(map={**self._settings})
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        return session

    def _answers(self) -> bool:
        """Return whether the next answer belongs to the next question, and comes in time."""
        from py4j.protocol import Py4JError

        sent = uuid4().hex
        try:
            connection = self._session.sparkContext._gateway._gateway_client.get_thread_connection()
            if connection is not None:
                connection.socket.settimeout(_ANSWER_SECONDS)
            answered = bool(self._session._jvm.java.util.Objects.toString(sent) == sent)
            if connection is not None:
                connection.socket.settimeout(None)
        except (Py4JError, OSError, TypeError, AttributeError):  # what an answer to another question leads to
            return False
        return answered

    def _discard(self) -> None:
        """End the JVM, and make pyspark forget it: pyspark's own `stop` would ask it."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        context, self._session = self._session.sparkContext, None
        java = context._gateway.proc
        java.kill()
        java.wait()
        context._accumulatorServer.shutdown()
        context._jsc = context._accumulatorServer = None
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
