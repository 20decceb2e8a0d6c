"""One attempt on the embedded engine: one term, one session of each worker, until it stops or fails.

``protocol.attempt`` decides. Here everything that happens (worker messages, finished commits, stop requests) arrives in
one queue, is handled by one thread, and becomes an event of the state machine; then the resulting actions are executed.
Calls that may wait for a server run on other threads (``background_work``), so that an outage does not block the
supervisor. An epoch passes from top to bottom: ``_trigger``, the acknowledgements in ``_on_message``, ``_decide``,
``_commit``, ``_notify``.
Rule: actions are executed in order, and an action that fails ends the attempt.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from heapq import nsmallest

from msgspec.structs import replace

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.request_queue import RequestHandler
from kafka_eos.core.errors import (
    CorruptCheckpoint,
    EnvironmentFailed,
    Fatal,
    InputLost,
    RestartFromCheckpoint,
    Retryable,
    WorkersChanged,
)
from kafka_eos.core.failure_causes import RemoteUserError
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.embedded.ack_collector import EpochAcks
from kafka_eos.embedded.background_work import BackgroundWork
from kafka_eos.embedded.supervisor_events import (
    BackgroundDone,
    BackgroundFailed,
    PoolFailed,
    SplitsDiscovered,
    StopRequested,
    StopTimedOut,
    SupervisorEvent,
    WorkerExited,
    WorkerMessage,
)
from kafka_eos.embedded.worker_pool import WorkerGroup, WorkerPool
from kafka_eos.embedded.worker_startup import RestoreMonitor
from kafka_eos.protocol import actions as do
from kafka_eos.protocol import events as facts
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.protocol.actions import AttemptAction, JobOutcome
from kafka_eos.protocol.attempt import Attempt, Phase
from kafka_eos.protocol.checkpoint_schedule import EpochKind
from kafka_eos.protocol.cleanup_schedule import CleanupSchedule
from kafka_eos.protocol.engine_policy import AttemptPolicy
from kafka_eos.protocol.events import AttemptEvent
from kafka_eos.protocol.quiescence import FrameCounts
from kafka_eos.protocol.split_assignment import select_positions
from kafka_eos.protocol.watermark_alignment import AlignmentRounds, SlowestSplits
from kafka_eos.runtime.epoch_reports import CommitResult, RestorePoint, commit_metrics
from kafka_eos.runtime.worker import control_messages as control
from kafka_eos.runtime.worker.control_messages import (
    AcknowledgeCheckpoint,
    ConfirmAbort,
    DeclineCheckpoint,
    FramesCounted,
    LocalSlowest,
    RestoreReport,
    SessionFailed,
    SessionReachedEnds,
    SessionReady,
    ToSupervisor,
    WorkerHeartbeat,
    WorkerProgress,
)
from kafka_eos.runtime.worker.task_stats import NOTHING, WorkerMetrics, merge
from kafka_eos.storage.job_records import Manifest

_LOOK = 0.2
"""Most seconds between two checks of the clock and of requests."""
_DEAF_AFTER = 1.0
"""Seconds between ticks after which this process must itself have been stalled."""
_SEARCH_INTERVAL = 10.0
"""Seconds between two searches for output that a process of an earlier term has opened since recovery."""
_HUNG_AFTER = 0.25
"""Fraction of worker_timeout after which a worker without progress is reported as hung."""


class AttemptRunner:
    """One term of a job. ``run`` returns when the job has ended cleanly, and raises the error that ended the
    attempt.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        resumed: RestorePoint,
        pool: WorkerPool,
        observe: Callable[..., None],
        ends: Mapping[str, Positions] | None,
        policy: AttemptPolicy,
        meets: Mapping[str, Collection[str]],
        following: Collection[str],
        request_handler: RequestHandler,
    ) -> None:
        """Create the runner of one attempt. ``meets``, ``following``: see ``plan.Graph``."""
        now = time.monotonic()
        self._coordinator = coordinator
        self._resumed = resumed
        self._pool, self._crew = pool, WorkerGroup(pool.workers)
        self._events = pool.events
        self._observe = observe
        self._ends = ends
        self._request_handler = request_handler
        self._worker_timeout, self._session = policy.stall_timeout, resumed.term.n
        held = bootstrap.WaitingSources.at_start(meets, following, resumed.positions)
        self._attempt = Attempt.of(
            policy,
            EpochId(resumed.first_epoch, resumed.term),
            resumed.base,
            CleanupSchedule(now, _SEARCH_INTERVAL),
            now,
            filling=bool(held.waiting_sources),
        )
        self._meets, self._waiting_sources = meets, held
        self._publish_waiting(resumed.positions)
        self._preparation = RestoreMonitor(self._crew.workers, self._worker_timeout, now)
        self._answers = EpochAcks()
        self._decided: Manifest | None = None
        """The epoch that is committed now."""
        self._committed = CommitResult()
        """The result of the last commit."""
        self._metrics: dict[int, WorkerMetrics] = {}
        self._looked_at, self._reported_hung = now, frozenset[int]()
        self._drift = AlignmentRounds(SlowestSplits.of(self._crew.subtasks))
        self._known = {name: dict(positions) for name, positions in resumed.positions.items()}
        self._background = BackgroundWork(self._session, pool.events)
        self._ended: JobOutcome | None = None

    @property
    def ran(self) -> bool:
        """Return whether all workers were ready at some time. Rows read since are committed, or are read again."""
        return self._attempt.has_started

    def run(self) -> None:
        """Run until the job ends. Raise the error that ends the attempt otherwise."""
        self._pool.start_sessions(self._start_of)
        self._tell_progress()
        try:
            while self._ended is None:
                self._tick()
                self._wait()
        except BaseException:
            # A commit that waits for a server would keep this attempt from ending; recovery commits it.
            self._coordinator.interrupt()
            raise
        finally:
            self._background.close()

    def _start_of(self, subtask: int, peers: tuple[int, ...]) -> control.StartSession:
        resumed, parallelism = self._resumed, len(self._crew.workers)
        return control.StartSession(
            session=self._session,
            identity=resumed.identity.text,
            term=self._session,
            first_epoch=resumed.first_epoch.n,
            subtask=subtask,
            parallelism=parallelism,
            peers=peers,
            positions=select_positions(self._known, subtask, parallelism),
            states=resumed.states,
            in_flight=resumed.in_flight,
            ends=None if self._ends is None else select_positions(self._ends, subtask, parallelism),
            waiting_sources=self._waiting_sources.waiting_sources,
            excluded_sources=self._waiting_sources.ignored_by_watermarks,
        )

    # ------------------------------------------------------------ events

    def _apply(self, fact: AttemptEvent) -> None:
        """Apply an event to the state machine and execute the resulting actions."""
        self._attempt, actions = self._attempt.handle(fact, time.monotonic())
        for action in actions:
            self._execute(action)

    def _tick(self) -> None:
        self._pool.replace_left_out()
        now = time.monotonic()
        if now - self._looked_at > _DEAF_AFTER:
            self._apply(facts.ReceiverStalled(now - self._looked_at))
        self._looked_at = now
        self._send_remote_slowest(now)
        self._report_hung_workers(now)
        if self._attempt.phase is Phase.INITIALIZING:
            self._look_at_restores(now)
            self._apply(facts.Tick())
        else:
            self._request_handler.poll(now)
            self._apply(self._find_requests())

    def _find_requests(self) -> facts.PendingRequests:
        """Return the requests for checkpoints: those of callers, and one before a change of workers."""
        pending = self._request_handler.pending
        if pending.checkpoint is None and self._pool.find_change():
            return replace(pending, checkpoint=EpochKind.REQUESTED)
        return pending

    def _look_at_restores(self, now: float) -> None:
        if stuck := self._preparation.stuck(now):
            subtasks = [worker.subtask for worker in stuck]
            raise self._crew.make_death_error(
                f"restore stuck: no progress for {self._worker_timeout:g} s (worker_timeout): "
                f"{self._crew.named(subtasks)}{self._preparation.describe(subtasks[0])}",
                subtasks,
            )
        self._observe("restoring", **self._preparation.summary)

    def _wait(self) -> None:
        try:
            due = min(self._attempt.next_trigger_at, self._drift.due)
            event = self._events.get(timeout=min(max(due - time.monotonic(), 0.0005), _LOOK))
        except queue.Empty:
            return
        self._handle(event)

    def _handle(self, event: SupervisorEvent) -> None:
        match event:
            case StopRequested():
                self._apply(facts.StopSignalled())
            case StopTimedOut():
                raise RetryInterrupted(
                    "stopped before the last checkpoint was committed; nothing is lost, the next start resumes from it"
                )
            case WorkerExited(worker=number, how=how) if (worker := self._crew.find(number)) is not None:
                self._apply(facts.SubtaskLost(worker.subtask, f"worker {worker.pid} {how}"))
            case PoolFailed(error=error):
                raise error
            case BackgroundDone() | SplitsDiscovered() | BackgroundFailed() if event.term != self._session:
                return  # an earlier attempt started it; recovery has handled its result
            case SplitsDiscovered(found=found):
                self._assign(found)
                self._apply(facts.DiscoveryFinished())
            case BackgroundFailed(error=Exception() as error):
                raise error
            case BackgroundFailed(error=error):  # SystemExit in a background thread must not end the job silently
                raise RuntimeError(f"{type(error).__name__} {error}, raised in a background thread") from error
            case BackgroundDone(fact=fact):
                self._apply(fact)
            case WorkerMessage(message=message, worker=number) if (worker := self._crew.find(number)) is not None:
                self._on_message(message, worker.subtask)

    def _on_message(self, message: ToSupervisor, subtask: int) -> None:
        if isinstance(message, WorkerHeartbeat):
            if message.session == self._session:
                self._apply(facts.HeartbeatReceived(subtask, message.seconds_since_step, message.at))
            return
        self._apply(facts.MessageReceived(subtask))
        match message:
            case SessionFailed() if message.session in (0, self._session):
                raise make_session_error(message)
            case _ if message.session != self._session:
                return
            case RestoreReport(restored=restored):
                self._preparation.record_progress(subtask, restored, time.monotonic())
            case SessionReady():
                self._preparation.ready(subtask)
                self._apply(facts.SubtaskReady(subtask))
            case AcknowledgeCheckpoint():
                if self._answers.add(message, subtask):
                    hit("coordinator.ack")
                    self._apply(facts.EpochAcked(message.epoch, subtask))
            case DeclineCheckpoint(epoch=epoch, reason=reason):
                self._apply(facts.EpochDeclined(epoch, subtask, reason))
            case ConfirmAbort(epoch=epoch):
                self._apply(facts.AbortConfirmed(epoch, subtask))
            case WorkerProgress(figures=figures):
                self._metrics[subtask] = figures
                self._tell_progress()
            case LocalSlowest(slowest=slowest):
                self._drift = self._drift.on(subtask, slowest, time.monotonic())
            case FramesCounted(round=number, idle=idle, sent=sent, processed=processed):
                self._apply(facts.CountsReceived(number, subtask, FrameCounts(idle, sent, processed)))
            case SessionReachedEnds():
                self._apply(facts.EndOfInputReached(subtask))

    def _send_remote_slowest(self, now: float) -> None:
        self._drift, words = self._drift.take_updates(now)
        for worker in self._crew.workers:
            if worker.subtask in words:
                worker.send(control.RemoteSlowest(session=self._session, slowest=dict(words[worker.subtask])))

    def _report_hung_workers(self, now: float) -> None:
        """Report workers that make no progress, each once per attempt."""
        still = self._attempt.stalled_subtasks(now - self._worker_timeout * _HUNG_AFTER)
        for subtask in sorted(still - self._reported_hung):
            self._report_hung_worker(subtask, now)
        self._reported_hung |= still

    def _report_hung_worker(self, subtask: int, now: float) -> None:
        """Report the location where a worker hangs, with its stacks."""
        worker, how = self._crew.worker(subtask), self._attempt.stall_of(subtask, now)
        if worker.alive:
            who = {"worker": subtask, "process": worker.pid, "seconds": round(how.seconds, 1)}
            if how.alive:
                self._observe("hung", **who, place=how.at or "no operator", stacks=worker.stacks())
            else:
                self._observe("unresponsive", **who, stacks=worker.stacks())

    def _tell_progress(self) -> None:
        self._observe("progress", **merge([self._metrics.get(w.subtask, NOTHING) for w in self._crew.workers]))

    # ------------------------------------------------------------ actions

    def _execute(self, action: AttemptAction) -> None:
        match action:
            case do.StartProcessing():
                self._begin()
            case do.TriggerEpoch(epoch, kind):
                self._trigger(epoch, kind)
            case do.AbortEpoch():
                self._abort(action)
            case do.VerifyInput(epoch):
                self._background.submit(partial(self._verify_input, epoch, self._copy_known()))
            case do.DecideEpoch():
                self._decide(action)
            case do.CommitEpoch():
                self._background.submit(partial(self._commit, self._manifest))
            case do.NotifyCommit(epoch, seconds):
                self._notify(epoch, seconds)
            case do.RunCleanup(find_leftovers):
                self._background.submit(partial(self._clean_up, find_leftovers))
            case do.PauseSources():
                self._crew.broadcast(control.PauseReading(session=self._session))
            case do.RequestCounts(number):
                self._crew.broadcast(control.CountFrames(session=self._session, round=number))
            case do.ResumeSources():
                self._crew.broadcast(control.ResumeReading(session=self._session))
            case do.DiscoverSplits():
                self._background.search(partial(self._discover, self._copy_known()))
            case do.ReplaceAttempt(why, suspects) if suspects:
                for subtask in sorted(suspects):
                    self._report_hung_worker(subtask, time.monotonic())
                raise self._crew.make_death_error(why, suspects)
            case do.ReplaceAttempt(why):
                raise RestartFromCheckpoint(why)
            case do.EndWithInputLost(cause, why):
                raise InputLost(why, cause)
            case do.EndJob(how):
                self._end(how)

    def _begin(self) -> None:
        self._crew.broadcast(control.BeginProcessing(session=self._session))
        base, pids = self._resumed.base.epoch.n, self._crew.pids
        self._observe("running", term=self._session, base=base, workers=pids, parallelism=len(pids))

    def _trigger(self, epoch: EpochId, kind: EpochKind) -> None:
        self._answers.open(epoch)
        self._observe("triggered", epoch=epoch.epoch.n)
        if kind.serves_requests:
            self._request_handler.on_triggered(epoch)
        last, aligned = kind is EpochKind.FINAL, kind.must_drain
        self._crew.broadcast(control.TriggerCheckpoint(session=self._session, epoch=epoch, last=last, aligned=aligned))

    def _abort(self, abort: do.AbortEpoch) -> None:
        self._answers.drop(abort.epoch)
        self._observe("notice", text=f"{abort.reason}; its output will be committed with the next epoch")
        self._observe("aborted", epoch=abort.epoch.epoch.n, term=self._session)
        self._crew.broadcast(control.NotifyCheckpointAborted(session=self._session, epoch=abort.epoch))
        self._request_handler.on_aborted(abort)

    def _decide(self, decision: do.DecideEpoch) -> None:
        hit("coordinator.acked")
        spans = self._answers.spans(decision.epoch)
        acked, shown = self._answers.merge(decision)
        for source, positions in acked.positions.items():
            # Verify only these positions from now on: the broker's retention may delete records that were read.
            self._known[source].update(positions)
        self._decided = self._coordinator.epochs.decide(decision.epoch, acked)
        if self._decided.in_flight:
            hit("in-flight.decided")
        self._observe("phases", epoch=self._decided.epoch, spans=spans)
        self._observe("decided", epoch=self._decided.epoch, **shown)
        self._release_sources()

    def _release_sources(self) -> None:
        """Let sources be read whose tables are complete in the decided epoch."""
        held = self._waiting_sources.after_epoch(self._meets, self._known)
        if held == self._waiting_sources:
            return
        hit("bootstrap.done")
        self._waiting_sources = held
        self._publish_waiting(self._known)
        self._crew.broadcast(
            control.SetWaitingSources(
                session=self._session, sources=held.waiting_sources, excluded_sources=held.ignored_by_watermarks
            )
        )
        if not held.waiting_sources:
            self._events.put(BackgroundDone(self._session, facts.BootstrapFinished()))

    def _publish_waiting(self, positions: Mapping[str, Positions]) -> None:
        if self._meets:
            self._observe("tables", waiting=bootstrap.awaited_sources(self._meets, positions))

    def _commit(self, manifest: Manifest) -> SupervisorEvent:
        """Let the sinks commit a decided epoch. Runs in the background."""
        self._committed = self._coordinator.epochs.commit(manifest)
        for failed in self._coordinator.sources.report_offsets(manifest):
            self._observe("notice", text=failed)
        return BackgroundDone(self._session, facts.EpochCommitted(manifest.id))

    def _notify(self, epoch: EpochId, seconds: float) -> None:
        manifest = self._manifest
        self._observe("committed", seconds=seconds, **commit_metrics(manifest, self._committed))
        self._crew.broadcast(control.NotifyCheckpointCommitted(session=self._session, epoch=epoch))
        # Answer last: the calls above may end the attempt, and the next attempt would not know about an answered stop.
        self._request_handler.on_committed(manifest)
        if (change := self._pool.find_change()) and self._attempt.phase is Phase.RUNNING:
            raise WorkersChanged(change)

    def _clean_up(self, find_leftovers: bool) -> SupervisorEvent:
        """Delete files that no checkpoint references, and abort output that workers of earlier terms have opened, if
        asked to. Runs in the background.
        """
        if find_leftovers:
            try:
                self._coordinator.abort_late_leftovers()
            except Retryable as error:
                self._observe("notice", text=f"could not look for left-over output: {error}")
        self._coordinator.drop_old_epochs()
        return BackgroundDone(self._session, facts.CleanupFinished())

    def _end(self, how: JobOutcome) -> None:
        if how is JobOutcome.CANCELLED:
            self._request_handler.on_job_end()
            raise RetryInterrupted(
                "stopped on request without a last checkpoint; the next start resumes from the previous one"
            )
        self._ended = how

    @property
    def _manifest(self) -> Manifest:
        assert self._decided is not None  # DecideEpoch precedes CommitEpoch, and that NotifyCommit
        return self._decided

    # ------------------------------------------------------------ input

    def _verify_input(self, epoch: EpochId, read: Mapping[str, Positions]) -> SupervisorEvent:
        """Check that no input was replaced. Runs in the background."""
        try:
            self._coordinator.sources.ensure_same_input(read)
        except InputLost as error:
            return BackgroundDone(self._session, facts.InputLossFound(error.cause, str(error)))
        return BackgroundDone(self._session, facts.InputVerified(epoch))

    def _discover(self, known: Mapping[str, Positions]) -> SupervisorEvent:
        """Look for splits that are not known yet. Runs in the background."""
        try:
            return SplitsDiscovered(self._session, self._coordinator.sources.discover_splits(known))
        except InputLost as error:
            return BackgroundDone(self._session, facts.InputLossFound(error.cause, str(error)))

    def _copy_known(self) -> dict[str, Positions]:
        """Return the positions for another thread."""
        return {source: dict(positions) for source, positions in self._known.items()}

    def _assign(self, found: Mapping[str, Positions]) -> None:
        for source, positions in found.items():
            new = {split: at for split, at in positions.items() if split not in self._known[source]}
            if new:
                self._known[source].update(new)
                named = nsmallest(LIMITS.new_splits_named, new)
                self._observe("splits", source=source, count=len(new), splits=named)
                self._crew.assign(self._session, source, new)


def make_session_error(failed: SessionFailed) -> Exception:
    """Return the error that a failed session means for its attempt."""
    match failed.kind:
        case "user":
            return RemoteUserError(failed.error, failed.reason, failed.operator, failed.where)
        case "fatal" if failed.error == Fatal.__name__:
            return Fatal(failed.reason)
        case "fatal" if failed.error == CorruptCheckpoint.__name__:
            return CorruptCheckpoint(failed.reason)
        case "fatal":
            return Fatal(f"{failed.error}: {failed.reason}\n{failed.details}")
        case "environment":
            return EnvironmentFailed(failed.reason)
        case _:
            return RestartFromCheckpoint(f"{failed.error}: {failed.reason}")
