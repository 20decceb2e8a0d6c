"""The embedded engine under a job master: one attempt after another, on the same worker processes while they live.

Rule: the session that a failed attempt began in a worker has ended, or the worker is killed, before the next attempt
recovers.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from kafka_eos.config.settings import Settings
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.coordinator import DISCOVERY_INTERVAL, Coordinator
from kafka_eos.coordination.job_master import JobMaster
from kafka_eos.coordination.status_file import Observer
from kafka_eos.core.errors import RestartFromCheckpoint, TransientConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.core.json_values import Positions
from kafka_eos.embedded.attempt_runner import AttemptRunner, make_session_error
from kafka_eos.embedded.supervisor_events import (
    PoolFailed,
    StopRequested,
    StopTimedOut,
    SupervisorEvent,
    WorkerConnected,
    WorkerExited,
    WorkerMessage,
)
from kafka_eos.embedded.tcp_process_pool import ENVIRONMENT as TCP_ENVIRONMENT
from kafka_eos.embedded.tcp_process_pool import TcpProcessPool
from kafka_eos.embedded.worker_pool import WorkerDied, WorkerHandle, WorkerPool
from kafka_eos.embedded.worker_process import ProcessPool
from kafka_eos.embedded.worker_startup import WaitDecision, decide_wait
from kafka_eos.plan import Plan
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.protocol.engine_policy import AttemptPolicy
from kafka_eos.runtime.epoch_reports import RestorePoint
from kafka_eos.runtime.worker.control_messages import EndSession, SessionEnded, SessionFailed

_NAP = 0.05
_DROP_TIMEOUT = 30.0
"""Seconds that a worker gets to end a session before it is killed."""


class Supervisor:
    """The supervisor of one run of a job. Create one instance per run."""

    def __init__(
        self,
        plan: Plan,
        app: AppRef,
        settings: Settings,
        pool: WorkerPool,
        observers: tuple[Observer, ...],
        until_caught_up: bool,
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._settings = settings
        self._until_caught_up = until_caught_up
        self._directory = settings.job_dir(plan.name)
        self._ends: Mapping[str, Positions] | None = None
        self._session = 0
        """The session of the latest attempt; messages of older sessions are ignored."""
        self._ran = False
        """True if this run has processed rows; a clean stop then takes a final checkpoint."""
        self._job_master = JobMaster(plan, settings, observers, self._attempt, self._stop_after, self._wake, app)

    def run(self) -> None:
        """Run the job until it has drained and everything is committed. Raise the error that stopped it otherwise."""
        try:
            self._job_master.run()
        finally:
            self._pool.close()

    def _attempt(self, coordinator: Coordinator) -> None:
        if not self._session:
            requests.clear_requests(self._directory)
        self._pool.start_workers()
        resumed = coordinator.recovery.restore()
        self._session = resumed.term.n
        self._pool.expect_restore(resumed)
        self._job_master.on_recovered()
        if not self._pool.is_remote:
            coordinator.recovery.verify_state(resumed, self._job_master.notice)
        at = resumed.positions
        if self._ends is None and (self._until_caught_up or coordinator.sources.is_bounded(at)):
            self._ends = coordinator.sources.end_positions(at)
        if self._wait_for_workers():
            self._pool.assign_subtasks()
            self._run_sessions(coordinator, resumed)
        # Rows behind the last barrier, in flight or in a loop, may have produced output that belongs to no epoch.
        # An open transaction would block the readers of its topics.
        self._pool.kill_all()
        coordinator.abort_own_leftovers()

    def _wait_for_workers(self) -> bool:
        """Wait until at least one worker, and every worker that has a core, has connected.

        Return False if the job is stopped meanwhile: nothing is in progress then.
        """
        timeout, since = self._settings.worker_timeout, time.monotonic()
        while missing := [worker for worker in self._pool.workers if not worker.is_connected]:
            if self._job_master.stop_requested.is_set():
                return False
            connected, seconds = len(self._pool.workers) - len(missing), time.monotonic() - since
            match decide_wait(connected, lambda: any(worker.is_placed for worker in missing), seconds, timeout):
                case WaitDecision.FAIL:
                    raise WorkerDied(
                        f"worker {', '.join(str(worker.subtask) for worker in missing)} did not connect within "
                        f"{timeout:g} s (worker_timeout)",
                        [worker.number for worker in missing],
                    )
                case WaitDecision.BEGIN:
                    count = len(self._pool.workers)
                    self._pool.leave_out_missing()
                    self._job_master.notice(f"{connected} of {count} workers run; the others have no free core yet")
                    return True
                case WaitDecision.START_OVER:
                    self._job_master.emit("restoring", text="no worker has a free core yet", ready=0, workers=[])
                    since = time.monotonic()
            with suppress(queue.Empty):
                event = self._pool.events.get(timeout=_NAP)
                since = time.monotonic() if isinstance(event, WorkerConnected) else since
                self._handle_before_sessions(event)
        return True

    def _handle_before_sessions(self, event: SupervisorEvent) -> None:
        """Handle an event that arrives while workers are missing: only ends matter."""
        numbers = {worker.number: worker for worker in self._pool.workers}
        match event:
            case WorkerExited(worker=number, how=how) if number in numbers:
                raise WorkerDied(f"worker {numbers[number].subtask} {how}", [number])
            case WorkerMessage(message=SessionFailed(session=0) as failed, worker=number) if number in numbers:
                raise make_session_error(failed)
            case PoolFailed(error=error):
                raise error

    def _run_sessions(self, coordinator: Coordinator, resumed: RestorePoint) -> None:
        settings = self._settings
        cadence = Cadence(settings.checkpoint_interval, settings.checkpoint_min_pause, settings.checkpoint_timeout)
        policy = AttemptPolicy(
            subtasks=frozenset(worker.subtask for worker in self._pool.workers),
            cadence=cadence,
            tolerated_failures=settings.tolerated_checkpoint_failures,
            discovery_interval=DISCOVERY_INTERVAL,
            pauses_at_end=bool(self._plan.feedbacks),
            verifies_input=coordinator.sources.verifies_input,
            can_stop_early=not self._ran,
            stall_timeout=settings.worker_timeout,
        )
        attempt = AttemptRunner(
            coordinator,
            resumed,
            self._pool,
            self._job_master.emit,
            self._ends,
            policy,
            self._plan.prerequisites,
            self._plan.deferred_sources,
            self._job_master.new_request_handler,
        )
        if self._job_master.stop_requested.is_set():
            self._wake()  # an earlier attempt received the stop request, and could not finish
        try:
            attempt.run()
        finally:
            self._ran = self._ran or attempt.ran
        self._end_sessions(self._pool.workers)  # closes resources that user functions have opened

    # ------------------------------------------------------------ workers

    def _stop_after(self, error: BaseException) -> None:
        """End or kill the workers' sessions after a failed attempt."""
        if not isinstance(error, RestartFromCheckpoint | OSError | TransientConfigError):
            self._pool.kill_all()
            return
        busy = {worker.number: worker for worker in self._pool.workers if worker.alive}
        for number in error.workers & busy.keys() if isinstance(error, WorkerDied) else ():
            busy.pop(number).kill()  # it may be alive but unresponsive
        self._end_sessions(busy.values())

    def _end_sessions(self, workers: Iterable[WorkerHandle]) -> None:
        """End these workers' sessions; kill workers that take too long."""
        busy = {worker.number: worker for worker in workers if worker.alive and worker.is_connected}
        for worker in busy.values():
            with suppress(WorkerDied):
                worker.send(EndSession(session=self._session))
        until = time.monotonic() + min(_DROP_TIMEOUT, self._settings.worker_timeout)
        while busy and time.monotonic() < until and not self._job_master.stop_timed_out.is_set():
            with suppress(queue.Empty):
                match self._pool.events.get(timeout=_NAP):
                    case WorkerMessage(message=SessionEnded(session=self._session), worker=number):
                        busy.pop(number, None)
                    case WorkerExited(worker=number):
                        busy.pop(number, None)
        for worker in busy.values():
            worker.kill()
        self._pool.drop_local_state()

    def _wake(self) -> None:
        self._pool.events.put(StopTimedOut() if self._job_master.stop_timed_out.is_set() else StopRequested())


# ---------------------------------------------------------------- entry point
#


def run(
    plan: Plan,
    app: AppRef,
    settings: Settings,
    *,
    observers: tuple[Observer, ...] = (),
    until_caught_up: bool = False,
) -> None:
    """Run ``plan``, which the workers load from ``app``, until it is stopped (SIGTERM, SIGINT).

    With ``until_caught_up`` it ends by itself when all input that existed at the start is processed. Raises UserError
    for problems that the user must fix, Fatal for those that need manual intervention, JobLocked if the job runs
    already.
    """
    host = os.environ.get(TCP_ENVIRONMENT)
    pool = ProcessPool(plan, app, settings) if host is None else TcpProcessPool(plan, app, settings, host)
    Supervisor(plan, app, settings, pool, observers, until_caught_up).run()
