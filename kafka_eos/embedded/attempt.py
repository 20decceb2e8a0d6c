"""One attempt to run a job: one term, one session of each worker, epochs until it stops or fails.

    PREPARING → RUNNING → ENDING → DONE
        the workers restore, and wait for each other; checkpoints by the clock and on demand; nothing is read any more,
        the last epoch is on its way; it is committed

Everything that happens arrives in one queue (worker messages, finished commits, requests to stop) and is
handled by one thread. Commits run on a second thread and the search for new splits on a third, so that an outage
makes the supervisor neither deaf nor late.

Rule: an epoch is decided only when the one before it is committed, and the last one is on its way alone. If that one
is given up another takes its place, and what is under way becomes less: the sources stay at a halt until the end.
"""

from __future__ import annotations

import enum
import itertools
import queue
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.coordinator import DISCOVERY_INTERVAL, Coordinator, Interrupted, Resumed
from kafka_eos.coordinator.desk import Desk
from kafka_eos.coordinator.supervision import Refused
from kafka_eos.embedded.control import (
    Abort,
    Ack,
    Assign,
    Begin,
    Complete,
    Counted,
    Decline,
    Failed,
    Message,
    Progress,
    Reached,
    Ready,
    Restoring,
    Start,
    ToSupervisor,
    Trigger,
)
from kafka_eos.embedded.epochs import Epochs
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
from kafka_eos.embedded.preparing import Preparation
from kafka_eos.embedded.process import WorkerDied, WorkerProcess
from kafka_eos.embedded.standstill import Standstill
from kafka_eos.errors import EnvironmentFailed, Fatal, InputLost, RestartFromCheckpoint
from kafka_eos.failpoints import hit
from kafka_eos.ids import EpochId
from kafka_eos.interfaces import Positions, total_lag
from kafka_eos.protocol.assignment import share
from kafka_eos.protocol.checkpoint import Failures, Kind, kind_of_next


class Phase(enum.Enum):
    PREPARING = "preparing"
    RUNNING = "running"
    ENDING = "ending"
    DONE = "done"
    LEFT = "left"
    """Ended before all workers were ready for the first time: none has begun."""


_SWEEP_EVERY = 8
_SILENCE = 5.0
"""Seconds without a word (workers report twice a second) after which a late worker is taken for frozen."""


