"""The Spark session of an audit: local and quiet, or on a cluster, with the Kafka connector's pinned jars.

Rule: a local session opens no port that others could use, no other session is taken over, and everything that may be
missing on a machine (Java, pyspark, jars) is a ConfigError that says what to install.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafka_eos._util.extras import ensure_extra
from kafka_eos._util.jvm.class_cache import find_archive_options
from kafka_eos._util.jvm.jars import fetch_jars
from kafka_eos._util.jvm.java import find_java
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.package import ROOT
from kafka_eos.spark.live_session import (
    OF_OUR_OWN,
    cache_jvm_classes,
    has_active_session,
    is_submitted,
    submitted_session,
)
from kafka_eos.spark.session import check_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACES_OF_CLASSES: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
"""Variables by which Spark adds directories to the places of classes."""
_SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:MetaspaceSize=256m -Xms1g -Xmn384m"
)
"""A session that lives for a minute ends before the optimizing compiler has paid for itself, and before a heap that
grows, or room for classes that does, has been collected often enough to have its size. Without the optimizing compiler
Java reserves 48 MB for compiled code, which Spark fills: from then on it throws code away and compiles it again."""
_SQL = {
    # Plans for a few tables need not be computed again after each stage.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
    # Tables are kept for seconds: looking for a good compression of each column takes longer than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Kafka is not among these: through the older interface each of its records is converted twice more.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
}
"""Settings of Spark SQL that make an audit fast, in any session."""
MANY_RECORDS: Final = 2_000_000
"""Records that are worth a session for minutes of work."""
_LOGGING = "-Dlog4j2.configurationFile="


class PendingSession:
    """A local Spark session that opens in the background."""

    def __init__(self, *, python_path: Sequence[str] = ()) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="opens-spark")
        self._opened = self._pool.submit(open_session, python_path=python_path)

    def session(self) -> SparkSession:
        """Wait until it is open. Raises what ``open_session`` raises."""
        return self._opened.result()

    def close(self) -> None:
        """Stop the session. Wait for it first, because a session that is being opened cannot be stopped."""
        self._pool.shutdown()
        if self._opened.exception() is None:
            self._opened.result().stop()


@contextmanager
def session(
    given: SparkSession | PendingSession | None,
    progress: Callable[[str], None],
    *,
    master: str | None,
    python_path: Sequence[str] = (),
    long: bool = False,
) -> Iterator[SparkSession]:
    """A session in the application of ``given`` or of spark-submit, or a new one, which it stops."""
    found = given.session() if isinstance(given, PendingSession) else given or submitted_session()
    if found is not None:
        _require_connector(found)
        check_python(found)
        try:
            yield _apart(found)
        finally:
            found.createDataFrame(
                [], "nothing int"
            )  # the session that creates a table becomes active: the program's again
        return
    progress("starting Spark")
    own = open_session(master=master, python_path=python_path, long=long)
    try:
        _require_connector(own)
        check_python(own)
        yield own
    finally:
        own.stop()


def open_session(
    *,
    master: str | None = None,
    partitions: int = 4,
    python_path: Sequence[str] = (),
    long: bool = False,
) -> SparkSession:
    """Open a session: on ``master``, under spark-submit on its master, otherwise locally on all cores.

    ``python_path`` is added to the import path of Python workers; on a cluster it must exist there, too. ``long``
    prepares for minutes of work. ``partitions`` is the minimum for shuffles. Raises ConfigError if Java or pyspark is
    missing, or if the program has a session: the audit would use its settings and stop it.
    """
    ensure_extra("audit", "the audit")
    if has_active_session():
        raise ConfigError(
            "this program has a live Spark session: pass it to the audit (spark=…; it needs the jars that `kafka-eos "
            "jars` prints), or stop it first"
        )
    submitted = is_submitted()
    jars = () if submitted else fetch_jars("spark")
    if not submitted:
        os.environ.setdefault("JAVA_HOME", str(Path(find_java()).resolve().parents[1]))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("kafka-eos audit")
    options = _options(partitions, jars, python_path)
    if master is not None:
        builder = builder.master(master)
    elif not submitted:
        builder = builder.master("local[*]")
        options |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    java = options["spark.driver.extraJavaOptions"]
    if long:
        options["spark.driver.extraJavaOptions"] = java.replace(_SHORT_LIVED, "-XX:+UseParallelGC")
        options["spark.driver.memory"] = f"{_third_of_memory()}g"
    elif not submitted:
        options["spark.driver.extraJavaOptions"] = " ".join((java, *kept_classes()))
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    cache_jvm_classes(spark)
    return spark


def _apart(given: SparkSession) -> SparkSession:
    """Return a second session in the application of ``given``, with the audit's settings; it ends with that
    application.
    """
    cache_jvm_classes(given)
    own = given.newSession()
    for name, value in _SQL.items():
        own.conf.set(name, value)
    return own


def kept_classes() -> list[str]:
    """Return Java options for a class archive; none if the class path may contain directories.

    With a directory that is not empty, Java keeps no archive, and prints a message on standard output when it ends.
    """
    if any(map(os.environ.get, PLACES_OF_CLASSES)) or Path(_spark_home(), "conf").is_dir():
        return []
    return [f'"{option}"' for option in find_archive_options(find_java(), _spark_home()).read_write]


def _spark_home() -> str:
    import pyspark

    return os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)


def _require_connector(spark: SparkSession) -> None:
    """Raise ConfigError if the Kafka connector is missing. py4j represents a missing class by a package."""
    from py4j.java_gateway import JavaPackage

    jvm: Any = spark._jvm
    needed = (jvm.org.apache.kafka.clients.admin.AdminClient, jvm.org.apache.spark.sql.kafka010.KafkaSourceProvider)
    if any(isinstance(found, JavaPackage) for found in needed):
        raise ConfigError(
            "this Spark session has no Kafka connector: start it with the jars that `kafka-eos jars` prints "
            '(spark-submit --jars "$(kafka-eos jars)", or spark.jars)'
        )


def _options(partitions: int, jars: Sequence[Path], python_path: Sequence[str]) -> dict[str, str]:
    workers_path = os.pathsep.join([str(ROOT), *python_path, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with_jars = {"spark.jars": ",".join(map(str, jars))} if jars else {}
    return with_jars | {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"{_SHORT_LIVED} {_LOGGING}{_log_settings().as_uri()}",
        "spark.executorEnv.PYTHONPATH": workers_path,
        **OF_OUR_OWN,
        **_SQL,
        "spark.sql.shuffle.partitions": str(partitions),
        # The audit reads each topic once or twice: a cached consumer would only hold sockets open.
        "spark.kafka.consumer.cache.capacity": "8",
    }


def _third_of_memory() -> int:
    """Return a third of this machine's memory in GB: at least 2, at most 8."""
    return max(2, min(8, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3 >> 30))


def _log_settings() -> Path:
    return Path(__file__).with_name("log4j2.properties")
