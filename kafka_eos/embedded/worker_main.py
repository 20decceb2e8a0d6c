"""The worker process: ``python -m kafka_eos.embedded.worker_main FD SUBTASK APP GIVEN_FD PARENT``.

It imports the user's file, then runs one session after another as the supervisor says. Rule: it never outlives
the supervisor: the kernel kills it when the parent dies, and the end of the control socket ends it too.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # all that is imported lasts; cycles are looked for when the pipeline is loaded

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
from kafka_eos._util.gc_tuning import all_lasts, spare_the_collector
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.worker_startup import Teller
from kafka_eos.runtime.program import Code, load
from kafka_eos.runtime.worker.control_messages import Drop, Dropped, Given, Start, receive_as_worker
from kafka_eos.runtime.worker.session import Done, Inbox, Mouth, failure, run_session
from kafka_eos.runtime.worker.worker_runtime import OpenPlan
from kafka_eos.storage.storage_factory import open_storage

_PR_SET_PDEATHSIG = 1
EXIT_ORPHANED = 70


def main() -> None:
    """Run sessions until the supervisor is gone."""
    all_lasts()
    fd, subtask, app, told, parent = sys.argv[1:6]
    _die_with(int(parent))
    with os.fdopen(int(told), "rb") as file:
        given = msgspec.json.decode(file.read(), type=Given)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # both may reach the whole process group; the supervisor drains us
    stacks.be_ready(f"worker {subtask}")
    sock = socket.socket(fileno=int(fd))
    mouth = Mouth(sock)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sock, inbox), daemon=True, name="control").start()
    try:
        work = _prepare(AppRef.parse(app), given, subtask)
    except Exception as error:  # noqa: BLE001 - reported to the supervisor, which decides
        mouth.say(failure(0, error))
        sys.exit(1)
    spare_the_collector()
    gc.enable()
    while True:
        match inbox.get():
            case Start() as start, sockets:
                work(start, dict(zip(start.peers, sockets, strict=True)), mouth, inbox)
                gc.collect()
                mouth.say(Dropped(session=start.session))
            case Drop(session=session), _:
                mouth.say(Dropped(session=session))


Work = Callable[[Start, Mapping[int, socket.socket], Mouth, Inbox], None]


def _prepare(app: AppRef, given: Given, subtask: str) -> Work:
    """Load the user's pipeline; what is returned runs one session of it."""
    plan = load(app).plan()
    Code.of(app.path, plan).expect_as(given.code, app.path)
    resolved = Settings.from_json(given.settings)
    logs.begin(plan.name, f"worker {subtask}", resolved.log_format, resolved.log_level)
    storage = open_storage(resolved.checkpoints_of(plan.name))
    local = [directory / subtask for directory in resolved.local_dirs(plan.name)]

    def work(start: Start, peers: Mapping[int, socket.socket], mouth: Mouth, inbox: Inbox) -> None:
        logs.now(term=start.term)
        log_context.leave()  # an attempt that failed ended in the middle of a row
        # To a worker that is not ready nothing is said but that its session is over.
        told = Teller(mouth.say, start.session, lambda: not inbox.empty())

        def open_plan(done: Done) -> OpenPlan:
            directories = [directory / str(start.term) for directory in local]
            return OpenPlan(plan, resolved, storage, start, directories, int(subtask), peers, done, told)

        run_session(open_plan, resolved.batch_size, storage, start, mouth, local, inbox)

    return work


def _listen(sock: socket.socket, inbox: Inbox) -> None:
    for message in receive_as_worker(sock):
        inbox.put(message)
    # Without a supervisor nothing we do counts; whatever is prepared is decided about by its successor.
    os._exit(EXIT_ORPHANED)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    main()
