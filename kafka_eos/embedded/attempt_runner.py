"""One attempt on the embedded engine: one term, one session of each worker, until it stops or fails.

``protocol.attempt`` decides. Here everything that happens (worker messages, finished commits, requests to stop) arrives
in one queue, is handled by one thread, and becomes a fact; each action that follows is carried out. What may wait for a
server runs on other threads (``beside``), so that an outage makes the supervisor neither deaf nor late.

Rule: actions are carried out in the order in which they come, and one that fails ends the attempt.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Interrupted
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.request_queue import Desk
from kafka_eos.core.errors import Bug, EnvironmentFailed, Fatal, InputLost, RestartFromCheckpoint
from kafka_eos.core.failure_causes import RefusedElsewhere
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.embedded.ack_collector import Answers
from kafka_eos.embedded.background_commits import Beside
from kafka_eos.embedded.supervisor_events import (
    BackgroundDone,
    Broken,
    Event,
    Heard,
    SplitsDiscovered,
    StopExpired,
    StopRequested,
    WorkerEnded,
)
from kafka_eos.embedded.worker_pool import Crew
from kafka_eos.embedded.worker_process import WorkerProcess
from kafka_eos.embedded.worker_startup import Preparation
from kafka_eos.protocol import actions as do
from kafka_eos.protocol import events as facts
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.protocol.actions import Action, Ending
from kafka_eos.protocol.attempt import Attempt, Phase
from kafka_eos.protocol.checkpoint_schedule import Kind
from kafka_eos.protocol.cleanup_schedule import Housekeeping
from kafka_eos.protocol.engine_policy import Policy
from kafka_eos.protocol.events import Fact
from kafka_eos.protocol.quiescence import Counts
from kafka_eos.protocol.split_assignment import share
from kafka_eos.protocol.watermark_alignment import Rounds, Slowest
from kafka_eos.runtime.epoch_reports import Resumed, figures_of
from kafka_eos.runtime.worker import control_messages as control
from kafka_eos.runtime.worker.control_messages import (
    Ack,
    ConfirmAbort,
    Counted,
    Decline,
    Failed,
    Progress,
    Pulse,
    Reached,
    Ready,
    Restoring,
    SlowestHere,
    ToSupervisor,
)
from kafka_eos.runtime.worker.task_stats import NOTHING, Figures, together
from kafka_eos.storage.job_records import Manifest

_LOOK = 0.2
"""Seconds between two looks at the clock and at what is asked for."""
_DEAF = 1.0
"""Seconds between two looks from which on this process did not listen itself: it was stopped, or waited for a store."""
_WONDER = 0.25
"""The part of ``worker_timeout`` after which it is said where a worker stands that takes no step."""


class AttemptRunner:
    """Runs one term. ``run`` returns when the job has ended cleanly, and raises what ended the attempt."""

    def __init__(
        self,
        coordinator: Coordinator,
        resumed: Resumed,
        workers: Sequence[WorkerProcess],
        events: queue.SimpleQueue[Event],
        observe: Callable[..., None],
        ends: Mapping[str, Positions] | None,
        policy: Policy,
        meets: Mapping[str, Collection[str]],
        following: Collection[str],
        desk: Desk,
        worker_timeout: float,
    ) -> None:
        """``meets``, ``following``: see ``plan.Graph``."""
        now = time.monotonic()
        self._coordinator, self._resumed, self._crew = coordinator, resumed, Crew(workers)
        self._events, self._observe, self._ends, self._desk = events, observe, ends, desk
        self._worker_timeout, self._session = worker_timeout, resumed.term.n
        held = bootstrap.Held.at_start(meets, following, resumed.positions)
        self._attempt = Attempt.of(
            policy,
            EpochId(resumed.first_epoch, resumed.term),
            resumed.base,
            Housekeeping(1, now),
            now,
            under_way=bool(resumed.in_flight),
            filling=bool(held.waiting),
        )
        self._meets, self._held = meets, held
        self._tell_who_waits(resumed.positions)
        self._preparation = Preparation(workers, worker_timeout, now)
        self._answers = Answers()
        self._decided: Manifest | None = None
        """The epoch that is committed now."""
        self._told: dict[int, Figures] = {}
        self._looked_at, self._wondered = now, frozenset[int]()
        self._drift = Rounds(Slowest.of(self._crew.subtasks))
        self._known = {name: dict(positions) for name, positions in resumed.positions.items()}
        self._beside = Beside(coordinator, self._session, events, observe)
        self._ended: Ending | None = None

    @property
    def ran(self) -> bool:
        """Were all workers ready at some time? What was read since is committed, or is to be read again."""
        return self._attempt.ran

    def run(self) -> None:
        """Until the job ends. Raises what ends the attempt otherwise."""
        self._crew.start(self._start_of)
        self._tell_progress()
        try:
            while self._ended is None:
                self._tick()
                self._wait()
        except BaseException:
            # A commit that waits for a server would keep this attempt from ending; recovery takes it up again.
            self._coordinator.interrupt()
            raise
        finally:
            self._beside.close()

    def _start_of(self, subtask: int, peers: tuple[int, ...]) -> control.Start:
        resumed, parallelism = self._resumed, len(self._crew.workers)
        return control.Start(
            session=self._session,
            identity=resumed.identity.text,
            term=self._session,
            first_epoch=resumed.first_epoch.n,
            parallelism=parallelism,
            peers=peers,
            positions=share(self._known, subtask, parallelism),
            states=resumed.states,
            in_flight=resumed.in_flight,
            ends=None if self._ends is None else share(self._ends, subtask, parallelism),
            waiting=self._held.waiting,
            silent=self._held.silent,
        )

    # ------------------------------------------------------------ facts

    def _learn(self, fact: Fact) -> None:
        """Tell the machine, and do what it says."""
        self._attempt, actions = self._attempt.on(fact, time.monotonic())
        for action in actions:
            self._carry_out(action)

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._looked_at > _DEAF:
            self._learn(facts.Deaf(now - self._looked_at))
        self._looked_at = now
        self._tell_drift(now)
        self._tell_who_is_still(now)
        if self._attempt.phase is Phase.PREPARING:
            self._look_at_restores(now)
            self._learn(facts.Tick())
        else:
            self._desk.look(now)
            self._learn(self._desk.asked)

    def _look_at_restores(self, now: float) -> None:
        if stuck := self._preparation.stuck(now):
            subtasks = [worker.subtask for worker in stuck]
            raise self._crew.lost(
                f"not ready, and no further than {self._worker_timeout:g} s ago (worker_timeout): "
                f"{self._crew.named(subtasks)}{self._preparation.how_far(subtasks[0])}",
                subtasks,
            )
        self._observe("restoring", **self._preparation.facts)

    def _wait(self) -> None:
        if self._ended is not None:
            return
        try:
            due = min(self._attempt.due_at, self._drift.due)
            event = self._events.get(timeout=min(max(due - time.monotonic(), 0.0005), _LOOK))
        except queue.Empty:
            return
        self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case StopRequested():
                self._learn(facts.Stop())
            case StopExpired():
                raise Interrupted(
                    "stopped before the last checkpoint was committed; nothing is lost, the next start continues there"
                )
            case WorkerEnded(pid=pid, how=how) if (subtask := self._crew.subtask_of(pid)) is not None:
                self._learn(facts.Died(subtask, f"worker {pid} {how}"))
            case BackgroundDone() | SplitsDiscovered() | Broken() if event.term != self._session:
                return  # an earlier attempt began it; recovery has decided what became of it
            case SplitsDiscovered(known=known, found=found):
                self._discovered(known, found)
            case Broken(error=Exception() as error):
                raise error
            case Broken(error=error):  # SystemExit ends a thread there, and must not end the job without a word
                raise RuntimeError(f"{type(error).__name__} {error}, raised beside the main thread") from error
            case BackgroundDone(fact=fact):
                self._learn(fact)
            case Heard(message=Pulse(session=session, standing=standing, at=at), pid=pid):
                if session == self._session and (subtask := self._crew.subtask_of(pid)) is not None:
                    self._learn(facts.Pulse(subtask, standing, at))
            case Heard(message=message, pid=pid) if (subtask := self._crew.subtask_of(pid)) is not None:
                self._learn(facts.Heard(subtask))
                self._hear(message, subtask)

    def _hear(self, message: ToSupervisor, subtask: int) -> None:
        match message:
            case Failed() if message.session in (0, self._session):
                raise _as_exception(message)
            case _ if message.session != self._session:
                return
            case Restoring(restored=restored):
                self._preparation.restored(subtask, restored, time.monotonic())
            case Ready():
                self._preparation.ready(subtask)
                self._learn(facts.Ready(subtask))
            case Ack():
                if self._answers.add(message, subtask):
                    hit("coordinator.ack")
                    self._learn(facts.Acked(message.epoch, subtask))
            case Decline(epoch=epoch, reason=reason):
                self._learn(facts.Declined(epoch, subtask, reason))
            case ConfirmAbort(epoch=epoch):
                self._learn(facts.AbortConfirmed(epoch, subtask))
            case Progress(figures=figures):
                self._told[subtask] = figures
                self._tell_progress()
            case SlowestHere(slowest=slowest):
                self._drift = self._drift.on(subtask, slowest, time.monotonic())
            case Counted(round=number, idle=idle, sent=sent, processed=processed):
                self._learn(facts.Counted(number, subtask, Counts(idle, sent, processed)))
            case Reached():
                self._learn(facts.Reached(subtask))

    def _tell_drift(self, now: float) -> None:
        self._drift, words = self._drift.words(now)
        for worker in self._crew.workers:
            if worker.subtask in words:
                worker.tell(control.SlowestElsewhere(session=self._session, slowest=dict(words[worker.subtask])))

    def _tell_who_is_still(self, now: float) -> None:
        """Once an attempt: a job whose batches take long is no news each time."""
        still = self._attempt.still(now - self._worker_timeout * _WONDER)
        for subtask in sorted(still - self._wondered):
            self._tell_where(subtask, now)
        self._wondered |= still

    def _tell_where(self, subtask: int, now: float) -> None:
        """Of a worker that takes no step, and has not ended."""
        worker, how = self._crew.worker(subtask), self._attempt.how(subtask, now)
        if worker.alive:
            who = {"worker": subtask, "process": worker.pid, "seconds": round(how.seconds, 1)}
            if how.alive:
                self._observe("hung", **who, place=how.at or "no operator", stacks=worker.stacks())
            else:
                self._observe("silent", **who, stacks=worker.stacks())

    def _tell_progress(self) -> None:
        self._observe("progress", **together([self._told.get(w.subtask, NOTHING) for w in self._crew.workers]))

    # ------------------------------------------------------------ actions

    def _carry_out(self, action: Action) -> None:
        match action:
            case do.Begin():
                self._begin()
            case do.Trigger(epoch, kind):
                self._trigger(epoch, kind)
            case do.Abort():
                self._abort(action)
            case do.Decide():
                self._decide(action)
            case do.Commit():
                self._beside.commit(self._manifest)
            case do.Notify(epoch, seconds):
                self._notify(epoch, seconds)
            case do.Sweep():
                self._beside.sweep()
            case do.Halt():
                self._crew.tell(control.Halt(session=self._session))
            case do.Count(number):
                self._crew.tell(control.Count(session=self._session, round=number))
            case do.GoOn():
                self._crew.tell(control.GoOn(session=self._session))
            case do.Discover():
                self._beside.discover({source: dict(positions) for source, positions in self._known.items()})
            case do.Replace(why, suspects) if suspects:
                for subtask in sorted(suspects):
                    self._tell_where(subtask, time.monotonic())
                raise self._crew.lost(why, suspects)
            case do.Replace(why):
                raise RestartFromCheckpoint(why)
            case do.End(how):
                self._end(how)
            case do.Answer():
                raise Bug("a request is answered by an epoch of its own where epochs are barriers")

    def _begin(self) -> None:
        self._crew.tell(control.Begin(session=self._session))
        base, pids = self._resumed.base.epoch.n, self._crew.pids
        self._observe("running", term=self._session, base=base, workers=pids, parallelism=len(pids))

    def _trigger(self, epoch: EpochId, kind: Kind) -> None:
        self._answers.triggered(epoch)
        self._observe("triggered", epoch=epoch.epoch.n)
        if kind.serves:
            self._desk.begun(epoch)
        last, aligned = kind is Kind.LAST, kind.drains
        self._crew.tell(control.Trigger(session=self._session, epoch=epoch, last=last, aligned=aligned))

    def _abort(self, abort: do.Abort) -> None:
        self._answers.drop(abort.epoch)
        self._observe("notice", text=f"{abort.why}; its output goes into the next one")
        self._observe("given-up", epoch=abort.epoch.epoch.n, term=self._session)
        self._crew.tell(control.Abort(session=self._session, epoch=abort.epoch))
        self._desk.given_up(abort)

    def _decide(self, decision: do.Decide) -> None:
        hit("coordinator.acked")
        spans = self._answers.spans(decision.epoch)
        acked, shown = self._answers.take(decision)
        for source, positions in acked.positions.items():
            # What is verified from now on: retention may pass what has been read.
            self._known[source].update(positions)
        self._decided = self._coordinator.decide(decision.epoch, acked)
        if self._decided.in_flight:
            hit("in-flight.decided")
        self._observe("phases", epoch=self._decided.epoch, spans=spans)
        self._observe("decided", epoch=self._decided.epoch, **shown)
        self._let_go_on()

    def _let_go_on(self) -> None:
        """Sources that wait for nothing any more in the epoch that was decided are read from now on."""
        held = self._held.decided(self._meets, self._known)
        if held == self._held:
            return
        hit("bootstrap.done")
        self._held = held
        self._tell_who_waits(self._known)
        self._crew.tell(control.Waiting(session=self._session, sources=held.waiting, silent=held.silent))
        if not held.waiting:
            self._events.put(BackgroundDone(self._session, facts.Filled()))

    def _tell_who_waits(self, positions: Mapping[str, Positions]) -> None:
        if self._meets:
            self._observe("tables", waiting=bootstrap.missing(self._meets, positions))

    def _notify(self, epoch: EpochId, seconds: float) -> None:
        manifest = self._manifest
        self._observe("committed", seconds=seconds, **figures_of(manifest, self._beside.finished))
        self._crew.tell(control.Notify(session=self._session, epoch=epoch))
        # After what may end the attempt: the next one would not know of a stop that is answered.
        self._desk.committed(manifest)

    def _end(self, how: Ending) -> None:
        if how is Ending.AS_IT_IS:
            self._desk.ended()
            raise Interrupted("ended on request, without a last checkpoint; the next start continues at the one before")
        self._ended = how

    @property
    def _manifest(self) -> Manifest:
        assert self._decided is not None  # Decide comes before Commit, and Commit before Notify
        return self._decided

    # ------------------------------------------------------------ splits

    def _discovered(self, known: Mapping[str, Positions], found: Mapping[str, Positions] | InputLost) -> None:
        match found:
            case InputLost() if known == self._known:
                raise found
            case InputLost():
                pass  # about positions that the job has left behind meanwhile; the next search has newer ones
            case _:
                self._assign(found)
        self._learn(facts.Found())

    def _assign(self, found: Mapping[str, Positions]) -> None:
        for source, positions in found.items():
            new = {split: at for split, at in positions.items() if split not in self._known[source]}
            if new:
                self._known[source].update(new)
                self._observe("splits", source=source, splits=sorted(new))
                self._crew.assign(self._session, source, new)


def _as_exception(failed: Failed) -> Exception:
    match failed.kind:
        case "user":
            return RefusedElsewhere(failed.error, failed.reason, failed.operator, failed.where)
        case "fatal" if failed.error == Fatal.__name__:
            return Fatal(failed.reason)
        case "fatal":
            return Fatal(f"{failed.error}: {failed.reason}\n{failed.details}")
        case "environment":
            return EnvironmentFailed(failed.reason)
        case _:
            return RestartFromCheckpoint(f"{failed.error}: {failed.reason}")
