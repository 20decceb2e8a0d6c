"""The job master, which keeps a job running on any engine: one attempt after another until it ends or must stop.

The engine provides ``attempt`` (one term: recover, run epochs), ``release`` (wait until no task of a failed attempt
runs) and ``wake`` (check ``stop_requested`` and ``stop_timed_out``). The lock, signals, observers, the failure count
and the end of the job are handled here.
Rule: the class of an attempt's error in ``kafka_eos.core.errors`` decides what happens next. A user's error or a fatal
error ends the job at once; every other error restarts it from the last decided epoch, up to a number of times in a row.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from types import FrameType

from kafka_eos._util import failpoints
from kafka_eos._util.retry import Retrier, RetryInterrupted
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.dead_letter_counts import DeadLetterFile, DeadLetterMonitor
from kafka_eos.coordination.dependencies import DependencyMonitor
from kafka_eos.coordination.disk_space import ensure_disk_space, is_disk_full
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.job_lock import job_lock, state_locks
from kafka_eos.coordination.job_requests import JobRequest
from kafka_eos.coordination.request_queue import RequestHandler, describe_request
from kafka_eos.coordination.savepoint_writer import SavepointWriter
from kafka_eos.coordination.standby import Standby
from kafka_eos.coordination.status_file import Observer, Observers, StatusFile
from kafka_eos.coordination.time_unit_check import TimeUnitObserver
from kafka_eos.core.errors import (
    CommittableLost,
    CorruptCheckpoint,
    EnvironmentFailed,
    Fatal,
    KafkaEosError,
    ProcessLost,
    RestartFromCheckpoint,
    Retryable,
    TransientConfigError,
    UserError,
    WorkersChanged,
)
from kafka_eos.core.failure_causes import error_name, failing_record
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.plan import Plan
from kafka_eos.plan.explain import describe_plan
from kafka_eos.protocol.backoff import Backoff
from kafka_eos.protocol.checkpoint_schedule import FailureCounter, has_environment_recovered
from kafka_eos.protocol.standby import LeaderExit
from kafka_eos.runtime.program import CodeFingerprint
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.record_signatures import use_keys
from kafka_eos.storage.storage_factory import open_storage


class JobMaster:
    """The job master of one run of a job. Create one instance per run."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        observers: tuple[Observer, ...],
        attempt: Callable[[Coordinator], None],
        release: Callable[[BaseException], None],
        wake: Callable[[], None] = lambda: None,
        app: AppRef | None = None,
    ) -> None:
        """Create the job master. ``app``: the definition of the pipeline, for commands that are given only the job."""
        self._plan = plan
        self._settings = settings
        self._observers = Observers(observers)
        self._attempt = attempt
        self._stop_workers = release
        self._wake, self._app = wake, app
        self._directory = settings.job_dir(plan.name)
        self._patience = Retrier(threading.Event(), self.notice)
        self._checkpoint_failures = FailureCounter(settings.tolerated_checkpoint_failures)
        self._worker_failures = FailureCounter(settings.max_restarts)
        self._environment_failures = FailureCounter(settings.max_environment_failures)
        self._backoff = Backoff(
            settings.restart_backoff_initial, settings.restart_backoff_max, settings.restart_backoff_reset
        )
        self._has_unanswered_rows = False
        """True if rows of the newest epoch have waited for a service during their whole attempt: it may still be
        down."""
        self._made_progress = False
        """True if the newest epoch has read or emitted records."""
        self._began = time.monotonic()
        """The time at which the newest attempt began, or had restored its state."""
        self._refused = DeadLetterFile(self._directory, self.notice)
        self._refusals = DeadLetterMonitor(
            settings.max_dead_letters, settings.dead_letter_window, self.emit, self._refused.write
        )
        self._dependencies = DependencyMonitor(partial(self.emit, "dependencies"))
        self._recovered = self._stop_signalled = False
        self._reported_requests: set[str] = set()
        self._term = Term(0)
        """The newest that an attempt of this run has had."""
        self.stop_requested = threading.Event()
        """Set when a clean stop is requested: finish the current epoch, and start no other."""
        self.stop_timed_out = threading.Event()
        """The time for a clean end is over."""

    def run(self) -> None:
        """Run the job until it has drained and everything is committed. Raise the error that stopped it otherwise."""
        use_keys(self._settings.checkpoint_key_file)
        name, states = self._plan.name, self._settings.local_dirs(self._plan.name)
        # Directories inside the job's own directory are protected by its lock already.
        outside_directories = [state for state in states if not state.is_relative_to(self._directory)]
        with self._observers, self._signals(), self._hold_leadership() as storage:
            if storage is not None:
                with state_locks(outside_directories, name):
                    self._lead(storage)

    def _lead(self, storage: JobStorage) -> None:
        """Run the job with its lock held."""
        storage.prepare_run()
        self._refused.begin()
        here = self._settings.checkpoint_location(self._plan.name) == self._directory
        history = History(storage, self.notice, None if here else self._directory)
        self._observers.add(StatusFile(self._directory), _HistoryObserver(history), TimeUnitObserver(self.notice))
        armed = failpoints.armed_script()
        self.emit(
            "started", job=self._plan.name, **self._describe_app(), **({} if armed is None else {"failpoints": armed})
        )
        self.emit("plan", **describe_plan(self._plan, self._settings))
        if armed is not None:
            self.notice(failpoints.ARMED.format(script=armed))
        if self._settings.show_error_messages:
            self.notice(
                "show_error_messages=true: messages of exceptions, which may quote records, are shown in logs, "
                "history, status and pages. Leave it off where their readers may not read the records"
            )
        with closing(SavepointWriter(self._directory, storage)) as savepoints:
            self._savepoints = savepoints
            try:
                self._supervise(storage, history)
            except BaseException as error:
                self._stop_workers(error)
                self.emit("failed", error=error_name(error), reason=str(error), **failing_record(error))
                if self._recovered and (isinstance(error, UserError | Fatal) or self._ended_on_request(error)):
                    self._abort_open_output(storage, history, error)
                raise
        self.emit("stopped")

    def _describe_app(self) -> dict[str, object]:
        """Return the definition of the pipeline, and the digests of the user's files, by which an audit knows them."""
        if self._app is None:
            return {}
        return {"app": str(self._app), "code": CodeFingerprint.compute(self._app.path, self._plan).files}

    @contextmanager
    def _hold_leadership(self) -> Iterator[JobStorage | None]:
        """Hold the job's lock and yield its storage; yield None if there is nothing to lead."""
        name, lock = self._plan.name, self._directory / paths.LOCK
        if not self._settings.standby:
            with job_lock(lock, name):
                yield open_storage(self._settings.checkpoint_location(name))
            return
        storage = open_storage(self._settings.checkpoint_location(name))
        with Standby(storage, lock, name, self._settings.standby_lease, self.emit).lead(self.stop_requested) as pulse:
            if pulse is None:
                yield None
                return
            ended: LeaderExit = "left"
            try:
                yield storage
                ended = "left" if self._stop_signalled else "stopped"
            except RetryInterrupted:
                ended = "left" if self._stop_signalled else "stopped"
                raise
            finally:
                pulse.stop(ended)

    def on_recovered(self) -> None:
        """Record that the term is taken, so that this run has output to clean up.

        All sinks and sources have been checked, and have accepted the job's login.
        """
        self._recovered = True

    def emit(self, event: str, **facts: object) -> None:
        """Emit an event to all observers."""
        if event == "running":
            self._began = time.monotonic()
        if event == "decided":
            self._has_unanswered_rows = bool(facts.get("unanswered"))
            self._made_progress = bool(facts.get("read") or facts.get("records_by_sink"))
        if event == "committed":
            seconds = time.monotonic() - self._began
            self._checkpoint_failures, self._worker_failures = (
                self._checkpoint_failures.record_success(),
                self._worker_failures.record_success(),
            )
            self._backoff = self._backoff.record_commit(seconds)
            if self._has_environment_recovered(seconds):
                self._environment_failures = self._environment_failures.record_success()
        self._observers.notify(event, facts)

    def _has_environment_recovered(self, seconds: float) -> bool:
        patience = self._settings.restart_backoff_max
        return has_environment_recovered(
            unanswered=self._has_unanswered_rows, moved=self._made_progress, seconds=seconds, patience=patience
        )

    def notice(self, text: str) -> None:
        self.emit("notice", text=text)

    @property
    def new_request_handler(self) -> RequestHandler:
        """Return a request handler for one attempt."""
        return RequestHandler(self._directory, self._savepoints, self._report_request)

    def _report_request(self, token: str, request: JobRequest, by: str) -> None:
        """Emit who asks for what, once per request."""
        if token not in self._reported_requests:
            self._reported_requests.add(token)
            self.emit("requested", what=describe_request(request), by=by)

    def _ended_on_request(self, error: BaseException) -> bool:
        """Return whether the attempt was cancelled, without a last checkpoint, and with time left for cleanup."""
        return isinstance(error, RetryInterrupted) and not self.stop_timed_out.is_set()

    # ------------------------------------------------------------ attempts

    def _supervise(self, storage: JobStorage, history: History) -> None:
        checked = False
        while True:
            with closing(self._coordinator(storage, history)) as coordinator:
                try:
                    if not checked:
                        self._check(coordinator)
                        checked = True
                    self._began = time.monotonic()
                    return self._attempt(coordinator)
                except (RestartFromCheckpoint, OSError, TransientConfigError) as error:
                    if isinstance(error, TransientConfigError) and not self._recovered:
                        raise  # it has never matched the settings: needs manual intervention
                    self._stop_workers(error)
                    self._term = max(self._term, coordinator.ownership.term)
                    coordinator.ownership.wait_for_answer(self._new_patience(), self._term, error)
                    if isinstance(error, WorkersChanged):
                        self.notice(str(error))
                        continue
                    self._count_failure(error)
                    self._wait_for_disk_space(error)
                    self._back_off()
                except (UserError, Fatal, RetryInterrupted):
                    self._term = max(self._term, coordinator.ownership.term)
                    # A replaced supervisor must not clean up: it would replace its successor.
                    with suppress(OSError):
                        coordinator.ownership.ensure_owner()
                    raise

    def _wait_for_disk_space(self, error: BaseException) -> None:
        """Wait until the job's disks have space, if the attempt failed for lack of it."""
        if is_disk_full(error):
            places = (*self._settings.local_dirs(self._plan.name), self._directory)
            self._patience.retry("go on", lambda: ensure_disk_space(places))

    def _coordinator(self, storage: JobStorage, history: History) -> Coordinator:
        """Return a coordinator for one attempt, with its own retrier."""
        return Coordinator(
            self._plan,
            storage,
            history,
            self._new_patience(),
            self._settings.connector_defaults(),
            self._settings.retained_checkpoints,
            start_from=self._settings.start_from,
            allow_dropped_state=self._settings.allow_dropped_state,
            allow_repeated_output=self._settings.allow_repeated_output,
            take_over=self._settings.take_over,
            home=str(self._settings.checkpoint_location(self._plan.name)),
            held=lambda: self._savepoints.pinned_files,
            refusals=self._refusals,
            dependencies=self._dependencies,
        )

    def _new_patience(self) -> Retrier:
        """Return a retrier that is interrupted when the time for a clean stop is over."""
        self._patience = Retrier(threading.Event(), self.notice)
        if self.stop_timed_out.is_set():
            self._patience.interrupt()
        return self._patience

    def _check(self, coordinator: Coordinator) -> None:
        try:
            notices = coordinator.check()
        except Retryable as error:
            raise type(error)(f"the job cannot start: {error}. Fix this, then start again") from error
        for notice in notices:
            self.notice(notice)

    def _count_failure(self, error: RestartFromCheckpoint | OSError | TransientConfigError) -> None:
        """Count one more failure; raise Fatal if there were too many."""
        commit = "a committed checkpoint"
        if isinstance(error, ProcessLost):
            self._worker_failures = failures = self._worker_failures.record_failure()
            what, setting, lacks = "worker ended", "max_restarts", commit
        elif isinstance(error, EnvironmentFailed | TransientConfigError) or is_disk_full(error):
            self._environment_failures = failures = self._environment_failures.record_failure()
            what, setting = "the environment failed", "max_environment_failures"
            lacks = "a finished request of async_map" if self._has_unanswered_rows else f"{commit} that did something"
        else:
            self._checkpoint_failures = failures = self._checkpoint_failures.record_failure()
            what, setting, lacks = "attempt failed", "tolerated_checkpoint_failures", commit
        self.emit("restarting", what=what, reason=str(error), in_a_row=failures.in_a_row)
        if failures.is_exceeded:
            raise Fatal(
                f"{failures.in_a_row} failures in a row without {lacks}: {what}: {error}. Nothing is lost; the job "
                f"resumes from its last checkpoint when started again. ({setting}={failures.tolerated})"
            ) from error

    def _back_off(self) -> None:
        """Wait before the next attempt, or until a stop is requested."""
        self._backoff = self._backoff.record_failure()
        pause = self._backoff.pause(random.random())  # noqa: S311 - spreads restarts
        if pause:
            self.emit("backing-off", seconds=round(pause, 1))
        self.stop_requested.wait(pause)

    def _abort_open_output(self, storage: JobStorage, history: History, why: BaseException) -> None:
        """Complete the decided epoch and abort all other output, after the job has failed."""
        if isinstance(why, CommittableLost | CorruptCheckpoint):
            return  # needs manual intervention; abort nothing
        with closing(self._coordinator(storage, history)) as coordinator:
            timer = threading.Timer(self._settings.stop_timeout, coordinator.interrupt)
            timer.start()
            try:
                coordinator.abort_open_output(self._term)
            except Fatal as worse:
                raise worse from why
            except (KafkaEosError, OSError) as error:
                # Also if fenced: a claim whose response was lost looks like the one of another supervisor.
                text = f"open output could not be aborted: {str(error).rstrip('.')}"
                self.notice(f"{text}. If no supervisor runs this job, retry with kafka-eos doctor APP --resolve")
            finally:
                timer.cancel()

    # ------------------------------------------------------------ signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT: drain the job; after ``stop_timeout``, or at the second signal, cancel it."""
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
        # Use timer threads: a signal handler must not take locks, and setting an event does.
        if self._stop_signalled:
            threading.Timer(0, self._expire).start()
            return
        self._stop_signalled = True
        threading.Timer(0, self._stop).start()
        timer = threading.Timer(self._settings.stop_timeout, self._expire)
        timer.daemon = True
        timer.start()

    def _stop(self) -> None:
        self.stop_requested.set()
        self._wake()

    def _expire(self) -> None:
        self.stop_timed_out.set()
        self._patience.interrupt()
        self._wake()


class _HistoryObserver:
    """An observer that writes the events that reports and the audit need to the job's history."""

    _KEPT = frozenset(
        {
            "started",
            "running",
            "hung",
            "unresponsive",
            "restarting",
            "failed",
            "stopped",
            "decided",
            "aborted",
            "dead-letters",
            "requested",
            "set-aside",
            "late-rows",
        }
    )

    def __init__(self, history: History) -> None:
        self._history = history

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event in self._KEPT:
            self._history.append_event(event, **facts)  # type: ignore[arg-type]
