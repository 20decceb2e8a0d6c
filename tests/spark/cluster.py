"""A standalone Spark cluster on this machine: that of the crash test, with the settings of these tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kafka_eos.devtools.crash_test.spark_cluster import SparkCluster
from tests import spark_java


@contextmanager
def cluster(directory: Path, workers: int, cores: int = 1) -> Iterator[SparkCluster]:
    """A master with so many machines of so many cores each. All are gone afterwards."""
    spark = SparkCluster(directory, workers, cores, environment())
    try:
        spark.start()
        yield spark
    finally:
        spark.end()


def decommission(spark: SparkCluster) -> None:
    """Announce that a machine with a worker of a job will be shut down."""
    used = [
        machine
        for number, machine in enumerate(spark.workers)
        if any(b"worker_main" in _command_of(process) for process in spark.processes(number))
    ]
    used[0].send_signal(signal.SIGPWR)


def _command_of(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def environment(cores: int = 2) -> dict[str, str]:
    """For drivers, which get so many cores, and for the cluster itself."""
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Both executors take part from the first task on; and as on two machines, neither reads the other's disk.
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.cores.max={cores} --conf spark.scheduler.minRegisteredResourcesRatio=1.0 "
        "--conf spark.scheduler.maxRegisteredResourcesWaitingTime=120s "
        "--conf spark.shuffle.readHostLocalDisk=false --conf spark.decommission.enabled=true pyspark-shell",
        "SPARK_WORKER_OPTS": "-Dspark.decommission.enabled=true",
        "JAVA_TOOL_OPTIONS": spark_java.of_any(),
    }
