"""The front door of the Spark engine: workers in Spark's tasks, under the supervisor of the embedded engine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafka_eos._util.extras import ensure_extra
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.status_file import Observer
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.supervisor import Supervisor
from kafka_eos.plan import Plan
from kafka_eos.plan.worker_memory import WorkerMemory
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.spark import session as sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)


class SparkEngine:
    """Runs pipelines with workers in Spark's tasks; one object may run several, one after the other.

    ``session``  an existing session, which stays open; default: under spark-submit the session that the program has
                 opened, which stays open too; otherwise a new one for each run, on ``master``
    ``master``   e.g. ``local[2]`` or ``spark://host:7077``; default: the master of spark-submit, else this machine
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
        """Run ``plan``, which the workers load from ``app``, until it is stopped (SIGTERM, SIGINT).

        With ``until_caught_up`` it ends by itself when the input that was there at the start is processed. Raises as
        ``kafka_eos.embedded.supervisor``, and ConfigError for what the session cannot do.
        """
        ensure_extra("spark", "the Spark engine")
        with sessions.open_engine_session(self._session, self._master, plan.name) as session:
            sessions.check(session)
            sessions.check_python(session)
            workers = _count_workers(session, settings)
            _check_settings(session, WorkerMemory.of(plan, settings, workers))
            from kafka_eos.spark.worker_jobs import SparkPool  # imports pyspark: not before it was looked for

            pool = SparkPool(session, plan, app, settings, workers)
            Supervisor(plan, app, settings, pool, observers, until_caught_up).run()


def _check_settings(session: SparkSession, worker: WorkerMemory) -> None:
    context = session.sparkContext
    setting = context.getConf().get
    sessions.refuse_idle_timeout(setting)
    sessions.refuse_small_address_space(setting, worker)
    if shortage := sessions.find_memory_shortage(setting, context.master or "", worker):
        _LOG.warning(shortage)


def _count_workers(session: SparkSession, settings: Settings) -> int:
    """Return the configured parallelism, or one worker per core of the cluster."""
    given = settings.origin_of("parallelism") != "default"
    return settings.parallelism if given else min(sessions.wait_for_cores(session), MAX_KEY_GROUPS)
