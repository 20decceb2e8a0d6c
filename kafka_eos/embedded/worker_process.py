"""Worker processes as the supervisor sees them: start, communication, kill, and detection of their end.

Rule: a worker is always a child of this process and is only ever signalled through its Popen object.
"""

from __future__ import annotations

import math
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kafka_eos._util import thread_dumps as stacks
from kafka_eos.core.errors import ConfigError, ProcessLost
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.worker.control_messages import (
    ControlMessage,
    ToSupervisor,
    WorkerConfig,
    receive_as_supervisor,
    send,
)

_OPEN_FILES, _LEAST_FILES = 512, 128
"""Open files besides sockets that a supervisor or a worker with state should have, and the least that they need."""

_ENDING = 2.0
"""Most seconds between the end of a process's socket and the end of the process."""


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


class WorkerDied(ProcessLost):
    """A worker process ended by itself, was killed, or does not respond. ``pids``: the processes."""

    def __init__(self, reason: str, pids: Sequence[int]) -> None:
        super().__init__(reason)
        self.pids = frozenset(pids)


class WorkerProcess:
    """One running worker. ``on_message`` receives every message on another thread; then ``ended`` is called once."""

    def __init__(
        self,
        app: AppRef,
        subtask: int,
        given: WorkerConfig,
        on_message: Callable[[WorkerProcess, ToSupervisor], None],
        ended: Callable[[WorkerProcess], None],
    ) -> None:
        own_end, worker_end = socket.socketpair()
        config_fd = _memory(msgspec.json.encode(given))
        command = [sys.executable, "-m", "kafka_eos.embedded.worker_main", str(worker_end.fileno()), str(subtask),
                   str(app), str(config_fd), str(os.getpid())]  # fmt: skip
        self.subtask = subtask
        self._sock = own_end
        self._process = subprocess.Popen(command, pass_fds=[worker_end.fileno(), config_fd], stdin=subprocess.DEVNULL)
        worker_end.close()
        os.close(config_fd)
        threading.Thread(target=self._listen, args=(on_message, ended), daemon=True, name=f"worker-{subtask}").start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_reason(self) -> str:
        """Return a description of how the process exited."""
        code = self._process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"

    @property
    def io_bytes(self) -> int:
        """Return the bytes that the process has read and written; see ``read_io_bytes``."""
        return read_io_bytes(self.pid)

    def send(self, message: ControlMessage, sockets: Sequence[socket.socket] = ()) -> None:
        """Send a message with sockets. Raises WorkerDied if the worker is gone."""
        try:
            send(self._sock, message, sockets)
        except OSError as error:
            raise WorkerDied(f"worker {self.pid} {self._how(error)}", [self.pid]) from error

    def _how(self, error: OSError) -> str:
        """Return why the worker cannot be reached. Usually it has exited, and its exit status is available shortly
        after."""
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            return f"cannot be reached: {error}"
        return self.exit_reason

    def stacks(self) -> str:
        """Return the Python stacks of its threads, or the reason why there are none."""
        place = stacks.find_target(self.pid)
        if place is None:
            return f"process {self.pid} has no stack dump handler yet"
        try:
            return stacks.read_stacks(place, self._process.send_signal)
        except stacks.NoStacks as error:
            return str(error)

    def kill(self) -> None:
        """Kill the process with SIGKILL and reap it. Its socket ends with it."""
        self._process.kill()
        self._process.wait()

    def _listen(
        self, on_message: Callable[[WorkerProcess, ToSupervisor], None], ended: Callable[[WorkerProcess], None]
    ) -> None:
        for message in receive_as_supervisor(self._sock):
            on_message(self, message)
        self._process.wait()
        self._sock.close()
        ended(self)


def read_io_bytes(pid: int) -> int:
    """Return the bytes that a child process has read and written, from /proc; 0 if unknown.

    Bytes received from the network are counted when they are written to a file.
    """
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.partition(":")[2]) for line in lines if line.startswith(("rchar", "wchar")))


def _memory(data: bytes) -> int:
    """Return a file in memory that contains ``data``, which ``ps`` does not show, unlike an argument."""
    file = os.memfd_create("kafka-eos-given")
    with os.fdopen(file, "wb", closefd=False) as writer:
        writer.write(data)
    os.lseek(file, 0, os.SEEK_SET)
    return file
