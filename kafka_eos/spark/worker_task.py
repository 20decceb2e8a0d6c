"""The Spark task in which a worker runs: it starts the worker's process and waits for its end.

The worker is a process of its own, so that it shares neither memory nor modules with the Python worker, which Spark
uses again for other tasks. The kernel kills it when the Python worker ends. Rule: a task starts a worker once. If Spark
runs the task again, the driver has given up that worker, or will, and launches another one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from pyspark import SparkFiles, TaskContext

from kafka_eos._util.memory_files import open_memory_file
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.launched_worker import ChildProcess
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket
from kafka_eos.spark.code_archive import unpack_archive


class WorkerOrder(msgspec.Struct, frozen=True):
    """The data that a task needs to start a worker."""

    app: str
    pipeline: str | None
    archive: str
    """The name of the archive that Spark has sent to the executors, and that has ``app``; "": it is on this machine."""
    subtask: int
    config: bytes
    """A ``WorkerConfig`` as JSON."""
    ticket: WorkerTicket


class WorkerFunction:
    """The function of a task. It returns how the worker ended."""

    def __init__(self, order: WorkerOrder) -> None:
        self._order = msgspec.msgpack.encode(order)

    def __call__(self, rows: Iterable[object]) -> Iterator[str]:
        task = TaskContext.get()
        if task is not None and task.attemptNumber() > 0:
            return iter(["was lost: Spark ran its task again"])
        return iter([_run(msgspec.msgpack.decode(self._order, type=WorkerOrder))])


def _run(order: WorkerOrder) -> str:
    path = unpack_archive(Path(SparkFiles.get(order.archive))) / order.app if order.archive else Path(order.app)
    # Spark adds the files of --py-files to the path of this process alone.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Where a machine has several addresses, Spark's own variable says which one others reach.
    ticket = msgspec.structs.replace(order.ticket, listen_host=os.environ.get("SPARK_LOCAL_IP", "").strip("[]"))
    file = open_memory_file(msgspec.json.encode(ticket))
    try:
        process = ChildProcess(AppRef(path, order.pipeline), order.subtask, order.config, "tcp", file, environment)
    finally:
        os.close(file)
    return process.wait() or ""
