"""One attempt of a worker: from a decided epoch until told to begin again.

A single thread reads batches, pushes them through the operators and writes the results; between two batches it
obeys the supervisor. At a barrier it does only what must happen in order (positions, flush of the state cache,
sealing the writers); uploads and pre-commits run on one background thread while the next epoch is processed.

Rule: every effect of a session is invisible until the supervisor decides. A session never undoes anything:
it lets go, and recovery decides what becomes of it.
"""

from __future__ import annotations

import queue
import shutil
import socket
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Literal

from kafka_eos.embedded.control import (
    Ack,
    Assign,
    Complete,
    Drop,
    Failed,
    Message,
    Progress,
    Reached,
    Ready,
    Start,
    ToWorker,
    Trigger,
    send,
)
from kafka_eos.embedded.stage import Stage
from kafka_eos.errors import Fatal, UserError
from kafka_eos.failpoints import hit
from kafka_eos.ids import EpochId
from kafka_eos.interfaces import CheckpointStorage
from kafka_eos.plan import Plan
from kafka_eos.settings import Settings

_IDLE_POLL = 0.02
"""Seconds to wait for input when there is none; also how late a barrier can be noticed."""
_PROGRESS_EVERY = 0.5


class Mouth:
    """The worker's side of the control socket for sending, from more than one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._lock = sock, threading.Lock()

    def say(self, message: Message) -> None:
        with self._lock:
            send(self._sock, message)


def run_session(
    plan: Plan,
    settings: Settings,
    storage: CheckpointStorage,
    start: Start,
    mouth: Mouth,
    local: Path,
    inbox: queue.SimpleQueue[ToWorker],
) -> None:
    """Restore and process until told to drop it, or until it fails, which is reported."""
    try:
        _only_directory(local, keep=str(start.term))
        with closing(Stage(plan, settings, storage, start, local / str(start.term))) as stage:
            hit("recovery.opened")
            mouth.say(Ready(session=start.session))
            Session(stage, settings.batch_size, storage, start, mouth).run(inbox)
    except Exception as error:  # noqa: BLE001 - reported to the supervisor, which decides
        mouth.say(failure(start.session, error))


class Session:
    """The loop of one session over an open stage."""

    def __init__(self, stage: Stage, batch_size: int, storage: CheckpointStorage, start: Start, mouth: Mouth) -> None:
        self._stage, self._batch_size, self._storage = stage, batch_size, storage
        self._start, self._mouth = start, mouth
        self._background = ThreadPoolExecutor(1, thread_name_prefix="pre-commit")
        self._progress_at = 0.0
        self._reached = start.ends is None

    def run(self, inbox: queue.SimpleQueue[ToWorker]) -> None:
        """Process until told to drop it."""
        try:
            self._loop(inbox)
        finally:
            self._background.shutdown(wait=True, cancel_futures=True)

    def _loop(self, inbox: queue.SimpleQueue[ToWorker]) -> None:
        reading = True
        while True:
            while not (reading and inbox.empty()):
                match inbox.get():
                    case Drop():
                        return
                    case Trigger(epoch=epoch, last=last):
                        self._barrier(epoch)
                        reading = not last
                    case Complete(epoch=epoch):
                        hit("worker.complete")
                        self._stage.completed(epoch)
                    case Assign(source=source, positions=positions):
                        self._stage.readers[source].assign(positions)
            self._stage.advance(self._batch_size, _IDLE_POLL)
            self._report()

    def _barrier(self, epoch: EpochId) -> None:
        began = time.monotonic()
        hit("source.capture.before")
        positions = {name: reader.positions() for name, reader in self._stage.readers.items()}
        hit("source.capture.after")
        uploads = [backend.snapshot(epoch.epoch) for backend in self._stage.backends.values()]
        hit("sink.seal")
        precommits = [writer.seal(epoch) for writer in self._stage.writers.values()]
        blocked_ms = (time.monotonic() - began) * 1000

        def acknowledge() -> Ack:
            return Ack(
                session=self._start.session,
                epoch=epoch,
                positions=positions,
                committables=tuple(c for prepare in precommits for c in prepare()),
                states=tuple(upload(self._storage) for upload in uploads),
                blocked_ms=blocked_ms,
            )

        self._background.submit(self._say_result, acknowledge)

    def _say_result(self, acknowledge: Callable[[], Ack]) -> None:
        try:
            ack = acknowledge()
        except Exception as error:  # noqa: BLE001 - reported to the supervisor, which decides
            self._mouth.say(failure(self._start.session, error))
            return
        hit("worker.ack.before")
        self._mouth.say(ack)
        hit("worker.ack.after")

    def _report(self) -> None:
        now = time.monotonic()
        if not self._reached and self._start.ends is not None and self._stage.reached(self._start.ends):
            self._reached = True
            self._mouth.say(Reached(session=self._start.session))
        if now - self._progress_at >= _PROGRESS_EVERY:
            self._progress_at = now
            stage = self._stage
            self._mouth.say(
                Progress(
                    session=self._start.session,
                    records_in=stage.records_in,
                    records_out=stage.records_out,
                    lag=stage.lag(),
                )
            )


def failure(session: int, error: Exception) -> Failed:
    """What the supervisor must know about an exception that ended a session."""
    return Failed(
        session=session,
        kind=_kind(error),
        error=type(error).__name__,
        reason=str(error) or type(error).__name__,
        details="".join(traceback.format_exception(error)),
    )


def _kind(error: Exception) -> Literal["restart", "user", "fatal"]:
    match error:
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
