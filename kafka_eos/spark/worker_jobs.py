"""The workers of a job in a Spark session: each runs in a Spark job with one task, for as long as it is needed.

Not a barrier stage: one-task jobs end and begin one by one, so that the workers that survive a failure stay warm.
Rule: Spark decides only where a worker runs. When a worker is lost, its job ends, and the next attempt launches
another one.

A worker that replaces one that has ended prefers its host, whose disk has the state. If the executor there has ended,
too, Spark usually starts another one within seconds. It is awaited for as long as it would take to fetch the state:
waiting in vain and then fetching takes at most twice as long as the better choice (the ski rental problem).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec
from pyspark import RDD, SparkFiles
from pyspark.serializers import NoOpSerializer

from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.embedded.launched_worker import ENDING, WorkerTask
from kafka_eos.embedded.remote_workers import RemotePool
from kafka_eos.embedded.supervisor_events import PoolFailed
from kafka_eos.embedded.worker_pool import MakeStart
from kafka_eos.plan import Plan
from kafka_eos.runtime.program import list_code_files
from kafka_eos.runtime.worker.control_messages import StartSession, WorkerConfig
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket
from kafka_eos.spark.code_archive import write_archive
from kafka_eos.spark.spark_errors import SPARKS, find_end_of_run, translate_error
from kafka_eos.spark.worker_task import WorkerFunction, WorkerOrder
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.storage_factory import open_storage

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.status import SparkStageInfo

DRIVER_PORT: Final = "spark.kafkaEos.driver.port"
WORKER_PORT: Final = "spark.kafkaEos.worker.port"
"""Settings of the Spark session: the first port on which the driver and each worker may listen; default: any."""
_RETRIES: Final = "spark.port.maxRetries"
_LOOK = 1.0
"""Seconds between two looks at the executors."""
_HOST_LOOK = 0.1
"""Seconds between two looks for an executor on the host that has the state."""
_FETCH_RATE = 50e6
"""Bytes of state that a worker is assumed to fetch per second."""
_MOST_PATIENCE = 30.0
"""Most seconds for which an executor on the host that has the state is awaited."""


class WorkerJob(WorkerTask):
    """A Spark job with one task, which runs on a thread of its own until the worker ends.

    ``on_ended`` receives the error that ends the whole run, or None. ``replaced``: the job whose host has the state.
    ``patience``: returns for how many seconds that host may have no executor.
    """

    def __init__(
        self,
        context: SparkContext,
        group: str,
        description: str,
        function: WorkerFunction,
        on_ended: Callable[[Exception | None], None],
        replaced: WorkerJob | None,
        patience: Callable[[], float],
    ) -> None:
        self._context = context
        self._group, self._description = group, description
        self._function, self._on_ended = function, on_ended
        self._executor = ""
        self._host: str = "" if replaced is None else replaced._host
        """Where its task runs; until it does, the host to prefer."""
        self._awaits_host = bool(self._host)
        self._ended = threading.Event()
        self._is_killed = False
        self._how = ""
        threading.Thread(target=self._run, args=(replaced, patience), daemon=True, name=group).start()

    def _run(self, replaced: WorkerJob | None, patience: Callable[[], float]) -> None:
        ends_run: Exception | None = None
        try:
            find_spark_context(self._context)  # raises an error that is handled below
            self._context.setJobGroup(self._group, self._description, interruptOnCancel=True)
            if replaced is not None:
                replaced.describe_end()  # waits: until then an executor that has ended may still be listed
                self._await_host(patience)
            (self._how,) = make_partition(self._context, self._host).mapPartitions(self._function).collect()
        except SPARKS as error:
            self._how = f"ended with its Spark job: {translate_error(error)}"
            ends_run = None if self._is_killed else find_end_of_run(error)
        self._ended.set()
        self._on_ended(ends_run)

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def _await_host(self, patience: Callable[[], float]) -> None:
        """Wait for an executor on the host that has the state, within reason."""
        began = time.monotonic()
        while self._host and self._host not in list_hosts(self._context) and not self._is_killed:
            if time.monotonic() - began > patience():
                break
            time.sleep(_HOST_LOOK)
        self._awaits_host = False

    @property
    def is_placed(self) -> bool:
        with suppress(*SPARKS):  # the session has ended, as the thread of the job will report
            return self._awaits_host or any(stage.numActiveTasks > 0 for stage in self._find_stages())
        return False

    def find_executor(self) -> str:
        """Return the id of the executor on which it runs; "" until it has one. Raises an error of ``SPARKS``.

        The first call also notes the host.
        """
        if not self._executor:
            store = find_spark_context(self._context).statusStore()
            for stage in self._find_stages():
                tasks = store.taskList(stage.stageId, stage.currentAttemptId, 1)
                if tasks.nonEmpty():
                    self._executor, self._host = str(tasks.head().executorId()), str(tasks.head().host())
        return self._executor

    def _find_stages(self) -> list[SparkStageInfo]:
        find_spark_context(self._context)  # raises an error that callers handle
        tracker = self._context.statusTracker()
        jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group))
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return [stage for stage in stages if stage is not None]

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
                find_spark_context(self._context).cancelJobGroupAndFutureJobs(self._group)


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
        config = WorkerConfig.of(plan, app, settings)
        self._config = msgspec.json.encode(config)
        self._most_patience = min(_MOST_PATIENCE, settings.worker_timeout / 2)
        self._code, self._archive = str(app.path), ""
        self._is_local = (self._context.master or "").startswith("local")
        if not self._is_local:
            # Spark's directory, because executors that join later fetch it, too, as long as the session lasts.
            archive = Path(SparkFiles.getRootDirectory()) / f"{plan.name}-{self._run}.zip"
            files = list_code_files(app.path, config.code)
            self._code, self._archive = next(iter(files)), archive.name
            write_archive(archive, files)
            self._context.addFile(str(archive))
        self._term = 0
        """The term of the last attempt."""
        self._jobs: dict[int, WorkerJob] = {}
        """The jobs that have not ended, by the numbers of their workers."""
        self._is_closed = threading.Event()
        if (conf.get("spark.decommission.enabled") or "").lower() == "true":
            threading.Thread(target=self._watch_executors, daemon=True, name="decommissions").start()

    def launch(self, subtask: int, ticket: WorkerTicket, replaced: WorkerTask | None) -> WorkerTask:
        ticket = msgspec.structs.replace(ticket, listen_ports=self._worker_ports)
        order = WorkerOrder(self._code, self._app.pipeline, self._archive, subtask, self._config, ticket)
        since = f" after term {self._term}" if self._term else ""
        self._jobs[ticket.number] = WorkerJob(
            self._context,
            f"{self._job}-{self._run}-{ticket.number}",
            f"{self._job}: worker {ticket.number}, launched as subtask {subtask}{since}",
            WorkerFunction(order),
            lambda ends_run: self._on_job_ended(ticket.number, ends_run),
            replaced if isinstance(replaced, WorkerJob) and not self._is_local else None,
            lambda: self._find_patience(subtask),
        )
        return self._jobs[ticket.number]

    def _find_patience(self, subtask: int) -> float:
        """Return for how many seconds the host that has the state of a subtask may have no executor."""
        size = sum(self.list_state_files(subtask, self._wanted))
        return min(size / _FETCH_RATE, self._most_patience)

    def _on_job_ended(self, number: int, ends_run: Exception | None) -> None:
        if ends_run is not None:
            self.events.put(PoolFailed(ends_run))
        self.on_task_ended(number)  # returns once it is launched
        self._jobs.pop(number, None)

    def _watch_executors(self) -> None:
        """Tell of the workers whose executors are decommissioned. Spark's Python API has no event for it."""
        while not self._is_closed.wait(_LOOK):
            with suppress(*SPARKS):  # the session has ended, as the threads of the jobs will report
                scheduler = find_spark_context(self._context).taskScheduler()
                for number, job in list(self._jobs.items()):
                    executor = job.find_executor()
                    if executor and scheduler.getExecutorDecommissionState(executor).isDefined():
                        self.on_leaving(number)

    def close(self) -> None:
        self._is_closed.set()
        super().close()

    def start_sessions(self, make_start: MakeStart) -> None:
        """Begin a session in every worker, which finds the claim of the term in its checkpoint storage."""

        @cache
        def read_claim(term: int) -> bytes:
            return self._storage.read(paths.claim_name(Term(term)))

        def with_claim(subtask: int, peers: tuple[int, ...]) -> StartSession:
            start = make_start(subtask, peers)
            self._term = start.term
            return msgspec.structs.replace(start, claim=read_claim(start.term))

        super().start_sessions(with_claim)
        with suppress(*SPARKS):  # the session has ended, as the threads of the jobs will report
            for job in [*self._jobs.values()]:
                job.find_executor()

    def drop_local_state(self) -> None:
        """Leave it to the next session of each worker: it is on the executors."""


