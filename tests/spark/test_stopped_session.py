"""A session that the program or the cluster ends while workers are launched or given up: the job ends, and says why."""

from __future__ import annotations

import queue
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos.core.errors import Fatal
from kafka_eos.runtime.transport.self_signed import create_credentials
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket
from kafka_eos.spark.worker_jobs import WorkerJob, list_hosts, make_partition
from kafka_eos.spark.worker_task import WorkerFunction, WorkerOrder
from tests.waiting import PATIENCE

pytestmark = pytest.mark.spark
ENDED = """
import queue
from pyspark.sql import SparkSession
from kafka_eos.runtime.transport.self_signed import create_credentials
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket
from kafka_eos.spark.worker_jobs import WorkerJob
from kafka_eos.spark.worker_task import WorkerFunction, WorkerOrder

context = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate().sparkContext
context._jsc.sc().stop()
order = WorkerOrder("app.py", None, "", 0, b"{}", WorkerTicket(1, "127.0.0.1", 1, create_credentials()))
ends = queue.SimpleQueue()
WorkerJob(context, "group", "worker 1", WorkerFunction(order), ends.put, None, lambda: 0.0)
print(repr(ends.get(timeout=60)))
"""
STOPPED: Any = SimpleNamespace(_jsc=None)
"""What ``SparkContext.stop`` leaves."""


def test_a_worker_that_is_launched_then_has_ended_and_ends_the_run() -> None:
    ends = queue.SimpleQueue[Exception | None]()
    order = WorkerOrder("app.py", None, "", 0, b"{}", WorkerTicket(1, "127.0.0.1", 1, create_credentials()))
    job = WorkerJob(STOPPED, "group", "worker 1", WorkerFunction(order), ends.put, None, lambda: 0.0)

    ended = ends.get(timeout=PATIENCE)
    assert isinstance(ended, Fatal) and "the Spark session has ended" in str(ended)
    assert not job.alive
    assert "the Spark session has ended" in (job.describe_end() or "")
    assert not job.is_placed
    job.kill()


@pytest.mark.parametrize("call", [list_hosts, lambda context: make_partition(context, "a")])
def test_a_call_then_raises_an_error_of_a_connection(call: Any) -> None:
    with pytest.raises(ConnectionError, match="stopped"):
        call(STOPPED)


@pytest.mark.campaign
def test_a_worker_that_is_launched_when_the_cluster_has_ended_the_session_ends_the_run() -> None:
    """No Spark job runs then that could fail, such as between two attempts."""
    done = subprocess.run(
        [sys.executable, "-c", ENDED], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip

    assert "Fatal('the Spark session has ended" in done.stdout, done.stdout + done.stderr
