"""Keeps a job running: one attempt after another, with backoff, until it ends cleanly or must not go on.

Rule: what ends an attempt decides what happens next, by its place in ``kafka_eos.errors``. A user's error or a
fatal one ends the job at once; everything else goes back to the last decided epoch, a bounded number of times
in a row.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from types import FrameType

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.opening import open_storage
from kafka_eos.checkpoints.storage import JobStorage
from kafka_eos.coordinator import Coordinator, Patience
from kafka_eos.coordinator.history import History
from kafka_eos.coordinator.lock import job_lock
from kafka_eos.embedded import requests
from kafka_eos.embedded.attempt import Attempt
from kafka_eos.embedded.control import Drop, Dropped, ToSupervisor
from kafka_eos.embedded.desk import Desk
from kafka_eos.embedded.epochs import Epochs
from kafka_eos.embedded.events import Event, Heard, StopExpired, StopRequested, WorkerEnded
from kafka_eos.embedded.process import WorkerDied, WorkerProcess
from kafka_eos.embedded.status import Observer, StatusFile
from kafka_eos.errors import (
    CommittableLost,
    ConfigError,
    CorruptCheckpoint,
    Fatal,
    KafkaEosError,
    RestartFromCheckpoint,
    Retryable,
    UserError,
)
from kafka_eos.ids import AppRef
from kafka_eos.interfaces import Positions
from kafka_eos.plan import Plan
from kafka_eos.protocol.checkpoint import Cadence, Failures
from kafka_eos.settings import Settings

_NAP = 0.05
_DROP_TIMEOUT = 30.0
"""Seconds that a worker gets to let go of a failed session before it is killed."""


class Supervisor:
    """Runs one job to its end. One instance a run."""

    def __init__(
        self, plan: Plan, app: AppRef, settings: Settings, observers: tuple[Observer, ...], until_caught_up: bool
    ) -> None:
        self._plan, self._app, self._settings = plan, app, settings
        self._directory = settings.job_dir(plan.name)
        self._observers, self._until_caught_up = observers, until_caught_up
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._workers: dict[int, WorkerProcess] = {}
        self._patience = Patience(threading.Event(), self._notice)
        self._ends: Mapping[str, Positions] | None = None
        self._checkpoints = Failures(settings.tolerated_checkpoint_failures)
        self._deaths = Failures(settings.max_restarts)
        self._stopping = self._expired = self._recovered = False
        self._session = 0
        """Of the latest attempt; what a worker says of an older one does not count."""
        self._mute: set[Observer] = set()

    def run(self) -> None:
        """Returns when the job has drained and everything is committed. Raises what made it stop otherwise."""
        with job_lock(self._directory / paths.LOCK, self._plan.name), self._signals():
            storage = open_storage(self._settings.checkpoints_of(self._plan.name))
            storage.tidy()
            requests.clear(self._directory)
            history = History(storage)
            self._observers = (*self._observers, StatusFile(self._directory), _Diary(history))
            self._observe("started", job=self._plan.name)
            try:
                self._supervise(storage, history)
            except BaseException as error:
                self._observe("failed", error=type(error).__name__, reason=str(error))
                if self._recovered and isinstance(error, UserError | Fatal):
                    self._leave_nothing_open(storage, history, error)
                raise
            finally:
                self._kill_all()
            self._observe("stopped")

    def _supervise(self, storage: JobStorage, history: History) -> None:
        checked = False
        while True:
            workers = self._living_workers()
            with closing(self._coordinator(storage, history)) as coordinator:
                try:
                    if not checked:
                        self._check(coordinator)
                        checked = True
                    return self._attempt(coordinator, workers, storage)
                except (RestartFromCheckpoint, OSError) as error:
                    coordinator.ensure_owner()
                    self._after(error)

    def _coordinator(self, storage: JobStorage, history: History) -> Coordinator:
        """A coordinator for one attempt, with a patience of its own."""
        self._patience = Patience(threading.Event(), self._notice)
        if self._expired:
            self._patience.interrupt()
        connectors, retained = self._settings.for_connectors(), self._settings.retained_checkpoints
        return Coordinator(
            self._plan,
            storage,
            history,
            self._patience,
            connectors,
            retained,
            start_from=self._settings.start_from,
            allow_dropped_state=self._settings.allow_dropped_state,
        )

    def _leave_nothing_open(self, storage: JobStorage, history: History, why: Exception) -> None:
        """Finish what was decided, abort the rest: an open transaction would hide what others write behind it."""
        if isinstance(why, CommittableLost | CorruptCheckpoint):
            return  # only a person may touch what is left
        self._kill_all()
        with closing(self._coordinator(storage, history)) as coordinator:
            timer = threading.Timer(self._settings.stop_timeout, coordinator.interrupt)
            timer.start()
            try:
                coordinator.recover()
            except Fatal as worse:
                raise worse from why
            except (KafkaEosError, OSError) as error:
                self._notice(f"what is open may still be: {error}. Later: kafka-eos doctor {self._app.path} --end")
            finally:
                timer.cancel()

    def _attempt(self, coordinator: Coordinator, workers: Sequence[WorkerProcess], storage: JobStorage) -> None:
        resumed = coordinator.recover()
        self._recovered, self._session = True, resumed.term.n
        if self._until_caught_up and self._ends is None:
            self._ends = coordinator.ends()
        settings = self._settings
        cadence = Cadence(settings.checkpoint_interval, settings.checkpoint_min_pause, settings.checkpoint_timeout)
        attempt = Attempt(
            coordinator,
            resumed,
            workers,
            self._events,
            Epochs(cadence, settings.max_concurrent_checkpoints, [worker.subtask for worker in workers]),
            self._observe,
            self._ends,
            desk=Desk(self._directory, storage),
            has_loops=bool(self._plan.feedbacks),
            stops_the_world=settings.checkpoint_mode == "synchronous",
            worker_timeout=settings.worker_timeout,
            tolerated=settings.tolerated_checkpoint_failures,
        )
        if self._stopping:
            attempt.stop()
        attempt.run()

    def _check(self, coordinator: Coordinator) -> None:
        try:
            notices = coordinator.check()
        except Retryable as error:
            raise ConfigError(
                f"Kafka does not answer: {error}. Check bootstrap_servers ({self._settings.bootstrap_servers}, from "
                f"{self._settings.origin_of('bootstrap_servers')}); for a local broker: kafka-eos broker start"
            ) from error
        for notice in notices:
            self._notice(notice)

    # ------------------------------------------------------------ failures

    def _after(self, error: RestartFromCheckpoint | OSError) -> None:
        """Count the failure, wait, and let the next attempt begin; or give up."""
        if isinstance(error, WorkerDied):
            self._deaths = failures = self._deaths.failed()
            for worker in self._workers.values():
                if worker.pid in error.pids:
                    worker.kill()  # it may be alive and only not answering
            what, setting = "worker ended", "max_restarts"
        else:
            self._checkpoints = failures = self._checkpoints.failed()
            what, setting = "attempt failed", "tolerated_checkpoint_failures"
        self._observe("restarting", what=what, reason=str(error), in_a_row=failures.seen)
        if failures.too_many:
            raise Fatal(
                f"{failures.seen} times in a row without a committed checkpoint: {what}: {error}. Nothing is lost; "
                f"the job continues from its last checkpoint when started again. ({setting}={failures.tolerated})"
            ) from error
        self._end_sessions()
        self._back_off(failures.seen)

    def _back_off(self, failures: int) -> None:
        """The first failure in a row is answered at once; then the delay doubles from its initial value."""
        if failures > 1:
            first, most = self._settings.restart_backoff_initial, self._settings.restart_backoff_max
            until = time.monotonic() + min(first * 2 ** (failures - 2), most)
            while not self._stopping and time.monotonic() < until:
                time.sleep(_NAP)

    def _end_sessions(self) -> None:
        """Return when nothing of the workers' sessions runs any more: what they begin, recovery could not see."""
        busy = {worker.pid: worker for worker in self._workers.values() if worker.alive}
        for worker in busy.values():
            with suppress(WorkerDied):
                worker.tell(Drop(session=self._session))
        until = time.monotonic() + min(_DROP_TIMEOUT, self._settings.worker_timeout)
        while busy and time.monotonic() < until and not self._expired:
            with suppress(queue.Empty):
                match self._events.get(timeout=_NAP):
                    case Heard(message=Dropped(session=self._session), pid=pid) | WorkerEnded(pid=pid):
                        busy.pop(pid, None)
        for worker in busy.values():
            worker.kill()

    def _living_workers(self) -> list[WorkerProcess]:
        """One worker a subtask; those that still run go on, with their interpreters as they are."""
        for subtask in range(self._settings.parallelism):
            if subtask not in self._workers or not self._workers[subtask].alive:
                settings = self._settings.as_json()
                self._workers[subtask] = WorkerProcess(self._app, subtask, settings, self._heard, self._ended)
        return [worker for _, worker in sorted(self._workers.items())]

    def _kill_all(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    # ------------------------------------------------------------ what arrives

    def _heard(self, worker: WorkerProcess, message: ToSupervisor) -> None:
        self._events.put(Heard(message, worker.pid))

    def _ended(self, worker: WorkerProcess) -> None:
        self._events.put(WorkerEnded(worker.pid, worker.exit))

    def _notice(self, text: str) -> None:
        self._observe("notice", text=text)

    def _observe(self, event: str, **facts: object) -> None:
        if event == "committed":
            self._checkpoints, self._deaths = self._checkpoints.succeeded(), self._deaths.succeeded()
        for observer in self._observers:
            try:
                observer(event, facts)
            except OSError as error:
                self._cannot_show(observer, error)

    def _cannot_show(self, observer: Observer, error: OSError) -> None:
        """Showing never changes the job: a full disk is said once to those who still hear, and the job goes on."""
        if observer not in self._mute:
            self._mute.add(observer)
            for other in self._observers:
                if other not in self._mute:
                    other("notice", {"text": f"{type(observer).__name__} cannot be written: {error}"})

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT drain the job; after ``stop_timeout``, or at the second one, it ends as it is."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            threading.Timer(0, self._expire).start()  # not here: a handler must not take locks
            return
        self._stopping = True
        self._events.put(StopRequested())
        timer = threading.Timer(self._settings.stop_timeout, self._expire)
        timer.daemon = True
        timer.start()

    def _expire(self) -> None:
        self._expired = True
        self._patience.interrupt()
        self._events.put(StopExpired())


class _Diary:
    """Keeps the events that reports and the audit want in the job's history."""

    _KEPT = frozenset({"started", "running", "restarting", "failed", "stopped", "decided"})

    def __init__(self, history: History) -> None:
        self._history = history

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event in self._KEPT:
            self._history.write(event, **facts)  # type: ignore[arg-type]