def find_spark_context(context: SparkContext) -> JavaObject:
    """Return the SparkContext of the JVM. Raises an error of ``SPARKS`` if it was stopped."""
    if context._jsc is None:  # as ``SparkContext.stop`` leaves it
        raise ConnectionError("the SparkContext was stopped")
    return context._jsc.sc()


def list_hosts(context: SparkContext) -> frozenset[str]:
    """Return the hosts that have executors. Raises an error of ``SPARKS``."""
    executors = find_spark_context(context).statusStore().executorList(True)
    found = [executors.apply(number) for number in range(executors.size())]
    return frozenset(str(each.hostPort()).rpartition(":")[0] for each in found if each.id() != "driver")


def make_partition(context: SparkContext, host: str) -> RDD[int]:
    """Return an RDD of one empty partition, which Spark computes on ``host`` if it has a core there; "": anywhere."""
    spark, jvm = find_spark_context(context), context._jvm
    if not host or jvm is None:
        return context.parallelize([0], 1)
    element = jvm.scala.Tuple2(bytearray(), jvm.PythonUtils.toSeq([host]))
    tag = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").Any()
    made = spark.makeRDD(jvm.PythonUtils.toSeq([element]), tag)
    return RDD(made.toJavaRDD(), context, NoOpSerializer())


def find_ports(setting: Callable[[str], str | None], name: str) -> range:
    """Return the ports that a setting allows: as for Spark's own ports, the first one and spark.port.maxRetries more.

    Raises ConfigError if they are no ports.
    """
    first, retries = setting(name) or "0", setting(_RETRIES) or "16"
    if not (first.isdecimal() and retries.isdecimal() and int(first) < 1 << 16):
        raise ConfigError(f"{name}={first}, {_RETRIES}={retries}: set the first to a port, and the second to a number")
    return range(int(first), min(int(first) + int(retries) + 1, 1 << 16)) if int(first) else range(1)
