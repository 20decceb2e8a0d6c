"""One attempt to run a job: one term, one session of each worker, epochs until it stops or fails.

    PREPARING → RUNNING → STOPPING → ENDING → DONE
        the workers restore; checkpoints by the clock; a stop was asked for; the last epoch is on its way; finished

Everything that happens arrives in one queue (worker messages, finished commits, requests to stop) and is
handled by one thread. Commits run on a second thread and the search for new splits on a third, so that an outage
makes the supervisor neither deaf nor late.

Rule: at most one epoch is on its way, from its trigger to its receipt.
"""

from __future__ import annotations

import enum
import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.coordinator import Acked, Coordinator, Interrupted, Resumed
from kafka_eos.embedded.control import (
    Ack,
    Assign,
    Complete,
    Failed,
    Progress,
    Reached,
    Ready,
    Start,
    ToSupervisor,
    Trigger,
)
from kafka_eos.embedded.events import (
    Broken,
    Committed,
    Discovered,
    Event,
    Heard,
    StopExpired,
    StopRequested,
    WorkerEnded,
)
from kafka_eos.embedded.process import WorkerDied, WorkerProcess
from kafka_eos.errors import Fatal, InputLost, KafkaEosError, RestartFromCheckpoint, Retryable, UserError
from kafka_eos.failpoints import hit
from kafka_eos.interfaces import Positions
from kafka_eos.protocol.checkpoint import Cadence, Pending


class Phase(enum.Enum):
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDING = "ending"
    DONE = "done"


READY_TIMEOUT = 120.0
"""Seconds that workers have to let go of the last session and to restore the next."""
DISCOVERY_INTERVAL = 5.0


class WorkerRefused(UserError):
    """What a worker says the user must change. ``error`` is the class of the original, e.g. ``PoisonRecord``."""

    def __init__(self, error: str, reason: str) -> None:
        super().__init__(reason)
        self.error = error


@dataclass(frozen=True, slots=True)
class Committing:
    """A decided epoch whose commits are under way."""

    pending: Pending
    manifest: Manifest


