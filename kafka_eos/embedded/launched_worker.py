"""The place in which a launched worker runs, and the process of a worker as its parent sees it.

Rule: little is imported here, because each task of Spark does so before it starts a worker.
"""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from kafka_eos._util import thread_dumps as stacks
from kafka_eos._util.memory_files import open_memory_file
from kafka_eos.core.ids import AppRef

ENDING = 2.0
"""Most seconds between the end of a process's socket and the end of the process."""


class WorkerTask(ABC):
    """The place in which a launched worker runs: a process, or a task of a cluster."""

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @property
    def is_placed(self) -> bool:
        """Return whether the worker has a core, or gets one soon."""
        return True

    @property
    @abstractmethod
    def io_bytes(self) -> int:
        """Return the bytes that it has read and written; 0 if unknown."""

    @abstractmethod
    def describe_end(self) -> str | None:
        """Return how the process ended, such as "was killed by signal 9"; None if it runs. May wait for its end."""

    @abstractmethod
    def kill(self) -> None:
        """End it, as far as that is possible from here."""


class ChildProcess(WorkerTask):
    """A process that runs one worker on this machine. ``control``: see ``worker_main``.

    ``config``: a ``WorkerConfig`` as JSON. ``environment``: its environment variables; default: those of this process.
    """

    def __init__(
        self,
        app: AppRef,
        subtask: int,
        config: bytes,
        control: str,
        control_fd: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        config_fd = open_memory_file(config)
        command = [sys.executable, "-m", "kafka_eos.embedded.worker_main", f"{control}:{control_fd}", str(subtask),
                   str(app), str(config_fd), str(os.getpid())]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command, pass_fds=[control_fd, config_fd], stdin=subprocess.DEVNULL, env=environment
            )
        finally:
            os.close(config_fd)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def io_bytes(self) -> int:
        return read_io_bytes(self.pid)

    def describe_end(self) -> str | None:
        return self.wait(ENDING)

    def wait(self, seconds: float | None = None) -> str | None:
        """Wait for the end of the process. Return how it ended, or None if it still runs then."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"

    def read_stacks(self) -> str:
        """Return the Python stacks of its threads, or the reason why there are none."""
        place = stacks.find_target(self.pid)
        if place is None:
            return f"process {self.pid} has no stack dump handler yet"
        try:
            return stacks.read_stacks(place, self._process.send_signal)
        except stacks.NoStacks as error:
            return str(error)

    def kill(self) -> None:
        """Kill the process with SIGKILL and reap it. Its sockets end with it."""
        self._process.kill()
        self._process.wait()


def read_io_bytes(pid: int) -> int:
    """Return the bytes that a child process has read and written, from /proc; 0 if unknown.

    Bytes received from the network are counted when they are written to a file.
    """
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.partition(":")[2]) for line in lines if line.startswith(("rchar", "wchar")))
