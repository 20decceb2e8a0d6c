"""One attempt of a worker: from a decided epoch until the supervisor ends the session.

A single thread reads batches, pushes them through the operators and writes the results; between two batches it handles
control messages. A second one sends heartbeats. At a barrier the first does only what must happen in order (positions,
flush of the state cache, sealing the writers); uploads and pre-commits run on one background thread while the next
epoch is processed.

Rule: every effect of a session is invisible until the supervisor decides. A session never undoes anything: it releases
its resources, and recovery decides about its output.
"""

from __future__ import annotations

import functools
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from pathlib import Path
from typing import Literal, TypeAlias

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.committer import Committable
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.core.error_messages import explain_failure, format_traceback
from kafka_eos.core.errors import EnvironmentFailed, Fatal, InputLost, TransientConfigError, UserError
from kafka_eos.core.failure_causes import failing_record
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import RecordCounts
from kafka_eos.protocol.input_loss import LossResponse, respond
from kafka_eos.runtime.epoch_reports import PhaseSpan, sum_by_name
from kafka_eos.runtime.worker.chain_snapshot import ChainSnapshot
from kafka_eos.runtime.worker.control_messages import (
    AcknowledgeCheckpoint,
    AssignSplits,
    BeginProcessing,
    ConfirmAbort,
    ControlMessage,
    CountFrames,
    DeclineCheckpoint,
    EndSession,
    FramesCounted,
    LocalSlowest,
    NotifyCheckpointAborted,
    NotifyCheckpointCommitted,
    PauseReading,
    RemoteSlowest,
    ResumeReading,
    SealedOutput,
    SessionFailed,
    SessionReachedEnds,
    SessionReady,
    SetWaitingSources,
    StartSession,
    ToWorker,
    TriggerCheckpoint,
    WorkerProgress,
)
from kafka_eos.runtime.worker.liveness_pulse import HeartbeatThread
from kafka_eos.runtime.worker.local_state import remove_older_state
from kafka_eos.runtime.worker.worker_runtime import SessionRuntime
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage.upload_batch import UploadBatch

_IDLE_POLL = 0.02
"""Seconds to wait for input when there is none; also the maximum delay of a barrier."""
_PROGRESS_EVERY = 0.5
_LOST_AFTER = 5.0
"""Seconds after which a session ends whose connection to another worker has broken."""
_DRIFT_EVERY = 0.05
"""Minimum of seconds between two reports of the slowest splits."""


Inbox: TypeAlias = "queue.SimpleQueue[ToWorker]"
OnCaptured: TypeAlias = Callable[[int, Sequence[ChainSnapshot]], None]
"""Called with an epoch that every operator chain has captured, and their snapshots."""


def run_session(
    open_plan: Callable[[OnCaptured], SessionRuntime],
    batch_size: int,
    storage: CheckpointStorage,
    start: StartSession,
    send: Callable[[ControlMessage], None],
    local: Sequence[Path],
    inbox: Inbox,
) -> None:
    """Restore and process until the session is ended, or until it fails, which is reported."""
    try:
        for directory in local:
            remove_older_state(directory, start.term, kept=1)
        session = WorkerSession(batch_size, storage, start, send)
        with closing(open_plan(session.acknowledge)) as opened:
            for directory in local:
                remove_older_state(directory, start.term, kept=0)
            hit("recovery.opened")
            send(SessionReady(session=start.session))
            session.run(opened, inbox)
    except Exception as error:  # noqa: BLE001 - reported to the supervisor, which decides
        send(failure(start.session, error))


