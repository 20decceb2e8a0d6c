"""The embedded engine's pool: worker processes of this machine, connected by Unix sockets.

Rule: a worker is always a child of this process and is only ever signalled through its Popen object.
"""

from __future__ import annotations

import itertools
import math
import queue
import resource
import shutil
import socket
import threading
from collections.abc import Sequence

import msgspec

from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.launched_worker import ChildProcess
from kafka_eos.embedded.supervisor_events import SupervisorEvent, WorkerExited, WorkerMessage
from kafka_eos.embedded.worker_pool import MakeStart, WorkerDied, WorkerHandle, WorkerPool
from kafka_eos.plan import Plan
from kafka_eos.runtime.worker.control_messages import ControlMessage, WorkerConfig, receive_as_supervisor, send

_OPEN_FILES, _LEAST_FILES = 512, 128
"""Open files besides sockets that a supervisor or a worker with state should have, and the least that they need."""


def allow_open_files(parallelism: int) -> None:
    """Raise the file limit of this process and its workers for the sockets between all pairs.

    Raises ConfigError if the limit cannot be raised far enough.
    """
    sockets = parallelism * (parallelism - 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = math.inf if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < sockets + _OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(min(sockets + _OPEN_FILES, most)), hard))
    if most < sockets + _LEAST_FILES:
        raise ConfigError(
            f"parallelism={parallelism} needs {sockets + _LEAST_FILES} open files, but the system allows {hard} "
            "(ulimit -Hn): raise that limit, or lower parallelism"
        )


class ProcessPool(WorkerPool):
    """Worker processes of one run of a job."""

    def __init__(self, plan: Plan, app: AppRef, settings: Settings) -> None:
        super().__init__()
        self._app = app
        self._settings = settings
        self._job = plan.name
        self._config = msgspec.json.encode(WorkerConfig.of(plan, app, settings))
        self._numbers = itertools.count()
        self._workers: dict[int, WorkerProcess] = {}

    @property
    def workers(self) -> Sequence[WorkerProcess]:
        return [worker for _, worker in sorted(self._workers.items())]

    def start_workers(self) -> None:
        allow_open_files(self._settings.parallelism)
        for subtask in range(self._settings.parallelism):
            if subtask not in self._workers or not self._workers[subtask].alive:
                self._workers[subtask] = WorkerProcess(
                    next(self._numbers), subtask, self._app, self._config, self.events
                )

    def start_sessions(self, make_start: MakeStart) -> None:
        between = {pair: socket.socketpair() for pair in itertools.combinations(sorted(self._workers), 2)}
        try:
            for worker in self.workers:
                mine = worker.subtask
                ends = {pair[1 - pair.index(mine)]: s[pair.index(mine)] for pair, s in between.items() if mine in pair}
                worker.send(make_start(mine, tuple(ends)), tuple(ends.values()))
        finally:
            for pair in between.values():
                for end in pair:
                    end.close()

    def drop_local_state(self) -> None:
        remove_local_state(self._settings, self._job)


class WorkerProcess(WorkerHandle):
    """One running worker process. Its messages arrive in ``events``, and at last its exit, once."""

    def __init__(
        self,
        number: int,
        subtask: int,
        app: AppRef,
        config: bytes,
        events: queue.SimpleQueue[SupervisorEvent],
    ) -> None:
        super().__init__(number, subtask)
        self._events = events
        self._sock, worker_end = socket.socketpair()
        with worker_end:
            self._process = ChildProcess(app, subtask, config, "unix", worker_end.fileno())
        threading.Thread(target=self._listen, daemon=True, name=f"worker-{subtask}").start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.alive

    @property
    def is_connected(self) -> bool:
        return True

    @property
    def io_bytes(self) -> int:
        return self._process.io_bytes

    def send(self, message: ControlMessage, sockets: Sequence[socket.socket] = ()) -> None:
        try:
            send(self._sock, message, sockets)
        except OSError as error:
            # Usually it has exited, and its exit status is available shortly after.
            how = self._process.describe_end() or f"cannot be reached: {error}"
            raise WorkerDied(f"worker {self.pid} {how}", [self.number]) from error

    def stacks(self) -> str:
        return self._process.read_stacks()

    def kill(self) -> None:
        self._process.kill()

    def _listen(self) -> None:
        for message in receive_as_supervisor(self._sock):
            self._events.put(WorkerMessage(message, self.number))
        how = self._process.wait()
        assert how is not None  # it has waited without a limit
        self._sock.close()
        self._events.put(WorkerExited(self.number, how))


def remove_local_state(settings: Settings, job: str) -> None:
    """Remove the directories in which the workers of this machine keep their state."""
    for directory in settings.local_dirs(job):
        for subtask in range(settings.parallelism):
            # If a directory cannot be removed, the next session reports it.
            shutil.rmtree(directory / str(subtask), ignore_errors=True)
