"""Keeps a job running on any engine: one attempt after another, until it ends cleanly or must not go on.

The engine brings ``attempt`` (one term: recover, run epochs), ``release`` (nothing of a failed attempt runs any more)
and ``wake`` (look at ``stopping`` and ``expired``); lock, signals, observers, failures in a row and the end are here.

Rule: what ends an attempt decides what happens next, by its place in ``kafka_eos.core.errors``. A user's error or a
fatal one ends the job at once; everything else goes back to the last decided epoch, a bounded number of times in a row.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import cast

from kafka_eos._util.retry import Interrupted, Patience
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.dead_letter_counts import Refusals, RefusedFile
from kafka_eos.coordination.disk_space import expect_room, is_full
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.job_lock import job_lock, state_locks
from kafka_eos.coordination.request_queue import Desk
from kafka_eos.coordination.savepoint_writer import SavepointWriter
from kafka_eos.coordination.standby import Standby
from kafka_eos.coordination.status_file import Observer, Observers, StatusFile
from kafka_eos.coordination.time_unit_check import Units
from kafka_eos.core.errors import (
    CommittableLost,
    CorruptCheckpoint,
    EnvironmentFailed,
    Fatal,
    KafkaEosError,
    LoginRefused,
    ProcessLost,
    RestartFromCheckpoint,
    Retryable,
    UserError,
)
from kafka_eos.core.failure_causes import kind_of, record_of
from kafka_eos.core.ids import Term
from kafka_eos.plan import Plan
from kafka_eos.plan.explain import outline
from kafka_eos.protocol.backoff import Backoff
from kafka_eos.protocol.checkpoint_schedule import Failures, works_again
from kafka_eos.protocol.standby import Ending
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.storage_factory import open_storage

_NAP = 0.05


class JobMaster:
    """Runs one job to its end. One instance a run."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        observers: tuple[Observer, ...],
        attempt: Callable[[Coordinator], None],
        release: Callable[[BaseException], None],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan, self._settings, self._observers = plan, settings, Observers(observers)
        self._attempt, self._release, self._wake = attempt, release, wake
        self._directory = settings.job_dir(plan.name)
        self._patience = Patience(threading.Event(), self.notice)
        self._checkpoints = Failures(settings.tolerated_checkpoint_failures)
        self._deaths = Failures(settings.max_restarts)
        self._environment = Failures(settings.max_environment_failures)
        self._backoff = Backoff(
            settings.restart_backoff_initial, settings.restart_backoff_max, settings.restart_backoff_reset
        )
        self._unanswered = False
        """Rows of the newest epoch have waited for a service as long as their attempt runs: nothing tells that it is
        back."""
        self._moved = False
        """The newest epoch has read records, or put some out."""
        self._began = time.monotonic()
        """When the newest attempt did, or had restored its state."""
        self._refused = RefusedFile(self._directory, self.notice)
        self._refusals = Refusals(
            settings.max_dead_letters, settings.dead_letter_window, self.observe, self._refused.write
        )
        self._recovered = self._asked = False
        self._term = Term(0)
        """The newest that an attempt of this run has had."""
        self.stopping = threading.Event()
        """A clean end was asked for: finish the epoch at hand, start no other."""
        self.expired = threading.Event()
        """The time for a clean end is over."""

    def run(self) -> None:
        """Returns when the job has drained and everything is committed. Raises what made it stop otherwise."""
        name, states = self._plan.name, self._settings.local_dirs(self._plan.name)
        # What lies in the job's own directory is under its lock already.
        apart = [state for state in states if not state.is_relative_to(self._directory)]
        with self._observers, self._signals(), self._turn() as storage:
            if storage is not None:
                with state_locks(apart, name):
                    self._lead(storage)

    def _lead(self, storage: JobStorage) -> None:
        """As ``run``, with the job's lock held."""
        storage.tidy()
        self._refused.begin()
        here = self._settings.checkpoints_of(self._plan.name) == self._directory
        history = History(storage, self.notice, None if here else self._directory)
        self._observers.add(StatusFile(self._directory), _Diary(history), _UnitsWatched(self.notice))
        self.observe("started", job=self._plan.name)
        self.observe("plan", **outline(self._plan, self._settings))
        with closing(SavepointWriter(self._directory, storage)) as savepoints:
            self._savepoints = savepoints
            try:
                self._supervise(storage, history)
            except BaseException as error:
                self._release(error)
                self.observe("failed", error=kind_of(error), reason=str(error), **record_of(error))
                if self._recovered and (isinstance(error, UserError | Fatal) or self._ended_on_request(error)):
                    self._leave_nothing_open(storage, history, error)
                raise
        self.observe("stopped")

    @contextmanager
    def _turn(self) -> Iterator[JobStorage | None]:
        """Hold the job's lock, and open its store; None if this one stood by and has nothing to lead."""
        name, lock = self._plan.name, self._directory / paths.LOCK
        if not self._settings.standby:
            with job_lock(lock, name):
                yield open_storage(self._settings.checkpoints_of(name))
            return
        storage = open_storage(self._settings.checkpoints_of(name))
        with Standby(storage, lock, name, self._settings.standby_lease, self.observe).leading(self.stopping) as pulse:
            if pulse is None:
                yield None
                return
            ended: Ending = "left"
            try:
                yield storage
                ended = "left" if self._asked else "stopped"
            except Interrupted:
                ended = "left" if self._asked else "stopped"
                raise
            finally:
                pulse.end(ended)

    def recovered(self) -> None:
        """To be told by the attempt: the term is taken, so that this run has something to leave in order.

        All sources have been asked, and have let it in.
        """
        self._recovered = True

    def observe(self, event: str, **facts: object) -> None:
        """Tell all observers."""
        if event == "running":
            self._began = time.monotonic()
        if event == "decided":
            self._unanswered = bool(facts.get("unanswered"))
            self._moved = bool(facts.get("read") or facts.get("records_by_sink"))
        if event == "committed":
            seconds = time.monotonic() - self._began
            self._checkpoints, self._deaths = self._checkpoints.succeeded(), self._deaths.succeeded()
            self._backoff = self._backoff.committed(seconds)
            if self._works_again(seconds):
                self._environment = self._environment.succeeded()
        self._observers.tell(event, facts)

    def _works_again(self, seconds: float) -> bool:
        patience = self._settings.restart_backoff_max
        return works_again(unanswered=self._unanswered, moved=self._moved, seconds=seconds, patience=patience)

    def notice(self, text: str) -> None:
        self.observe("notice", text=text)

    @property
    def desk(self) -> Desk:
        """A desk for one attempt."""
        return Desk(self._directory, self._savepoints)

    def _ended_on_request(self, error: BaseException) -> bool:
        """Without a last checkpoint, and with time to clear up."""
        return isinstance(error, Interrupted) and not self.expired.is_set()

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
                except (RestartFromCheckpoint, OSError, LoginRefused) as error:
                    if isinstance(error, LoginRefused) and not self._recovered:
                        raise  # nobody has let it in yet: a person must look
                    self._release(error)
                    self._term = max(self._term, coordinator.term)
                    coordinator.until_owner(self._new_patience(), self._term, error)
                    self._count(error)
                    self._until_room(error)
                    self._back_off()
                except (UserError, Fatal, Interrupted):
                    # One that was replaced must clear nothing up: it would replace its successor.
                    with suppress(OSError):
                        coordinator.ensure_owner()
                    raise

    def _until_room(self, error: BaseException) -> None:
        """Return when there is room on the disks of this job, if the attempt failed for want of it."""
        if is_full(error):
            places = (*self._settings.local_dirs(self._plan.name), self._directory)
            self._patience.until_answered("go on", lambda: expect_room(places))

    def _coordinator(self, storage: JobStorage, history: History) -> Coordinator:
        """A coordinator for one attempt, with a patience of its own."""
        return Coordinator(
            self._plan,
            storage,
            history,
            self._new_patience(),
            self._settings.for_connectors(),
            self._settings.retained_checkpoints,
            start_from=self._settings.start_from,
            allow_dropped_state=self._settings.allow_dropped_state,
            take_over=self._settings.take_over,
            home=str(self._settings.checkpoints_of(self._plan.name)),
            held=lambda: self._savepoints.held,
            refusals=self._refusals,
        )

    def _new_patience(self) -> Patience:
        """One that ends when the time for a clean end does; that of an attempt ends with the attempt."""
        self._patience = Patience(threading.Event(), self.notice)
        if self.expired.is_set():
            self._patience.interrupt()
        return self._patience

    def _check(self, coordinator: Coordinator) -> None:
        try:
            notices = coordinator.check()
        except Retryable as error:
            raise type(error)(f"the job cannot start: {error}. Then start again") from error
        for notice in notices:
            self.notice(notice)

    def _count(self, error: RestartFromCheckpoint | OSError | LoginRefused) -> None:
        """One more failure in a row. Raises Fatal if that is one too many."""
        commit = "a committed checkpoint"
        if isinstance(error, ProcessLost):
            self._deaths = failures = self._deaths.failed()
            what, setting, lacks = "worker ended", "max_restarts", commit
        elif isinstance(error, EnvironmentFailed | LoginRefused) or is_full(error):
            self._environment = failures = self._environment.failed()
            what, setting = "the environment failed", "max_environment_failures"
            lacks = "an answer of what async_map has waited for" if self._unanswered else f"{commit} that did something"
        else:
            self._checkpoints = failures = self._checkpoints.failed()
            what, setting, lacks = "attempt failed", "tolerated_checkpoint_failures", commit
        self.observe("restarting", what=what, reason=str(error), in_a_row=failures.seen)
        if failures.too_many:
            raise Fatal(
                f"{failures.seen} times in a row without {lacks}: {what}: {error}. Nothing is lost; "
                f"the job continues from its last checkpoint when started again. ({setting}={failures.tolerated})"
            ) from error

    def _back_off(self) -> None:
        """Wait before the next attempt, or until the job is to stop."""
        self._backoff = self._backoff.failed()
        pause = self._backoff.pause(random.random())
        if pause:
            self.observe("backing-off", seconds=round(pause, 1))
        self.stopping.wait(pause)

    def _leave_nothing_open(self, storage: JobStorage, history: History, why: BaseException) -> None:
        """Finish what was decided, abort the rest: an open transaction would hide what others write behind it."""
        if isinstance(why, CommittableLost | CorruptCheckpoint):
            return  # only a person may touch what is left
        with closing(self._coordinator(storage, history)) as coordinator:
            timer = threading.Timer(self._settings.stop_timeout, coordinator.interrupt)
            timer.start()
            try:
                coordinator.leave_nothing_open()
            except Fatal as worse:
                raise worse from why
            except (KafkaEosError, OSError) as error:
                self.notice(f"what is open may still be: {str(error).rstrip('.')}. Later: kafka-eos doctor APP --end")
            finally:
                timer.cancel()

    # ------------------------------------------------------------ around it

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
        # On threads of their own: a handler must not take locks, and setting an event does.
        if self._asked:
            threading.Timer(0, self._expire).start()
            return
        self._asked = True
        threading.Timer(0, self._stop).start()
        timer = threading.Timer(self._settings.stop_timeout, self._expire)
        timer.daemon = True
        timer.start()

    def _stop(self) -> None:
        self.stopping.set()
        self._wake()

    def _expire(self) -> None:
        self.expired.set()
        self._patience.interrupt()
        self._wake()


class _Diary:
    """Keeps the events that reports and the audit want in the job's history."""

    _KEPT = frozenset(
        {
            "started",
            "running",
            "hung",
            "silent",
            "restarting",
            "failed",
            "stopped",
            "decided",
            "given-up",
            "dead-letters",
            "late-rows",
        }
    )

    def __init__(self, history: History) -> None:
        self._history = history

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event in self._KEPT:
            self._history.write(event, **facts)  # type: ignore[arg-type]


class _UnitsWatched:
    """Gives notice of what the watermarks of epochs tell of the user's code."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._units, self._notice = Units(), notice

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event == "decided":
            for text in self._units.remarks(cast("Mapping[str, Mapping[str, int]]", facts.get("watermarks", {}))):
                self._notice(text)
