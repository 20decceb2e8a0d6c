"""One attempt of a worker: from a decided epoch until told to begin again.

A single thread reads batches, pushes them through the operators and writes the results; between two batches it
obeys the supervisor. A second one tells that the process lives, and how long ago the first took a step. At a barrier
the first does only what must happen in order (positions, flush of the state cache, sealing the writers); uploads and
pre-commits run on one background thread while the next epoch is processed.

Rule: every effect of a session is invisible until the supervisor decides. A session never undoes anything:
it lets go, and recovery decides what becomes of it.
"""

from __future__ import annotations

import functools
import queue
import shutil
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from pathlib import Path
from typing import Literal, TypeAlias

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.committer import Committable
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.core.errors import EnvironmentFailed, Fatal, LoginRefused, UserError
from kafka_eos.core.failure_causes import record_of
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import Tally
from kafka_eos.runtime.epoch_reports import Span, summed
from kafka_eos.runtime.worker.control_messages import (
    Abort,
    Ack,
    Assign,
    Begin,
    ConfirmAbort,
    Count,
    Counted,
    Decline,
    Drop,
    Failed,
    GoOn,
    Halt,
    Message,
    Notify,
    Progress,
    Reached,
    Ready,
    Sealed,
    SlowestElsewhere,
    SlowestHere,
    Start,
    ToWorker,
    Trigger,
    Waiting,
    send,
)
from kafka_eos.runtime.worker.liveness_pulse import Beating
from kafka_eos.runtime.worker.segment_task import Captured
from kafka_eos.runtime.worker.worker_runtime import OpenPlan
from kafka_eos.storage import provenance_files as provenance

_IDLE_POLL = 0.02
"""Seconds to wait for input when there is none; also how late a barrier can be noticed."""
_PROGRESS_EVERY = 0.5
_DRIFT_EVERY = 0.05
"""Seconds between two words about how far the slowest splits are, at least."""


