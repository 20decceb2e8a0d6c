"""Worker processes as the supervisor sees them: start, talk to, kill, and hear the end of.

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
from kafka_eos.runtime.worker.control_messages import Given, Message, ToSupervisor, receive_as_supervisor, send

_OPEN_FILES, _LEAST_FILES = 512, 128
"""Beside sockets: what a supervisor, and a worker with its state, like to have, and what they cannot do without."""

_ENDING = 2.0
"""Seconds between the end of a process's socket and its own, at most."""


def allow_open_files(parallelism: int) -> None:
    """Let this process, and its workers after it, hold the sockets between all pairs. ConfigError if it may not."""
    sockets = parallelism * (parallelism - 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = math.inf if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < sockets + _OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(min(sockets + _OPEN_FILES, most)), hard))
    if most < sockets + _LEAST_FILES:
        raise ConfigError(
            f"parallelism={parallelism} takes {sockets + _LEAST_FILES} open files, and the system allows {hard} "
            "(ulimit -Hn): raise that limit, or set a lower parallelism"
        )


class WorkerDied(ProcessLost):
    """A worker process ended by itself, was killed, or does not answer. ``pids``: which ones."""

    def __init__(self, reason: str, pids: Sequence[int]) -> None:
        super().__init__(reason)
        self.pids = frozenset(pids)


class WorkerProcess:
    """One running worker. ``heard`` gets every message, from another thread; then ``ended`` is called once."""

    def __init__(
        self,
        app: AppRef,
        subtask: int,
        given: Given,
        heard: Callable[[WorkerProcess, ToSupervisor], None],
        ended: Callable[[WorkerProcess], None],
    ) -> None:
        ours, theirs = socket.socketpair()
        told = _memory(msgspec.json.encode(given))
        command = [sys.executable, "-m", "kafka_eos.embedded.worker_main", str(theirs.fileno()), str(subtask), str(app),
                   str(told), str(os.getpid())]  # fmt: skip
        self.subtask = subtask
        self._sock = ours
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno(), told], stdin=subprocess.DEVNULL)
        theirs.close()
        os.close(told)
        threading.Thread(target=self._listen, args=(heard, ended), daemon=True, name=f"worker-{subtask}").start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit(self) -> str:
        """How it ended, in words."""
        code = self._process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"

    @property
    def moved(self) -> int:
        """As ``moved_by``."""
        return moved_by(self.pid)

    def tell(self, message: Message, sockets: Sequence[socket.socket] = ()) -> None:
        """Send a message, and copies of these sockets with it. Raises WorkerDied if the worker is gone."""
        try:
            send(self._sock, message, sockets)
        except OSError as error:
            raise WorkerDied(f"worker {self.pid} {self._how(error)}", [self.pid]) from error

    def _how(self, error: OSError) -> str:
        """Why it hears nothing. It has ended as a rule, and how is a moment away."""
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            return f"cannot be reached: {error}"
        return self.exit

    def stacks(self) -> str:
        """The Python stacks of its threads, or why there are none."""
        place = stacks.place_of(self.pid)
        if place is None:
            return f"process {self.pid} is not ready to tell where it stands"
        try:
            return stacks.stacks(place, self._process.send_signal)
        except stacks.NoStacks as error:
            return str(error)

    def kill(self) -> None:
        """SIGKILL and reap. Its socket ends with it."""
        self._process.kill()
        self._process.wait()

    def _listen(
        self, heard: Callable[[WorkerProcess, ToSupervisor], None], ended: Callable[[WorkerProcess], None]
    ) -> None:
        for message in receive_as_supervisor(self._sock):
            heard(self, message)
        self._process.wait()
        self._sock.close()
        ended(self)


def moved_by(pid: int) -> int:
    """Bytes that a process of ours has read and written since it began, as the kernel counts them; 0 if it does not.

    What comes by network counts when it is written somewhere.
    """
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.partition(":")[2]) for line in lines if line.startswith(("rchar", "wchar")))


def _memory(data: bytes) -> int:
    """A file in memory that holds ``data``: what is in it, unlike an argument, is not shown to everybody by ``ps``."""
    file = os.memfd_create("kafka-eos-given")
    with os.fdopen(file, "wb", closefd=False) as writer:
        writer.write(data)
    os.lseek(file, 0, os.SEEK_SET)
    return file
