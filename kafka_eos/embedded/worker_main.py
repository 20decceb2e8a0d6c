"""The worker process: ``python -m kafka_eos.embedded.worker_main FD SUBTASK APP GIVEN_FD PARENT``.

It imports the user's file, then runs one session after another as the supervisor requests. Rule: it never outlives the
supervisor. The kernel kills it when the parent dies, and the end of the control socket ends it too.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # imported objects stay alive; the collector runs when the pipeline is loaded

import ctypes
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping

import msgspec

from kafka_eos._util import log_context
from kafka_eos._util import logging_setup as logs
from kafka_eos._util import thread_dumps as stacks
from kafka_eos._util.gc_tuning import freeze_imports, tune_gc_for_batches
from kafka_eos.config.settings import Settings
from kafka_eos.core.error_messages import show_error_messages
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.worker_startup import RestoreReporter
from kafka_eos.runtime.program import CodeFingerprint, load_program
from kafka_eos.runtime.worker.control_messages import (
    EndSession,
    SessionEnded,
    StartSession,
    WorkerConfig,
    receive_as_worker,
)
from kafka_eos.runtime.worker.session import ControlSender, Inbox, OnCaptured, failure, run_session
from kafka_eos.runtime.worker.worker_runtime import SessionRuntime
from kafka_eos.storage.storage_factory import open_storage

_PR_SET_PDEATHSIG = 1
EXIT_SUPERVISOR_GONE = 70


def main() -> None:
    """Run sessions until the supervisor exits."""
    freeze_imports()
    fd, subtask, app, config_fd, parent = sys.argv[1:6]
    _die_with(int(parent))
    with os.fdopen(int(config_fd), "rb") as file:
        given = msgspec.json.decode(file.read(), type=WorkerConfig)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # both may reach the whole process group; the supervisor drains us
    stacks.enable_dumps(f"worker {subtask}")
    sock = socket.socket(fileno=int(fd))
    mouth = ControlSender(sock)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sock, inbox), daemon=True, name="control").start()
    try:
        work = _prepare(AppRef.parse(app), given, subtask)
    except Exception as error:  # noqa: BLE001 - reported to the supervisor, which decides
        mouth.send(failure(0, error))
        sys.exit(1)
    tune_gc_for_batches()
    gc.enable()
    while True:
        match inbox.get():
            case StartSession() as start, sockets:
                work(start, dict(zip(start.peers, sockets, strict=True)), mouth, inbox)
                gc.collect()
                mouth.send(SessionEnded(session=start.session))
            case EndSession(session=session), _:
                mouth.send(SessionEnded(session=session))


Work = Callable[[StartSession, Mapping[int, socket.socket], ControlSender, Inbox], None]


def _prepare(app: AppRef, given: WorkerConfig, subtask: str) -> Work:
    """Load the user's pipeline; return a function that runs one session of it."""
    plan = load_program(app).plan()
    CodeFingerprint.compute(app.path, plan).ensure_equal(given.code, app.path)
    resolved = Settings.from_json(given.settings)
    show_error_messages(resolved.show_error_messages)
    logs.configure_logging(plan.name, f"worker {subtask}", resolved.log_format, resolved.log_level)
    storage = open_storage(resolved.checkpoint_location(plan.name))
    local = [directory / subtask for directory in resolved.local_dirs(plan.name)]

    def work(start: StartSession, peers: Mapping[int, socket.socket], mouth: ControlSender, inbox: Inbox) -> None:
        logs.set_log_epoch(term=start.term)
        log_context.leave_operator()  # an attempt that failed ended in the middle of a row
        # Until it is ready, a worker is only ever sent EndSession.
        report_restore = RestoreReporter(mouth.send, start.session, lambda: not inbox.empty())

        def open_plan(done: OnCaptured) -> SessionRuntime:
            directories = [directory / str(start.term) for directory in local]
            return SessionRuntime(
                plan, resolved, storage, start, directories, int(subtask), peers, done, report_restore
            )

        run_session(open_plan, resolved.batch_size, storage, start, mouth, local, inbox)

    return work


def _listen(sock: socket.socket, inbox: Inbox) -> None:
    for message in receive_as_worker(sock):
        inbox.put(message)
    # Without a supervisor no work is committed; its successor decides about prepared output.
    os._exit(EXIT_SUPERVISOR_GONE)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_SUPERVISOR_GONE)


if __name__ == "__main__":
    main()