class Mouth:
    """The worker's side of the control socket for sending, from more than one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._lock = sock, threading.Lock()

    def say(self, message: Message) -> None:
        with self._lock:
            send(self._sock, message)


Inbox: TypeAlias = "queue.SimpleQueue[tuple[ToWorker, list[socket.socket]]]"
Done: TypeAlias = Callable[[int, Sequence[Captured]], None]
"""Called with the number of an epoch to which every segment of the worker has come, and what they captured."""


def run_session(
    open_plan: Callable[[Done], OpenPlan],
    batch_size: int,
    storage: CheckpointStorage,
    start: Start,
    mouth: Mouth,
    local: Sequence[Path],
    inbox: Inbox,
) -> None:
    """Restore and process until told to drop it, or until it fails, which is reported."""
    try:
        for directory in local:
            _only_directory(directory, keep=str(start.term))
        session = Session(batch_size, storage, start, mouth)
        with closing(open_plan(session.acknowledge)) as opened:
            hit("recovery.opened")
            mouth.say(Ready(session=start.session))
            session.run(opened, inbox)
    except Exception as error:  # noqa: BLE001 - reported to the supervisor, which decides
        mouth.say(failure(start.session, error))


class Session:
    """The loop of one session over an open plan."""

    _opened: OpenPlan

    def __init__(self, batch_size: int, storage: CheckpointStorage, start: Start, mouth: Mouth) -> None:
        self._batch_size, self._storage, self._start, self._mouth = batch_size, storage, start, mouth
        self._background = ThreadPoolExecutor(1, thread_name_prefix="pre-commit")
        self._undecided: dict[Epoch, list[Committable]] = {}
        """Prepared output that is not known to be committed. Only the background thread touches it."""
        self._progress_at = self._drift_at = 0.0
        self._last: Epoch | None = None
        """The epoch behind which nothing is read."""
        self._reached = start.ends is None

    def run(self, opened: OpenPlan, inbox: Inbox) -> None:
        """Wait until all workers are ready, then process until told to drop it.

        Of what one wrote meanwhile nothing could be committed, and its transaction would grow old over the restore of
        another.
        """
        self._opened = opened
        try:
            if isinstance(inbox.get()[0], Begin):
                opened.resume()
                work = copy_context()
                with Beating(self._mouth.say, self._start.session, work) as beating:
                    work.run(self._loop, inbox, beating.step)
        finally:
            self._background.shutdown(wait=True, cancel_futures=True)

    def _loop(self, inbox: Inbox, stepped: Callable[[], None]) -> None:
        reading = True
        while True:
            stepped()
            opened = self._opened
            while (message := _next(inbox, wait=not (reading or opened.connected or opened.due))) is not None:
                match message:
                    case Drop():
                        return
                    case Trigger(epoch=epoch, last=last, aligned=aligned):
                        self._last = epoch.epoch if last else None
                        self._opened.trigger(epoch, aligned)
                        reading = reading and not last
                    case Notify(epoch=epoch):
                        hit("worker.complete")
                        self._opened.completed(epoch)
                        self._background.submit(self._taken, epoch)
                    case Abort(epoch=epoch):
                        self._give_up(epoch)
                    case Halt():
                        reading = False
                    case GoOn():
                        reading = True
                    case Count(round=number):
                        self._count(number)
                    case Waiting(sources=sources, silent=silent):
                        self._opened.waiting, self._opened.silent = sources, silent
                    case SlowestElsewhere(slowest=slowest):
                        self._opened.drift.hear(slowest)
                    case Assign(source=source, positions=positions):
                        self._opened.assign(source, positions)
            if reading:
                self._opened.advance(self._batch_size, _IDLE_POLL)
            else:
                self._opened.work(_IDLE_POLL)
            self._report()

    def _count(self, number: int) -> None:
        opened = self._opened
        counted = Counted(
            session=self._start.session,
            round=number,
            idle=opened.idle,
            sent=opened.exchanges.sent,
            processed=opened.exchanges.received,
        )
        self._mouth.say(counted)

    def acknowledge(self, epoch: int, captured: Sequence[Captured]) -> None:
        """Make what the segments captured durable, beside the processing, and tell the supervisor.

        Without the output the rows behind it would have to be read again: if it cannot be prepared, the attempt ends.
        Without the state there is no checkpoint, and no more than that: the next one may succeed.
        """
        name = EpochId(Epoch(epoch), Term(self._start.term))
        watermarks = self._opened.watermarks()
        if name.epoch == self._last:
            self._tell_figures()  # before the answer, with which the supervisor may end: of all rows that came

        def answer() -> Ack | Decline:
            self._undecided.setdefault(name.epoch, []).extend(
                committable for part in captured for prepare in part.precommits for committable in prepare()
            )
            try:
                return acknowledged()
            except OSError as error:
                return Decline(session=self._start.session, epoch=name, reason=str(error) or type(error).__name__)
            finally:
                for part in captured:
                    part.drop()

        def acknowledged() -> Ack:
            began = time.time()
            states = tuple(upload(self._storage) for part in captured for upload in part.uploads)
            in_flight = tuple(kept for part in captured for kept in self._opened.store(part))
            spans = [span for part in captured for span in part.spans]
            spans += [span for part in captured for prepare in part.precommits for span in prepare.spans]
            for of, kept in self._undecided.items():
                self._undecided[of] = [provenance.stored(self._storage, of, each) for each in kept]
            return Ack(
                session=self._start.session,
                epoch=name,
                positions={source: at for part in captured for source, at in part.positions.items()},
                sealed=tuple(
                    Sealed(of, tuple(kept)) for of, kept in sorted(self._undecided.items()) if of <= name.epoch
                ),
                states=states,
                in_flight=in_flight,
                tally=functools.reduce(Tally.plus, (part.tally for part in captured), Tally()),
                watermarks=watermarks,
                blocked_ms=sum(part.blocked for part in captured) * 1000,
                aligning_ms=max(part.aligning for part in captured) * 1000,
                timers=summed(part.timers for part in captured),
                unanswered=any(part.unanswered for part in captured),
                spans=(*spans, Span("upload", began, time.time())),
            )

        self._background.submit(self._say_result, answer)

    def _give_up(self, epoch: EpochId) -> None:
        """Prepare the output of an aborted epoch all the same: its rows will not be read again. Then confirm the abort.

        What is uploaded of the epoch is uploaded by then: the background thread does one thing after the other.
        """
        precommits = self._opened.abort(epoch)

        def prepare() -> None:
            kept = self._undecided.setdefault(epoch.epoch, [])
            kept.extend(committable for prepare in precommits for committable in prepare())
            self._mouth.say(ConfirmAbort(session=self._start.session, epoch=epoch))

        self._background.submit(self._reporting, prepare)

    def _taken(self, epoch: EpochId) -> None:
        """An epoch is committed, and with it all output up to it."""
        self._undecided = {of: kept for of, kept in self._undecided.items() if of > epoch.epoch}

    def _say_result(self, answer: Callable[[], Ack | Decline]) -> None:
        def say() -> None:
            said = answer()
            hit("worker.ack.before")
            self._mouth.say(said)
            hit("worker.ack.after")

        self._reporting(say)

    def _reporting(self, work: Callable[[], None]) -> None:
        """Background work; if it fails, the session does."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - reported to the supervisor, which decides
            self._mouth.say(failure(self._start.session, error))

    def _report(self) -> None:
        now = time.monotonic()
        if not self._reached and self._start.ends is not None and self._opened.reached(self._start.ends):
            self._reached = True
            self._mouth.say(Reached(session=self._start.session))
        if now - self._drift_at >= _DRIFT_EVERY:
            self._drift_at = now
            if (news := self._opened.drift.news()) is not None:
                self._mouth.say(SlowestHere(session=self._start.session, slowest=dict(news)))
        if now - self._progress_at >= _PROGRESS_EVERY:
            self._progress_at = now
            self._opened.attend()
            self._tell_figures()

    def _tell_figures(self) -> None:
        self._mouth.say(Progress(session=self._start.session, figures=self._opened.figures()))


def _next(inbox: Inbox, wait: bool) -> ToWorker | None:
    """What was said, if anything was; with ``wait``, for as long as nobody wonders whether this worker lives."""
    try:
        return inbox.get(wait, _PROGRESS_EVERY)[0]
    except queue.Empty:
        return None


def failure(session: int, error: BaseException) -> Failed:
    """What the supervisor must know about an exception that ended a session."""
    return Failed(
        session=session,
        kind=_kind(error),
        error=type(error).__name__,
        reason=str(error) or type(error).__name__,
        details="".join(traceback.format_exception(error)),
        **record_of(error),
    )


def _kind(error: BaseException) -> Literal["restart", "environment", "user", "fatal"]:
    match error:
        case EnvironmentFailed() | LoginRefused():
            return "environment"
        case UserError():
            return "user"
        case Fatal():
            return "fatal"
        case _:
            return "restart"


def _only_directory(local: Path, keep: str) -> None:
    """Remove what earlier sessions left on the local disk; it is a cache of the checkpoint storage."""
    local.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in local.iterdir():
        if old.name != keep:
            shutil.rmtree(old)
