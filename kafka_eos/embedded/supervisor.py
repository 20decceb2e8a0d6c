"""The embedded engine under a job master: one attempt after another, on the same worker processes where they live.

Rule: what a failed attempt began in a worker has ended, or the worker is killed, before the next attempt looks.
"""

from __future__ import annotations

import json
import queue
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from kafka_eos.config.settings import Settings
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.coordinator import DISCOVERY_INTERVAL, Coordinator
from kafka_eos.coordination.job_master import JobMaster
from kafka_eos.coordination.status_file import Observer
from kafka_eos.core.errors import LoginRefused, RestartFromCheckpoint
from kafka_eos.core.ids import AppRef
from kafka_eos.core.json_values import Positions
from kafka_eos.embedded.attempt_runner import AttemptRunner
from kafka_eos.embedded.supervisor_events import Event, Heard, StopExpired, StopRequested, WorkerEnded
from kafka_eos.embedded.worker_process import WorkerDied, WorkerProcess, allow_open_files
from kafka_eos.plan import Plan
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.protocol.engine_policy import Policy
from kafka_eos.runtime.program import Code
from kafka_eos.runtime.worker.control_messages import Drop, Dropped, Given, ToSupervisor

_NAP = 0.05
_DROP_TIMEOUT = 30.0
"""Seconds that a worker gets to let go of a session before it is killed."""


class Supervisor:
    """Runs one job to its end. One instance a run."""

    def __init__(
        self, plan: Plan, app: AppRef, settings: Settings, observers: tuple[Observer, ...], until_caught_up: bool
    ) -> None:
        self._plan, self._app, self._settings, self._until_caught_up = plan, app, settings, until_caught_up
        self._directory = settings.job_dir(plan.name)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._workers: dict[int, WorkerProcess] = {}
        self._ends: Mapping[str, Positions] | None = None
        self._given = Given(json.dumps(settings.as_json()), Code.of(app.path, plan))
        self._session = 0
        """Of the latest attempt; what a worker says of an older one does not count."""
        self._ran = False
        """Has this run processed anything? Then a clean end takes a last checkpoint."""
        self._job_master = JobMaster(plan, settings, observers, self._attempt, self._release, self._wake)

    def run(self) -> None:
        """Returns when the job has drained and everything is committed. Raises what made it stop otherwise."""
        try:
            self._job_master.run()
        finally:
            self._kill_all()

    def _attempt(self, coordinator: Coordinator) -> None:
        if not self._session:
            requests.clear(self._directory)
        allow_open_files(self._settings.parallelism)
        workers = self._living_workers()
        resumed = coordinator.recover()
        self._session = resumed.term.n
        self._job_master.recovered()
        coordinator.verify_state(resumed, self._job_master.notice)
        at = resumed.positions
        if self._ends is None and (self._until_caught_up or coordinator.end_for_good(at)):
            self._ends = coordinator.ends(at)
        settings = self._settings
        cadence = Cadence(settings.checkpoint_interval, settings.checkpoint_min_pause, settings.checkpoint_timeout)
        policy = Policy(
            subtasks=frozenset(worker.subtask for worker in workers),
            cadence=cadence,
            tolerated=settings.tolerated_checkpoint_failures,
            search_every=DISCOVERY_INTERVAL,
            halts_at_end=bool(self._plan.feedbacks),
            may_leave=not self._ran,
            patience=settings.worker_timeout,
        )
        attempt = AttemptRunner(
            coordinator,
            resumed,
            workers,
            self._events,
            self._job_master.observe,
            self._ends,
            policy,
            self._plan.meets,
            self._plan.following,
            self._job_master.desk,
            settings.worker_timeout,
        )
        if self._job_master.stopping.is_set():
            self._wake()  # an attempt before this one has heard it, and could not finish
        try:
            attempt.run()
        finally:
            self._ran = self._ran or attempt.ran
        self._let_go(workers)  # what functions have opened is closed
        # Behind the last barrier: rows that were under way, or that go round in a loop, have output that is no epoch's.
        # An open transaction would hold up its topics' readers.
        self._kill_all()
        coordinator.abort_left_over()

    # ------------------------------------------------------------ workers

    def _living_workers(self) -> list[WorkerProcess]:
        """One worker a subtask; those that still run go on, with their interpreters as they are."""
        for subtask in range(self._settings.parallelism):
            if subtask not in self._workers or not self._workers[subtask].alive:
                self._workers[subtask] = WorkerProcess(self._app, subtask, self._given, self._heard, self._ended)
        return [worker for _, worker in sorted(self._workers.items())]

    def _release(self, error: BaseException) -> None:
        """Return when nothing of the workers' sessions runs any more: what they begin, recovery could not see."""
        if not isinstance(error, RestartFromCheckpoint | OSError | LoginRefused):
            self._kill_all()
            return
        busy = {worker.pid: worker for worker in self._workers.values() if worker.alive}
        for pid in error.pids & busy.keys() if isinstance(error, WorkerDied) else ():
            busy.pop(pid).kill()  # it may be alive and only not answering
        self._let_go(busy.values())

    def _let_go(self, workers: Iterable[WorkerProcess]) -> None:
        """Return when their sessions have ended. A worker that takes too long is killed."""
        busy = {worker.pid: worker for worker in workers if worker.alive}
        for worker in busy.values():
            with suppress(WorkerDied):
                worker.tell(Drop(session=self._session))
        until = time.monotonic() + min(_DROP_TIMEOUT, self._settings.worker_timeout)
        while busy and time.monotonic() < until and not self._job_master.expired.is_set():
            with suppress(queue.Empty):
                match self._events.get(timeout=_NAP):
                    case Heard(message=Dropped(session=self._session), pid=pid) | WorkerEnded(pid=pid):
                        busy.pop(pid, None)
        for worker in busy.values():
            worker.kill()
        self._drop_local_state()

    def _drop_local_state(self) -> None:
        """Nobody uses it any more. It may be what fills a disk that the job waits for."""
        for directory in self._settings.local_dirs(self._plan.name):
            for subtask in range(self._settings.parallelism):
                # What cannot be removed is met by the next session, which says so.
                shutil.rmtree(directory / str(subtask), ignore_errors=True)

    def _kill_all(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    # ------------------------------------------------------------ what arrives

    def _heard(self, worker: WorkerProcess, message: ToSupervisor) -> None:
        self._events.put(Heard(message, worker.pid))

    def _ended(self, worker: WorkerProcess) -> None:
        self._events.put(WorkerEnded(worker.pid, worker.exit))

    def _wake(self) -> None:
        self._events.put(StopExpired() if self._job_master.expired.is_set() else StopRequested())


# ---------------------------------------------------------------- the door
#
# The front door of the embedded engine.


def run(
    plan: Plan,
    app: AppRef,
    settings: Settings,
    *,
    observers: tuple[Observer, ...] = (),
    until_caught_up: bool = False,
) -> None:
    """Run ``plan``, which the workers load from ``app``, until it is stopped (SIGTERM, SIGINT).

    With ``until_caught_up`` it ends by itself when the input that was there at the start is processed. Raises
    UserError for what the user must change, Fatal for what only a person can decide, JobLocked if it runs already.
    """
    Supervisor(plan, app, settings, observers, until_caught_up).run()
