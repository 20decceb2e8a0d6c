"""A worker: it loads the user's pipeline, then runs one session after another as the supervisor requests.

An engine decides where it runs and how it is connected (``WorkerConnections``). Rule: a worker never outlives its
supervisor. Without one no work is committed; a successor decides about prepared output.
"""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from kafka_eos._util import log_context
from kafka_eos._util import logging_setup as logs
from kafka_eos._util.gc_tuning import tune_gc_for_batches
from kafka_eos._util.thread_dumps import read_own_stacks
from kafka_eos.core.error_messages import show_error_messages
from kafka_eos.core.errors import RestartFromCheckpoint
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.runtime.call_counts import count_calls
from kafka_eos.runtime.program import CodeFingerprint, load_program
from kafka_eos.runtime.state.restore_progress import RestoreProgress
from kafka_eos.runtime.worker.control_messages import (
    ControlMessage,
    EndSession,
    ReportStacks,
    RestoreReport,
    SessionEnded,
    StacksReported,
    StartSession,
    WorkerConfig,
)
from kafka_eos.runtime.worker.local_state import LocalFirstStorage, find_older_state
from kafka_eos.runtime.worker.session import Inbox, OnCaptured, failure, run_session
from kafka_eos.runtime.worker.worker_connections import WorkerConnections
from kafka_eos.runtime.worker.worker_runtime import SessionRuntime
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.storage_factory import open_claimed_storage, open_storage

SessionRunner: TypeAlias = Callable[[StartSession], None]

_REPORT_INTERVAL = 0.5
"""Seconds between two reports of a worker's restore."""


class Worker:
    """One worker of a job. Each session gives it a subtask; until the first one, logs call it ``name``.

    ``on_supervisor_gone`` is called on another thread and ends the worker.
    """

    def __init__(
        self,
        app: AppRef,
        config: WorkerConfig,
        name: str,
        connections: WorkerConnections,
        on_supervisor_gone: Callable[[], None],
    ) -> None:
        self._app = app
        self._config = config
        self._name = name
        self._connections = connections
        self._on_supervisor_gone = on_supervisor_gone
        self._inbox: Inbox = queue.SimpleQueue()

    def run(self) -> None:
        """Run sessions forever. Return if the pipeline cannot be loaded, once the supervisor knows why."""
        threading.Thread(target=self._listen, daemon=True, name="control").start()
        try:
            run = self._prepare()
        except Exception as error:  # noqa: BLE001 - reported to the supervisor, which decides
            self._connections.send(failure(0, error))
            return
        tune_gc_for_batches()
        gc.enable()
        while True:
            match self._inbox.get():
                case StartSession() as start:
                    run(start)
                    gc.collect()
                    self._connections.send(SessionEnded(session=start.session))
                case EndSession(session=session):
                    self._connections.send(SessionEnded(session=session))

    def _listen(self) -> None:
        try:
            for message in self._connections.receive():
                if isinstance(message, ReportStacks):
                    self._connections.send(StacksReported(session=message.session, stacks=read_own_stacks()))
                else:
                    self._inbox.put(message)
        finally:
            self._on_supervisor_gone()

    def _prepare(self) -> SessionRunner:
        """Load the user's pipeline; return a function that runs one session of it."""
        plan = count_calls(load_program(self._app).plan())
        CodeFingerprint.compute(self._app.path, plan).ensure_equal(self._config.code, self._app.path)
        resolved = self._config.resolve_settings()
        show_error_messages(resolved.show_error_messages)
        logs.configure_logging(plan.name, self._name, resolved.log_format, resolved.log_level)
        connections, inbox, roots = self._connections, self._inbox, resolved.local_dirs(plan.name)

        def run(start: StartSession) -> None:
            logs.set_log_process(f"worker {start.subtask}")
            logs.set_log_epoch(term=start.term)
            log_context.leave_operator()  # an attempt that failed ended in the middle of a row

            def is_cancelled() -> bool:
                # Until it is ready, a worker is only ever sent EndSession.
                return not inbox.empty()

            try:
                storage = _open_storage(resolved.checkpoint_location(plan.name), start)
                local_first = LocalFirstStorage(storage, find_older_state(roots, start.term))
            except Exception as error:  # noqa: BLE001 - reported to the supervisor, which decides
                connections.send(failure(start.session, error))
                return
            local = [root / str(start.subtask) for root in roots]
            report_restore = RestoreReporter(connections.send, start.session, is_cancelled)

            def open_plan(done: OnCaptured) -> SessionRuntime:
                directories = [directory / str(start.term) for directory in local]
                peers = connections.connect_peers(start, is_cancelled)
                return SessionRuntime(plan, resolved, local_first, start, directories, peers, done, report_restore)

            run_session(open_plan, resolved.batch_size, storage, start, connections.send, local, inbox)

        return run


class RestoreReporter:
    """A callback that reports restore progress to the supervisor at most twice a second; it raises if cancelled.

    Rule: a report says that the restore has made progress. Without progress there is no report.
    """

    def __init__(self, send: Callable[[ControlMessage], None], session: int, is_cancelled: Callable[[], bool]) -> None:
        self._send = send
        self._session = session
        self._is_cancelled = is_cancelled
        self._reported_at = 0.0

    def __call__(self, restored: RestoreProgress) -> None:
        if self._is_cancelled():
            raise RestartFromCheckpoint("the restore was cancelled: the attempt has failed elsewhere")
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_INTERVAL:
            self._reported_at = now
            self._send(RestoreReport(session=self._session, restored=restored))


def _open_storage(where: Path | str, start: StartSession) -> JobStorage:
    return open_claimed_storage(where, Term(start.term), start.claim) if start.claim else open_storage(where)