class WorkerSession:
    """The main loop of one session: handles control messages, processes rows, acknowledges checkpoints."""

    _opened: SessionRuntime

    def __init__(
        self, batch_size: int, storage: CheckpointStorage, start: StartSession, send: Callable[[ControlMessage], None]
    ) -> None:
        self._batch_size = batch_size
        self._storage = storage
        self._start = start
        self._send = send
        self._background = ThreadPoolExecutor(1, thread_name_prefix="pre-commit")
        self._uncommitted: dict[Epoch, list[Committable]] = {}
        """Prepared output that is not known to be committed. Only the background thread touches it."""
        self._progress_at = self._drift_at = 0.0
        self._last: Epoch | None = None
        """The epoch behind which nothing is read."""
        self._reached = start.ends is None

    def run(self, opened: SessionRuntime, inbox: Inbox) -> None:
        """Wait until all workers are ready, then process until the session is ended.

        Output that a worker writes before the others are ready cannot be committed, and its transaction would age
        during their restore.
        """
        self._opened = opened
        try:
            if isinstance(inbox.get(), BeginProcessing):
                opened.resume()
                work = copy_context()
                with HeartbeatThread(self._send, self._start.session, work) as beating:
                    work.run(self._loop, inbox, beating.step)
        finally:
            self._background.shutdown(wait=True, cancel_futures=True)

    def _loop(self, inbox: Inbox, stepped: Callable[[], None]) -> None:
        reading = True
        while True:
            stepped()
            opened = self._opened
            while (
                message := _next(inbox, wait=not (reading or opened.has_exchanges or opened.has_due_work))
            ) is not None:
                match message:
                    case EndSession():
                        return
                    case TriggerCheckpoint(epoch=epoch, last=last, aligned=aligned):
                        self._last = epoch.epoch if last else None
                        self._opened.trigger(epoch, aligned)
                        reading = reading and not last
                    case NotifyCheckpointCommitted(epoch=epoch):
                        hit("worker.complete")
                        self._opened.completed(epoch)
                        self._background.submit(self._forget_committed, epoch)
                    case NotifyCheckpointAborted(epoch=epoch):
                        self._abort(epoch)
                    case PauseReading():
                        reading = False
                    case ResumeReading():
                        reading = True
                    case CountFrames(round=number):
                        self._count(number)
                    case SetWaitingSources(sources=sources, excluded_sources=silent):
                        self._opened.waiting_sources, self._opened.excluded_sources = sources, silent
                    case RemoteSlowest(slowest=slowest):
                        self._opened.drift.set_remote_slowest(slowest)
                    case AssignSplits(source=source, positions=positions):
                        self._opened.assign(source, positions)
            if reading:
                self._opened.step(self._batch_size, _IDLE_POLL)
            else:
                self._opened.drain(_IDLE_POLL)
            self._report()

    def _count(self, number: int) -> None:
        opened = self._opened
        counted = FramesCounted(
            session=self._start.session,
            round=number,
            idle=opened.idle,
            sent=opened.exchanges.frames_sent,
            processed=opened.exchanges.frames_processed,
        )
        self._send(counted)

    def acknowledge(self, epoch: int, captured: Sequence[ChainSnapshot]) -> None:
        """Make the captured parts durable in the background, and acknowledge them.

        If the output cannot be pre-committed, the attempt ends, because its rows must be read again. If the state
        cannot be stored, only this checkpoint fails: the next one may succeed.
        """
        name = EpochId(Epoch(epoch), Term(self._start.term))
        watermarks = self._opened.watermarks()
        if name.epoch == self._last:
            # before the acknowledgement, after which the supervisor may end the session: counts all rows
            self._tell_figures()

        def answer() -> AcknowledgeCheckpoint | DeclineCheckpoint:
            self._uncommitted.setdefault(name.epoch, []).extend(
                committable for part in captured for prepare in part.precommits for committable in prepare()
            )
            try:
                return acknowledged()
            except OSError as error:
                return DeclineCheckpoint(
                    session=self._start.session, epoch=name, reason=str(error) or type(error).__name__
                )
            finally:
                for part in captured:
                    part.drop()

        def acknowledged() -> AcknowledgeCheckpoint:
            began = time.time()
            batch = UploadBatch(self._storage)
            states = [upload.add_to(batch) for part in captured for upload in part.uploads]
            in_flight = [get_rows for part in captured for get_rows in self._opened.add_in_flight(batch, part)]
            batch.store()
            spans = [span for part in captured for span in part.spans]
            spans += [span for part in captured for prepare in part.precommits for span in prepare.spans]
            for of, kept in self._uncommitted.items():
                self._uncommitted[of] = [provenance.store_provenance(self._storage, of, each) for each in kept]
            return AcknowledgeCheckpoint(
                session=self._start.session,
                epoch=name,
                positions={source: at for part in captured for source, at in part.positions.items()},
                sealed=tuple(
                    SealedOutput(of, tuple(kept)) for of, kept in sorted(self._uncommitted.items()) if of <= name.epoch
                ),
                states=tuple(get_handle() for get_handle in states),
                in_flight=tuple(get_rows() for get_rows in in_flight),
                tally=functools.reduce(RecordCounts.plus, (part.tally for part in captured), RecordCounts()),
                watermarks=watermarks,
                blocked_ms=sum(part.blocked for part in captured) * 1000,
                aligning_ms=max(part.aligning for part in captured) * 1000,
                timers=sum_by_name(part.timers for part in captured),
                has_overdue_request=any(part.has_overdue_request for part in captured),
                spans=(*spans, PhaseSpan("upload", began, time.time())),
            )

        self._background.submit(self._say_result, answer)

    def _abort(self, epoch: EpochId) -> None:
        """Pre-commit the output of an aborted epoch, which becomes part of the next one. Then confirm the abort.

        All uploads of the epoch have finished then: the background thread runs one task after the other.
        """
        precommits = self._opened.abort(epoch)

        def prepare() -> None:
            kept = self._uncommitted.setdefault(epoch.epoch, [])
            kept.extend(committable for prepare in precommits for committable in prepare())
            self._send(ConfirmAbort(session=self._start.session, epoch=epoch))

        self._background.submit(self._run_or_fail, prepare)

    def _forget_committed(self, epoch: EpochId) -> None:
        """Forget committables up to a committed epoch."""
        self._uncommitted = {of: kept for of, kept in self._uncommitted.items() if of > epoch.epoch}

    def _say_result(self, answer: Callable[[], AcknowledgeCheckpoint | DeclineCheckpoint]) -> None:
        def say() -> None:
            message = answer()
            hit("worker.ack.before")
            self._send(message)
            hit("worker.ack.after")

        self._run_or_fail(say)

    def _run_or_fail(self, work: Callable[[], None]) -> None:
        """Run background work; report SessionFailed if it raises."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - reported to the supervisor, which decides
            self._send(failure(self._start.session, error))

    def _report(self) -> None:
        now = time.monotonic()
        if not self._reached and self._start.ends is not None and self._opened.has_reached(self._start.ends):
            self._reached = True
            self._send(SessionReachedEnds(session=self._start.session))
        if now - self._drift_at >= _DRIFT_EVERY:
            self._drift_at = now
            if (news := self._opened.drift.take_changes()) is not None:
                self._send(LocalSlowest(session=self._start.session, slowest=dict(news)))
        if now - self._progress_at >= _PROGRESS_EVERY:
            self._progress_at = now
            self._expect_peers(now)
            self._opened.poll_writers()
            self._tell_figures()

    def _expect_peers(self, now: float) -> None:
        """Raise EnvironmentFailed if a connection to another worker has broken and no supervisor has ended the session.

        If the other worker has died or failed, the supervisor ends the session, and knows a better reason.
        """
        if (peer := self._opened.exchanges.find_lost_peer(now - _LOST_AFTER)) is not None:
            raise EnvironmentFailed(
                f"the connection to worker {peer} broke, but that worker still runs: the network between them failed"
            )

    def _tell_figures(self) -> None:
        self._send(WorkerProgress(session=self._start.session, figures=self._opened.figures()))


def _next(inbox: Inbox, wait: bool) -> ToWorker | None:
    """Return the next message, if any; with ``wait``, block as long as heartbeats allow."""
    try:
        return inbox.get(wait, _PROGRESS_EVERY)
    except queue.Empty:
        return None


def failure(session: int, error: BaseException) -> SessionFailed:
    """Build the report of an exception that ended a session."""
    return SessionFailed(
        session=session,
        kind=_kind(error),
        error=type(error).__name__,
        reason=explain_failure(error),
        details=format_traceback(error),
        **failing_record(error),
    )


def _kind(error: BaseException) -> Literal["restart", "environment", "user", "fatal"]:
    match error:
        case EnvironmentFailed() | TransientConfigError():
            return "environment"
        case InputLost(cause=cause) if respond(cause, read_since=False) is LossResponse.RESTART_ATTEMPT:
            return "restart"
        case UserError():
            return "user"
        case Fatal():
            return "fatal"
        case _:
            return "restart"