class Attempt:
    """Runs one term. ``run`` returns when the job has ended cleanly, and raises what ended the attempt."""

    def __init__(
        self,
        coordinator: Coordinator,
        resumed: Resumed,
        worker: WorkerProcess,
        events: queue.SimpleQueue[Event],
        cadence: Cadence,
        observe: Callable[..., None],
        ends: Mapping[str, Positions] | None,
    ) -> None:
        self._coordinator, self._resumed, self._worker = coordinator, resumed, worker
        self._events, self._cadence, self._observe = events, cadence, observe
        self._ends = ends
        self._session = resumed.term.n
        self._phase = Phase.PREPARING
        self._flight: Pending | Committing | None = None
        self._known = {name: dict(positions) for name, positions in resumed.positions.items()}
        now = time.monotonic()
        self._began = self._last_triggered = self._last_completed = self._last_discovery = now
        self._committing_thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._looking_thread = ThreadPoolExecutor(1, thread_name_prefix="discovery")
        self._looking = False

    def run(self) -> None:
        self._worker.tell(
            Start(
                session=self._session,
                term=self._resumed.term.n,
                first_epoch=self._resumed.first_epoch.n,
                positions={name: dict(positions) for name, positions in self._resumed.positions.items()},
                states=self._resumed.states,
                ends=None if self._ends is None else dict(self._ends),
            )
        )
        try:
            while self._phase is not Phase.DONE:
                self._tick(time.monotonic())
                self._wait()
        except BaseException:
            # A commit that waits for a server would keep this attempt from ending; recovery takes it up again.
            self._coordinator.interrupt()
            raise
        finally:
            self._committing_thread.shutdown(wait=True, cancel_futures=True)
            self._looking_thread.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Take a last checkpoint, commit it, end."""
        if self._phase is Phase.RUNNING:
            self._phase = Phase.STOPPING
        elif self._phase is Phase.PREPARING:
            # Nothing has been read in this attempt that the base epoch does not cover.
            self._phase = Phase.DONE

    # ------------------------------------------------------------ time

    def _tick(self, now: float) -> None:
        if self._phase is Phase.PREPARING and now - self._began > READY_TIMEOUT:
            raise WorkerDied(f"worker {self._worker.pid} was not ready after {READY_TIMEOUT:.0f} s")
        if isinstance(self._flight, Pending) and self._cadence.expired(self._flight, now):
            raise RestartFromCheckpoint(
                f"checkpoint {self._flight.id} was not acknowledged within {self._cadence.timeout:.0f} s"
            )
        if self._flight is None:
            due = self._cadence.next_trigger(self._last_triggered, self._last_completed)
            if self._phase is Phase.STOPPING or (self._phase is Phase.RUNNING and now >= due):
                self._trigger(now)
        if self._phase is Phase.RUNNING and not self._looking and now - self._last_discovery > DISCOVERY_INTERVAL:
            self._looking = True
            known = {source: dict(positions) for source, positions in self._known.items()}
            self._beside(self._looking_thread, lambda: self._discover(known))

    def _wait(self) -> None:
        try:
            event = self._events.get(timeout=self._patience(time.monotonic()))
        except queue.Empty:
            return
        self._handle(event)

    def _patience(self, now: float) -> float:
        if self._flight is None and self._phase is Phase.RUNNING:
            due = self._cadence.next_trigger(self._last_triggered, self._last_completed)
            return min(max(due - now, 0.0005), 0.5)
        return 0.0005 if self._flight is None and self._phase is Phase.STOPPING else 0.5

    def _trigger(self, now: float) -> None:
        last = self._phase is Phase.STOPPING
        if last:
            self._phase = Phase.ENDING
        epoch = self._coordinator.next_epoch()
        self._flight = Pending(epoch, frozenset({self._worker.subtask}), now)
        self._last_triggered = now
        self._worker.tell(Trigger(session=self._session, epoch=epoch, last=last))

    def _discover(self, known: Mapping[str, Positions]) -> Event:
        try:
            return Discovered(self._session, known, self._coordinator.discover(known))
        except (Retryable, InputLost) as error:
            return Discovered(self._session, known, error)

    def _discovered(self, known: Mapping[str, Positions], found: Mapping[str, Positions] | KafkaEosError) -> None:
        self._looking, self._last_discovery = False, time.monotonic()
        match found:
            case InputLost() if known == self._known:
                raise found
            case InputLost():
                return  # about positions that the job has left behind meanwhile; the next look has newer ones
            case KafkaEosError():
                self._observe("notice", text=f"could not look for new splits: {found}")
            case _:
                self._assign(found)

    def _assign(self, found: Mapping[str, Positions]) -> None:
        for source, positions in found.items():
            new = {split: at for split, at in positions.items() if split not in self._known[source]}
            if new:
                self._known[source].update(new)
                self._observe("splits", source=source, splits=sorted(new))
                self._worker.tell(Assign(session=self._session, source=source, positions=new))

    # ------------------------------------------------------------ events

    def _handle(self, event: Event) -> None:
        match event:
            case StopRequested():
                self.stop()
            case StopExpired():
                raise Interrupted(
                    "stopped before the last checkpoint was committed; nothing is lost, the next start continues there"
                )
            case WorkerEnded(pid=pid, how=how) if pid == self._worker.pid:
                raise WorkerDied(f"worker {pid} {how}")
            case Committed() | Discovered() | Broken() if event.term != self._session:
                return  # an earlier attempt began it; recovery has decided what became of it
            case Discovered(known=known, found=found):
                self._discovered(known, found)
            case Broken(error=error):
                raise error
            case Committed(manifest=manifest):
                self._committed(manifest)
            case Heard(message=message, pid=pid) if pid == self._worker.pid:
                self._hear(message)

    def _hear(self, message: ToSupervisor) -> None:
        match message:
            case Failed() if message.session in (0, self._session):
                raise _as_exception(message)
            case _ if message.session != self._session:
                return
            case Ready():
                self._observe("running", term=self._session, base=self._resumed.base.epoch.n, worker=self._worker.pid)
                self._phase = Phase.RUNNING
            case Ack():
                self._acknowledged(message)
            case Progress(records_in=records_in, records_out=records_out, lag=lag):
                self._observe("progress", records_in=records_in, records_out=records_out, lag=lag)
            case Reached():
                self.stop()

    def _acknowledged(self, ack: Ack) -> None:
        if not isinstance(self._flight, Pending):
            return
        pending = self._flight.ack(ack.epoch, self._worker.subtask)
        self._flight = pending
        if not pending.complete:
            return
        hit("coordinator.acked")
        for source, positions in ack.positions.items():
            # What is verified from now on: retention may pass what has been read.
            self._known[source].update(positions)
        manifest = self._coordinator.decide(pending.id, Acked(ack.positions, ack.states, ack.committables))
        self._flight = Committing(pending, manifest)
        self._observe(
            "decided",
            epoch=pending.id.epoch.n,
            seconds=time.monotonic() - pending.triggered_at,
            blocked_ms=ack.blocked_ms,
            state_bytes=sum(file.size for handle in ack.states for file in handle.files),
        )
        self._beside(self._committing_thread, lambda: self._commit(manifest))

    def _beside(self, thread: ThreadPoolExecutor, work: Callable[[], Event]) -> None:
        """Run ``work`` on another thread; what it returns or raises becomes an event."""

        def run() -> None:
            try:
                event = work()
            except Exception as error:  # noqa: BLE001 - handled by the main thread
                event = Broken(self._session, error)
            self._events.put(event)

        thread.submit(run)

    def _commit(self, manifest: Manifest) -> Event:
        self._coordinator.finish(manifest)
        try:
            self._coordinator.tell_sources(manifest)
        except Retryable as error:
            # The consumer group only shows lag; the next epoch tells it again.
            self._observe("notice", text=f"offsets of epoch {manifest.epoch} not shown in the consumer group: {error}")
        return Committed(self._session, manifest)

    def _committed(self, manifest: Manifest) -> None:
        assert isinstance(self._flight, Committing)
        self._observe(
            "committed",
            epoch=manifest.epoch,
            seconds=time.monotonic() - self._flight.pending.triggered_at,
            records=sum(c.records for c in manifest.committables),
        )
        self._flight = None
        self._last_completed = time.monotonic()
        self._worker.tell(Complete(session=self._session, epoch=manifest.id))
        if self._phase is Phase.ENDING:
            self._phase = Phase.DONE


def _as_exception(failed: Failed) -> Exception:
    match failed.kind:
        case "user":
            return WorkerRefused(failed.error, failed.reason)
        case "fatal":
            return Fatal(f"{failed.error}: {failed.reason}\n{failed.details}")
        case _:
            return RestartFromCheckpoint(f"{failed.error}: {failed.reason}")
