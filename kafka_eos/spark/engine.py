"""The front door of the Spark engine: a job's epochs as Spark jobs, under the job master that both engines share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from kafka_eos.config.settings import Settings
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_master import JobMaster
from kafka_eos.coordination.status_file import Observer
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import Plan
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.runtime.program import CodeFingerprint
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.spark import session as sessions
from kafka_eos.spark.admission_control import divide_limit
from kafka_eos.spark.driver import AttemptCallbacks, SparkAttempt
from kafka_eos.spark.messages import StageSpec
from kafka_eos.spark.stages import split_into_stages
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.storage_factory import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkEngine:
    """Runs pipelines on Spark; one object may run several, one after the other.

    ``session``  an existing session, which stays open; default: under spark-submit the session that the program has
                 opened, which stays open too; otherwise a new one for each run, on ``master``
    ``master``   e.g. ``local[2,4]`` (two cores, four attempts per task) or ``spark://host:7077``; default: the master
                 of spark-submit, else this machine
    """

    def __init__(self, session: SparkSession | None = None, *, master: str | None = None) -> None:
        if session is not None and master is not None:
            raise ConfigError("give SparkEngine a session or a master, not both")
        self._session, self._master = session, master

    def run(
        self,
        plan: Plan,
        app: AppRef,
        settings: Settings,
        *,
        observers: tuple[Observer, ...] = (),
        until_caught_up: bool = False,
    ) -> None:
        """Run ``plan``, which tasks load from ``app``, until it is stopped (SIGTERM, SIGINT).

        With ``until_caught_up`` it ends by itself when the input that was there at the start is processed. Raises as
        ``kafka_eos.embedded.supervisor``, and ConfigError for what the engine or the session cannot do.
        """
        split_into_stages(plan)
        with sessions.open_engine_session(self._session, self._master, plan.name) as session:
            _SparkRun(plan, app, settings, session, observers, until_caught_up).run()


class _SparkRun:
    """One run of one job in one session."""

    def __init__(
        self,
        plan: Plan,
        app: AppRef,
        settings: Settings,
        session: SparkSession,
        observers: tuple[Observer, ...],
        until_caught_up: bool,
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._until_caught_up = until_caught_up
        self._session = sessions.configure_session(session)
        sessions.check_python(self._session)
        from kafka_eos.spark.epoch_job import EpochRunner  # imports pyspark: not before it was looked for

        self._runner = EpochRunner(self._session, plan.name, len(split_into_stages(plan)))
        self._template = self._spec(app)
        self._started = False
        self._goal: Mapping[str, Positions] | None = None
        # The driver ends its job before it raises: there is nothing to release.
        self._job_master = JobMaster(plan, settings, observers, self._attempt, release=lambda error: None, app=app)

    def run(self) -> None:
        self._job_master.run()

    def _attempt(self, coordinator: Coordinator) -> None:
        job_master, settings = self._job_master, self._settings
        if not self._started:
            requests.clear_requests(settings.job_dir(self._plan.name))
            self._started = True
        resumed = coordinator.recovery.restore()
        job_master.on_recovered()
        at = resumed.positions
        if self._goal is None and (self._until_caught_up or coordinator.sources.is_bounded(at)):
            self._goal = coordinator.sources.end_positions(at)
        job_master.emit(
            "running", term=resumed.term.n, base=resumed.base.epoch.n, master=self._session.sparkContext.master,
            parallelism=self._template.parallelism, batches=True,
        )  # fmt: skip
        cadence = Cadence(settings.checkpoint_interval, 0.0, settings.checkpoint_timeout)
        watch = AttemptCallbacks(job_master.stop_requested.is_set, job_master.stop_timed_out.is_set, job_master.emit)
        storage = open_storage(settings.checkpoint_location(self._plan.name))
        claim = storage.read(paths.claim_name(resumed.term))
        template = msgspec.structs.replace(
            self._template, identity=resumed.identity.text, term=resumed.term.n, claim=claim
        )
        newest = partial(savepoints.newest_committed, storage, self._plan.name)
        plan, request_handler = self._plan, job_master.new_request_handler
        held_back = plan.watermark_alignments, plan.prerequisites, plan.deferred_sources
        driver = SparkAttempt(
            coordinator,
            resumed,
            self._runner,
            template,
            cadence,
            watch,
            self._goal,
            *held_back,
            request_handler,
            newest,
        )
        driver.run()

    def _spec(self, app: AppRef) -> StageSpec:
        context = self._session.sparkContext
        shipped = not (context.master or "").startswith("local")
        if shipped:
            context.addFile(str(app.path))
        parallelism, settings = self._parallelism(), self._settings
        return StageSpec(
            app=str(app.path),
            pipeline=app.pipeline,
            shipped=shipped,
            settings=json.dumps(settings.as_json()),
            code=CodeFingerprint.compute(app.path, self._plan),
            identity="",
            term=0,
            claim=b"",
            epoch=0,
            finished=-1,
            generation=0,
            parallelism=parallelism,
            level=0,
            last=False,
            positions={},
            ends={},
            quota=divide_limit(settings.max_records_per_epoch, settings.max_bytes_per_epoch, parallelism),
            states=(),
        )

    def _parallelism(self) -> int:
        """Return the configured parallelism, or one subtask per core of the cluster."""
        given = self._settings.origin_of("parallelism") != "default"
        return self._settings.parallelism if given else min(sessions.wait_for_cores(self._session), MAX_KEY_GROUPS)
