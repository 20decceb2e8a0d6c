"""The workers of a job in a Spark session: each runs in a Spark job with one task, for as long as it is needed.

Not a barrier stage: one-task jobs end and begin one by one, so that the workers that survive a failure stay warm.
Rule: Spark decides only where a worker runs. When a worker is lost, its job ends, and the next attempt launches
another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec

from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.embedded.remote_workers import RemotePool
from kafka_eos.embedded.supervisor_events import PoolFailed
from kafka_eos.embedded.worker_pool import MakeStart, WorkerTask
from kafka_eos.embedded.worker_process import ENDING
from kafka_eos.plan import Plan
from kafka_eos.runtime.worker.control_messages import StartSession, WorkerConfig
from kafka_eos.runtime.worker.tcp_connections import WorkerTicket
from kafka_eos.spark.spark_errors import SPARKS, find_end_of_run, translate_error
from kafka_eos.spark.worker_task import WorkerFunction, WorkerOrder
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.storage_factory import open_storage

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

DRIVER_PORT: Final = "spark.kafkaEos.driver.port"
WORKER_PORT: Final = "spark.kafkaEos.worker.port"
"""Settings of the Spark session: the first port on which the driver and each worker may listen; default: any."""
_RETRIES: Final = "spark.port.maxRetries"


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
    def is_placed(self) -> bool:
        tracker = self._context.statusTracker()
        with suppress(*SPARKS):  # the session has ended, as the thread of the job will report
            jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group))
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)
        return False

    @property
    def io_bytes(self) -> int:
        return 0

    def describe_end(self) -> str | None:
        return self._how if self._ended.wait(ENDING) else None

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
        conf = self._context.getConf()
        advertised = (conf.get("spark.driver.host") or "127.0.0.1").strip("[]")
        host = (conf.get("spark.driver.bindAddress") or advertised).strip("[]")
        worker_ports = find_ports(conf.get, WORKER_PORT)
        self._worker_ports = worker_ports.start, worker_ports.stop
        super().__init__(workers, host, find_ports(conf.get, DRIVER_PORT), advertised=advertised)
        self._app = app
        self._job = plan.name
        self._storage = open_storage(settings.checkpoint_location(plan.name))
        self._run = uuid4().hex[:8]
        """Distinguishes the job groups of this run from those of earlier ones in the same session."""
        self._config = WorkerConfig.of(plan, app, settings)
        self._is_shipped = not (self._context.master or "").startswith("local")
        if self._is_shipped:
            self._context.addFile(str(app.path))

    def launch(self, subtask: int, ticket: WorkerTicket) -> WorkerTask:
        ticket = msgspec.structs.replace(ticket, listen_ports=self._worker_ports)
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

    def start_sessions(self, make_start: MakeStart) -> None:
        """Begin a session in every worker, which finds the claim of the term in its checkpoint storage."""

        @cache
        def read_claim(term: int) -> bytes:
            return self._storage.read(paths.claim_name(Term(term)))

        def with_claim(subtask: int, peers: tuple[int, ...]) -> StartSession:
            start = make_start(subtask, peers)
            return msgspec.structs.replace(start, claim=read_claim(start.term))

        super().start_sessions(with_claim)

    def drop_local_state(self) -> None:
        """Leave it to the next session of each worker: it is on the executors."""


def find_ports(setting: Callable[[str], str | None], name: str) -> range:
    """Return the ports that a setting allows: as for Spark's own ports, the first one and spark.port.maxRetries more.

    Raises ConfigError if they are no ports.
    """
    first, retries = setting(name) or "0", setting(_RETRIES) or "16"
    if not (first.isdecimal() and retries.isdecimal() and int(first) < 1 << 16):
        raise ConfigError(f"{name}={first}, {_RETRIES}={retries}: set the first to a port, and the second to a number")
    return range(int(first), min(int(first) + int(retries) + 1, 1 << 16)) if int(first) else range(1)
