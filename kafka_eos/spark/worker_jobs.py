"""The workers of a job in a Spark session: each runs in a Spark job with one task, for as long as it is needed.

Not a barrier stage: one-task jobs end and begin one by one, so that the workers that survive a failure stay warm.
Rule: Spark decides only where a worker runs. When a worker is lost, its job ends, and the next attempt launches
another one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.remote_workers import RemotePool, WorkerTask
from kafka_eos.embedded.supervisor_events import PoolFailed
from kafka_eos.embedded.worker_process import ENDING
from kafka_eos.plan import Plan
from kafka_eos.runtime.program import CodeFingerprint
from kafka_eos.runtime.worker.control_messages import WorkerConfig
from kafka_eos.runtime.worker.tcp_connections import WorkerTicket
from kafka_eos.spark.spark_errors import SPARKS, find_end_of_run, translate_error
from kafka_eos.spark.worker_task import WorkerFunction, WorkerOrder

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_ANY_PORT: Final = range(1)


class WorkerJob(WorkerTask):
    """A Spark job with one task, which runs on a thread of its own until the worker ends.

    ``on_ended`` receives the error that ends the whole run, or None.
    """

    def __init__(
        self,
        context: SparkContext,
        group: str,
        description: str,
        function: WorkerFunction,
        on_ended: Callable[[Exception | None], None],
    ) -> None:
        self._context = context
        self._group, self._description = group, description
        self._function, self._on_ended = function, on_ended
        self._ended = threading.Event()
        self._is_killed = False
        self._how = ""
        threading.Thread(target=self._run, daemon=True, name=group).start()

    def _run(self) -> None:
        ends_run: Exception | None = None
        try:
            self._context.setJobGroup(self._group, self._description, interruptOnCancel=True)
            (self._how,) = self._context.parallelize([0], 1).mapPartitions(self._function).collect()
        except SPARKS as error:
            self._how = f"ended with its Spark job: {translate_error(error)}"
            ends_run = None if self._is_killed else find_end_of_run(error)
        self._ended.set()
        self._on_ended(ends_run)

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    @property
    def io_bytes(self) -> int:
        return 0

    def describe_end(self) -> str | None:
        return self._how if self._ended.wait(ENDING) else None

    def stacks(self) -> str:
        return f"the worker runs in a Spark job of group {self._group}, whose executor is on another machine"

    def kill(self) -> None:
        self._is_killed = True
        if self.alive:
            with suppress(*SPARKS):  # without a session, nothing of it runs any more
                # The thread may not have submitted its job yet.
                self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)


class SparkPool(RemotePool):
    """The workers of one run of a job in a Spark session, which connect to the driver."""

    def __init__(self, session: SparkSession, plan: Plan, app: AppRef, settings: Settings, workers: int) -> None:
        self._context = session.sparkContext
        super().__init__(
            workers, self._context.getConf().get("spark.driver.host", "127.0.0.1"), _ANY_PORT, certificate=b""
        )
        self._app = app
        self._job = plan.name
        self._run = uuid4().hex[:8]
        """Distinguishes the job groups of this run from those of earlier ones in the same session."""
        self._config = WorkerConfig(json.dumps(settings.as_json()), CodeFingerprint.compute(app.path, plan))
        self._is_shipped = not (self._context.master or "").startswith("local")
        if self._is_shipped:
            self._context.addFile(str(app.path))

    def launch(self, subtask: int, ticket: WorkerTicket) -> WorkerTask:
        order = WorkerOrder(str(self._app.path), self._app.pipeline, self._is_shipped, subtask, self._config, ticket)
        return WorkerJob(
            self._context,
            f"{self._job}-{self._run}-{ticket.number}",
            f"{self._job}: worker {subtask}",
            WorkerFunction(order),
            lambda ends_run: self._on_job_ended(ticket.number, ends_run),
        )

    def _on_job_ended(self, number: int, ends_run: Exception | None) -> None:
        if ends_run is not None:
            self.events.put(PoolFailed(ends_run))
        self.on_task_ended(number)

    def drop_local_state(self) -> None:
        """Leave it to the next session of each worker: it is on the executors."""
