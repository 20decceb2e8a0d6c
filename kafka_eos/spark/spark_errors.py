"""Translation of Spark's errors: Spark wraps a Python traceback in a Java one, and both in its own text.

Rule: an error that the user must fix becomes a ConfigError that says how; any other error becomes one line.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.core.errors import ConfigError, Fatal, RestartFromCheckpoint

SPARKS = (PySparkException, Py4JError, OSError)
"""Errors that a call to Spark may raise; OSError if its JVM is gone."""

_SESSION_ENDED = "the Spark session has ended. Nothing is lost: start again, and the job resumes from its last epoch"
_STOPPED = ("SparkContext was shut down", "stopped SparkContext")
"""Marks of an error of a session that its cluster has ended: in a job that ran then, and in any later call."""
_CAUSES = 600
"""Most characters of a Spark error that are shown."""
_CAUSE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|[a-z]): .")
_JAVAS = re.compile(r": [\w.$]+(Exception|Error)\b")
_STACK = ("at ", "org.apache.spark", "Caused by")
_ENVIRONMENT = {
    "PYTHON_VERSION_MISMATCH": (
        "driver and executors need the same Python version: set PYSPARK_PYTHON to it on every machine"
    ),
    "No module named 'kafka_eos'": (
        "executors cannot import kafka_eos: install it for the Python that PYSPARK_PYTHON names"
    ),
    "Cannot run program": "executors cannot start Python: set PYSPARK_PYTHON to a Python that exists on every machine",
}
"""Error classes of a cluster that is not set up, with the remedy for each."""


def translate_error(error: Exception) -> Exception:
    """Translate a Spark error into one of ours."""
    if isinstance(error, OSError) or (isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)):
        return Fatal(_SESSION_ENDED)
    return advise_on_setup(error) or RestartFromCheckpoint(f"the Spark job failed: {_gist(error)}")


def find_end_of_run(error: Exception) -> Exception | None:
    """Return the error that ends the whole run of a job, if one of its Spark jobs ends like this; else None."""
    text = str(error)
    if "SPARK_JOB_CANCELLED" in text:
        return RetryInterrupted(
            f"the Spark job of a worker was cancelled ({_gist(error)}); nothing is lost, the next start resumes from "
            "the last checkpoint"
        )
    if any(mark in text for mark in _STOPPED) or not isinstance(error, Py4JJavaError | PySparkException):
        return Fatal(_SESSION_ENDED)
    return advise_on_setup(error)


def advise_on_setup(error: BaseException) -> ConfigError | None:
    """Return a ConfigError for a cluster that is not set up; None for other errors."""
    for mark, advice in _ENVIRONMENT.items():
        if isinstance(error, SPARKS) and mark in str(error):
            return ConfigError(f"{advice}. Spark reports: {_gist(error)}")
    return None


def explain_start_failure(error: Exception, master: str) -> ConfigError:
    """Build the ConfigError for a session that does not start."""
    return ConfigError(
        f"Spark does not start on {master}: {_gist(error)} Check what Spark printed before this, that the master has "
        "a form that Spark accepts (local[2,4], spark://host:7077, yarn, k8s://…), and that it runs there."
    )


def _gist(error: BaseException) -> str:
    """Return the cause in one line: the innermost Python error if there is one, else the JVM's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if _CAUSE.match(line) and not line.startswith(_STACK)]
    java = [line.lstrip(": ") for line in lines if _JAVAS.match(line)]
    return ([*python[-1:], *java, *lines] or ["no message"])[0][:_CAUSES]