class Attempt:
    """Runs one term. ``run`` returns when the job has ended cleanly, and raises what ended the attempt."""

    def __init__(
        self,
        coordinator: Coordinator,
        resumed: Resumed,
        workers: Sequence[WorkerProcess],
        events: queue.SimpleQueue[Event],
        epochs: Epochs,
        observe: Callable[..., None],
        ends: Mapping[str, Positions] | None,
        *,
        desk: Desk,
        may_leave: bool,
        has_loops: bool,
        stops_the_world: bool,
        worker_timeout: float,
        tolerated: int,
    ) -> None:
        self._coordinator, self._resumed, self._workers = coordinator, resumed, workers
        self._events, self._epochs, self._observe = events, epochs, observe
        self._desk, self._may_leave, self._worker_timeout = desk, may_leave, worker_timeout
        self._preparation = Preparation(workers, worker_timeout, time.monotonic())
        self._ends, self._has_loops, self._stops_the_world = ends, has_loops, stops_the_world
        self._session = resumed.term.n
        self._phase = Phase.PREPARING
        self._stopping = False
        """A clean end was asked for, and not by a request."""
        self._aborted = Failures(tolerated)
        self._in_vain = False
        """Was the epoch that somebody asked for last given up, with none of the job's own since?"""
        self._heard: dict[int, float] = {}
        """When a worker last said anything."""
        self._reached: set[int] = set()
        self._standstill = Standstill(self._session, frozenset(w.subtask for w in workers), self._tell_all)
        self._progress: dict[int, Progress] = {}
        self._known = {name: dict(positions) for name, positions in resumed.positions.items()}
        self._last_discovery = time.monotonic()
        self._committing_thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._looking_thread = ThreadPoolExecutor(1, thread_name_prefix="discovery")
        self._looking = self._sweeping = False
        self._unswept = 0
        """Epochs since old ones were dropped."""

    @property
    def ran(self) -> bool:
        """Were all workers ready at some time? What was read since is committed, or is to be read again."""
        return self._phase not in (Phase.PREPARING, Phase.LEFT)

    def run(self) -> Phase:
        """Until the job ends; how far it came. Raises what ends the attempt otherwise."""
        self._start()
        self._tell_progress()
        try:
            while self._phase not in (Phase.DONE, Phase.LEFT):
                self._tick(time.monotonic())
                self._wait()
        except BaseException:
            # A commit that waits for a server would keep this attempt from ending; recovery takes it up again.
            self._coordinator.interrupt()
            raise
        finally:
            self._committing_thread.shutdown(wait=True, cancel_futures=True)
            self._looking_thread.shutdown(wait=False, cancel_futures=True)
        return self._phase

    def _start(self) -> None:
        """Begin a session in every worker, with new sockets between them: what an old one sends reaches nobody."""
        between = {pair: socket.socketpair() for pair in itertools.combinations(range(len(self._workers)), 2)}
        try:
            for worker in self._workers:
                mine = worker.subtask
                ends = {pair[1 - pair.index(mine)]: s[pair.index(mine)] for pair, s in between.items() if mine in pair}
                worker.tell(self._start_of(mine, tuple(ends)), tuple(ends.values()))
        finally:
            for pair in between.values():
                for end in pair:
                    end.close()

    def _start_of(self, subtask: int, peers: tuple[int, ...]) -> Start:
        parallelism = len(self._workers)
        return Start(
            session=self._session,
            identity=self._resumed.identity.text,
            term=self._session,
            first_epoch=self._resumed.first_epoch.n,
            parallelism=parallelism,
            peers=peers,
            positions=share(self._known, subtask, parallelism),
            states=self._resumed.states,
            in_flight=self._resumed.in_flight,
            ends=None if self._ends is None else share(self._ends, subtask, parallelism),
        )

    def _tell_all(self, message: Message) -> None:
        for worker in self._workers:
            worker.tell(message)

    def stop(self) -> None:
        """Take a last checkpoint, commit it, end. ``may_leave``: end at once if the workers are not ready."""
        self._stopping = True
        if self._phase is Phase.PREPARING and self._may_leave:
            self._phase = Phase.LEFT

    # ------------------------------------------------------------ time

    def _tick(self, now: float) -> None:
        if self._phase is Phase.PREPARING:
            self._look_at_restores(now)
        for epoch in self._epochs.expired(now):
            self._late(epoch, now)
        while (hopeless := self._epochs.hopeless()) is not None:
            epoch, why = hopeless
            self._give_up(epoch, f"checkpoint {epoch} was {why}", late=False)
        self._look(now)
        if not self._epochs.full and not self._sweeping:
            kind = self._next(now)
            if kind is not None:
                self._begin_epoch(kind, now)
            elif self._phase is Phase.RUNNING:
                self._go_on()  # who asked for the epoch that the world was stopped for has withdrawn
        if self._phase is Phase.RUNNING and not self._looking and now - self._last_discovery > DISCOVERY_INTERVAL:
            self._looking = True
            known = {source: dict(positions) for source, positions in self._known.items()}
            self._beside(self._looking_thread, lambda: self._discover(known))

    def _look_at_restores(self, now: float) -> None:
        if stuck := self._preparation.stuck(now):
            raise WorkerDied(
                f"not ready, and no further than {self._worker_timeout:g} s ago (worker_timeout): {_named(stuck)}"
                f"{self._preparation.how_far(stuck[0].subtask)}",
                [worker.pid for worker in stuck],
            )
        self._observe("restoring", **self._preparation.facts)

    def _late(self, epoch: EpochId, now: float) -> None:
        """A checkpoint takes too long."""
        missing = self._epochs.missing(epoch)
        what = f"checkpoint {epoch} was not acknowledged in time (checkpoint_timeout) by subtask {missing}"
        # Before one that drains there may be many batches, and no word comes out of a long one.
        since = self._epochs.triggered_at(epoch) if self._epochs.kind(epoch).drains else now
        quiet_since = min(now - _SILENCE, since)
        if silent := [w for w in self._workers if w.subtask in missing and self._heard[w.subtask] < quiet_since]:
            raise WorkerDied(f"{what}; no sign of life from {_named(silent)}", [worker.pid for worker in silent])
        self._give_up(epoch, what, late=True)

    def _give_up(self, epoch: EpochId, what: str, *, late: bool) -> None:
        """The job goes on without this checkpoint, unless that was one too many."""
        kind = self._epochs.kind(epoch)
        self._epochs.abort(epoch)
        if kind.counts(late=late):
            self._aborted = self._aborted.failed()
            if self._aborted.too_many:
                raise RestartFromCheckpoint(f"{what}; {self._aborted.seen} in a row")
        self._observe("notice", text=f"{what}; its output goes into the next one")
        self._observe("given-up", epoch=epoch.epoch.n, term=self._session)
        self._tell_all(Abort(session=self._session, epoch=epoch))
        if kind is Kind.LAST:
            self._desk.given_up(epoch)
            return  # another one follows, and nothing is read in between
        if kind is not Kind.CLOCK:
            self._in_vain = True
            self._desk.failed(epoch, what, late=late)
        self._go_on()

    def _look(self, now: float) -> None:
        """See what others ask for. Raises Interrupted if that is to end the job as it is."""
        if self._phase in (Phase.RUNNING, Phase.ENDING):
            self._desk.look(now)
            if self._desk.wants_end:
                self._desk.ended()
                raise Interrupted(
                    "ended on request, without a last checkpoint; the next start continues at the one before"
                )

    def _next(self, now: float) -> Kind | None:
        """What to trigger now."""
        match self._phase:
            case Phase.ENDING if self._epochs.none:
                return Kind.LAST  # the one before was given up
            case Phase.RUNNING:
                caught_up = len(self._reached) == len(self._workers)
                return kind_of_next(
                    ends=self._stopping or caught_up or self._desk.wants_stop,
                    asked=self._desk.wants,
                    due=now >= self._epochs.due,
                    in_vain=self._in_vain,
                )
            case _:
                return None

    def _wait(self) -> None:
        try:
            event = self._events.get(timeout=self._patience(time.monotonic()))
        except queue.Empty:
            return
        self._handle(event)

    def _patience(self, now: float) -> float:
        kind = self._next(now)
        if self._phase is not Phase.RUNNING or self._epochs.full or (kind is not None and self._waits(kind)):
            return 0.2
        return min(max(self._epochs.due - now, 0.0005), 0.2)

    def _waits(self, kind: Kind) -> bool:
        """What must leave nothing under way shares its barriers with no other, so it waits for those on their way."""
        return (self._stops_the_world or kind.drains) and not self._epochs.none

    def _begin_epoch(self, kind: Kind, now: float) -> None:
        """Send the barrier; in synchronous mode, and at the end of bounded input, when nothing is under way."""
        ends = kind is Kind.LAST and self._has_loops and bool(self._reached)
        if self._waits(kind):
            return
        if self._standstill.quiet or not (self._stops_the_world or ends):
            self._trigger(kind, now)
        else:
            self._standstill.begin()

    def _go_on(self) -> None:
        """After an epoch for which the world was stopped."""
        if self._epochs.none:
            self._standstill.end()

    def _trigger(self, kind: Kind, now: float) -> None:
        epoch, last = self._coordinator.next_epoch(), kind is Kind.LAST
        if last:
            self._phase = Phase.ENDING
        self._epochs.trigger(epoch, now, kind)
        if kind is Kind.CLOCK:
            self._in_vain = False
        else:
            self._desk.begun(epoch)
        self._tell_all(Trigger(session=self._session, epoch=epoch, last=last, aligned=kind.drains))

    def _discover(self, known: Mapping[str, Positions]) -> Event:
        try:
            return Discovered(self._session, known, self._coordinator.discover(known))
        except InputLost as error:
            return Discovered(self._session, known, error)

    def _discovered(self, known: Mapping[str, Positions], found: Mapping[str, Positions] | InputLost) -> None:
        self._looking, self._last_discovery = False, time.monotonic()
        match found:
            case InputLost() if known == self._known:
                raise found
            case InputLost():
                return  # about positions that the job has left behind meanwhile; the next look has newer ones
            case _:
                self._assign(found)

    def _assign(self, found: Mapping[str, Positions]) -> None:
        for source, positions in found.items():
            new = {split: at for split, at in positions.items() if split not in self._known[source]}
            if new:
                self._known[source].update(new)
                self._observe("splits", source=source, splits=sorted(new))
                for worker in self._workers:
                    if own := share({source: new}, worker.subtask, len(self._workers))[source]:
                        worker.tell(Assign(session=self._session, source=source, positions=own))

    # ------------------------------------------------------------ events

    def _handle(self, event: Event) -> None:
        match event:
            case StopRequested():
                self.stop()
            case StopExpired():
                raise Interrupted(
                    "stopped before the last checkpoint was committed; nothing is lost, the next start continues there"
                )
            case WorkerEnded(pid=pid, how=how) if (worker := self._worker(pid)) is not None:
                raise WorkerDied(f"worker {worker.pid} {how}", [worker.pid])
            case Committed() | Discovered() | Broken() if event.term != self._session:
                return  # an earlier attempt began it; recovery has decided what became of it
            case Discovered(known=known, found=found):
                self._discovered(known, found)
            case Broken(error=error):
                raise error
            case Committed(manifest=manifest):
                self._committed(manifest)
            case Heard(message=message, pid=pid):
                worker = self._worker(pid)
                if worker is not None:
                    self._heard[worker.subtask] = time.monotonic()
                    self._hear(message, worker.subtask)

    def _worker(self, pid: int) -> WorkerProcess | None:
        """The worker of this attempt with that process id."""
        return next((worker for worker in self._workers if worker.pid == pid), None)

    def _hear(self, message: ToSupervisor, subtask: int) -> None:
        match message:
            case Failed() if message.session in (0, self._session):
                raise _as_exception(message)
            case _ if message.session != self._session:
                return
            case Restoring(restored=restored):
                self._preparation.restored(subtask, restored, time.monotonic())
            case Ready():
                self._is_ready(subtask)
            case Ack():
                self._epochs.ack(message, subtask)
                self._decide()
            case Decline(epoch=epoch, reason=reason):
                self._epochs.decline(epoch, subtask, reason)
            case Progress():
                self._progress[subtask] = message
                self._tell_progress()
            case Counted():
                self._standstill.counted(message, subtask)
            case Reached():
                self._reached.add(subtask)

    def _tell_progress(self) -> None:
        told = [self._progress.get(worker.subtask) for worker in self._workers]
        self._observe(
            "progress",
            records_in=sum(p.records_in for p in told if p),
            records_out=sum(p.records_out for p in told if p),
            lag=total_lag(p.lag if p else None for p in told),
        )

    def _is_ready(self, subtask: int) -> None:
        self._preparation.ready(subtask)
        if self._preparation.done:
            self._tell_all(Begin(session=self._session))
            base, pids = self._resumed.base.epoch.n, [worker.pid for worker in self._workers]
            self._observe("running", term=self._session, base=base, workers=pids, parallelism=len(pids))
            self._phase = Phase.RUNNING

    def _decide(self) -> None:
        """Publish the manifest of the epoch that is complete, if one is, and commit it beside."""
        complete = self._epochs.ready()
        if complete is None:
            return
        hit("coordinator.acked")
        for source, positions in complete.acked.positions.items():
            # What is verified from now on: retention may pass what has been read.
            self._known[source].update(positions)
        manifest = self._coordinator.decide(complete.epoch, complete.acked)
        self._epochs.decided(complete.epoch)
        self._aborted, self._in_vain = self._aborted.succeeded(), False
        self._observe("decided", epoch=manifest.epoch, **complete.facts)
        self._unswept += 1
        sweep = self._sweeping = self._may_sweep()
        self._beside(self._committing_thread, lambda: self._commit(manifest, sweep))

    def _may_sweep(self) -> bool:
        """Drop old epochs with this one? Only while no other stores files: with several on their way, not each time."""
        rarely = self._epochs.limit > 1 and self._phase is not Phase.ENDING
        return not self._epochs.others and (not rarely or self._unswept > _SWEEP_EVERY)

    def _beside(self, thread: ThreadPoolExecutor, work: Callable[[], Event | None]) -> None:
        """Run ``work`` on another thread; what it returns, if anything, or raises becomes an event."""

        def run() -> None:
            try:
                event = work()
            except Exception as error:  # noqa: BLE001 - handled by the main thread
                event = Broken(self._session, error)
            if event is not None:
                self._events.put(event)

        thread.submit(run)

    def _commit(self, manifest: Manifest, sweep: bool) -> Event:
        self._coordinator.finish(manifest, sweep=sweep)
        for failed in self._coordinator.tell_sources(manifest):
            self._observe("notice", text=failed)
        return Committed(self._session, manifest)

    def _committed(self, manifest: Manifest) -> None:
        seconds, records = self._epochs.committed(manifest), sum(c.records for c in manifest.committables)
        self._observe("committed", epoch=manifest.epoch, seconds=seconds, records=records)
        if self._sweeping:
            self._sweeping, self._unswept = False, 0
        self._tell_all(Complete(session=self._session, epoch=manifest.id))
        # After what may end the attempt: the next one would not know of a stop that is answered.
        self._desk.committed(manifest)
        if self._phase is Phase.ENDING and self._epochs.none:
            self._phase = Phase.DONE
        else:
            self._go_on()
            self._decide()


def _named(workers: Sequence[WorkerProcess]) -> str:
    return ", ".join(f"worker {worker.subtask} (process {worker.pid})" for worker in workers)


def _as_exception(failed: Failed) -> Exception:
    match failed.kind:
        case "user":
            return Refused(failed.error, failed.reason)
        case "fatal":
            return Fatal(f"{failed.error}: {failed.reason}\n{failed.details}")
        case "environment":
            return EnvironmentFailed(failed.reason)
        case _:
            return RestartFromCheckpoint(f"{failed.error}: {failed.reason}")
