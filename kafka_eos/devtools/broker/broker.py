"""A real Apache Kafka broker (KRaft, one node) in a directory of this machine.

    <directory>/server.properties   written at each start
    <directory>/data/               topics and metadata; survives stop and kill
    <directory>/broker.json         ports, and the process id of the last start
    <directory>/broker.log          stdout and stderr of every start, appended
    <directory>/tmp/                libraries that Java unpacks; of the last start
    <directory>/broker.lock         locked by the Java process itself until it ends

Rule: whether a broker runs is never guessed from a process id. The Java process inherits a locked file, and the kernel
drops that lock when the process ends, however it ends. Locked = alive, and broker.json has its process id.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from uuid import uuid4

from kafka_eos._util import parent_death
from kafka_eos._util.jvm.class_cache import find_archive_options
from kafka_eos._util.jvm.jars import RELEASES, fetch_jars
from kafka_eos._util.jvm.java import find_java
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker.readiness import is_ready, wait_until
from kafka_eos.devtools.broker.settings import free_ports, is_free, server_properties

_PACKAGE = Path(__file__).parent
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_GLANCE_SECONDS = 0.5  # longer than another process needs to look whether the lock is free


class Broker:
    """One broker process. Stop it and start it again: it keeps its ports and its data.

    ``port`` 0 means the port the directory had before, else a free one. ``overrides`` are broker settings
    (``server.properties``). ``daemon``: the broker outlives this process; otherwise it dies with the thread that
    started it. ``heap`` is the JVM's maximum heap, ``jvm_options`` are added to its own. ``release`` is a release
    of Kafka, of ``RELEASES``; by default the one the directory had before, else the first. Brokers of one cluster
    have the same ``cluster_id``, and know each other's ``controller_port`` by ``overrides``. Nothing happens before
    ``start()``.
    """

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        overrides: Mapping[str, str] | None = None,
        *,
        daemon: bool = False,
        heap: str = "768m",
        release: str = "",
        cluster_id: str = "",
        controller_port: int = 0,
        jvm_options: Sequence[str] = (),
    ) -> None:
        self.directory = Path(directory).absolute()
        self.daemon = daemon
        self._heap = heap
        self._overrides = dict(overrides or {})
        self._jvm_options = tuple(jvm_options)
        self._process: subprocess.Popen[bytes] | None = None
        saved = self._saved()
        self.port: int = port or saved.get("port", 0)
        self._controller_port: int = controller_port or saved.get("controller_port", 0)
        self._cluster_id = cluster_id or uuid4().hex[:22]
        self.release: str = release or saved.get("release", next(iter(RELEASES)))
        if self.release not in RELEASES:
            raise ConfigError(f"no broker of Kafka {self.release} is available; choose one of: {', '.join(RELEASES)}")

    @classmethod
    def attach(cls, directory: Path) -> Broker | None:
        """Return the broker that runs in ``directory``, whichever process started it; None if none runs."""
        broker = cls(directory, daemon=True)
        return broker if broker.running else None

    @property
    def bootstrap(self) -> str:
        """Return ``host:port`` for clients. Raise ConfigError before the first start, when no port is chosen yet."""
        if not self.port:
            raise ConfigError(f"the broker in {self.directory} has no port yet: start it first")
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the process id of the running broker. Raise ConfigError if it does not run."""
        if not self.running:
            raise ConfigError(f"no broker runs in {self.directory}; start one: kafka-eos broker start")
        return int(self._saved()["pid"])

    @property
    def running(self) -> bool:
        """Return whether the Java process exists (a paused one does)."""
        if self._process is not None:
            self._process.poll()  # reap it if it has ended
        if not self._lock_path.exists():
            return False
        with self._lock_path.open("a") as file:
            return not _try_lock(file)

    @property
    def log_path(self) -> Path:
        """Return the path of the broker's output."""
        return self.directory / "broker.log"

    def start(self, timeout: float = _START_SECONDS) -> Self:
        """Start the broker, and return when it serves clients, after at most ``timeout`` seconds.

        Raise ConfigError if one already runs here. If it ends or does not respond, the error quotes the end of its log.
        """
        self.launch()
        self.await_clients(timeout)
        return self

    def launch(self) -> None:
        """Start the broker without waiting: a broker of a cluster serves no client before most of the others run."""
        jars, java = fetch_jars(RELEASES[self.release]), find_java()
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._lock_path.open("a") as lock:
            if not wait_until(lambda: _try_lock(lock), _GLANCE_SECONDS):
                raise ConfigError(f"a broker runs in {self.directory} already; stop it: kafka-eos broker stop")
            self._choose_ports()
            path = os.pathsep.join(map(str, jars))
            shutil.rmtree(self._scratch, ignore_errors=True)  # a broker that was killed could not
            self._scratch.mkdir(exist_ok=True)
            classes = find_archive_options(java, path)
            self._format([java, *classes.read_only, *self._java_options(path)])
            command = [java, *classes.read_write, *self._java_options(path)]
            self._process = self._spawn([*command, "kafka.Kafka", str(self._properties_path)], lock)
            self._save(self._process.pid)

    def await_clients(self, timeout: float = _START_SECONDS) -> None:
        """Return when the launched broker serves clients. Raise ConfigError as ``start`` does; then none runs."""
        try:
            self._wait_until_serving(timeout)
        except BaseException:
            self.kill()  # no half-started broker is left behind, neither by Ctrl-C
            raise

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Stop the broker (SIGTERM) and wait; kill it after ``timeout`` seconds. Do nothing if none runs."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a paused process would not see the other one
        if not wait_until(lambda: not self.running, timeout):
            self.kill()

    def kill(self) -> None:
        """Kill the broker (SIGKILL) and wait until it has ended. Do nothing if none runs."""
        self._signal(signal.SIGKILL)
        if not wait_until(lambda: not self.running, _STOP_SECONDS):
            raise ConfigError(f"the broker in {self.directory} survived SIGKILL: its disk may hang")

    def pause(self) -> None:
        """Freeze the broker (SIGSTOP): connections stay open, but nothing responds."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused broker (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    # ---- starting -------------------------------------------------------------------------------------------

    def _choose_ports(self) -> None:
        missing = [not self.port, not self._controller_port]
        free = iter(free_ports(sum(missing)))
        self.port = self.port or next(free)
        self._controller_port = self._controller_port or next(free)
        for port in (self.port, self._controller_port):
            if not is_free(port):
                raise ConfigError(
                    f"port {port} of 127.0.0.1 is in use by another program; choose another one: --port N"
                )
        self._save(None)
        text = server_properties(self._data, self.port, self._controller_port, self._overrides)
        self._properties_path.write_text(text)

    def _java_options(self, path: str) -> list[str]:
        options = [f"-Xmx{self._heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        options += [
            f"-Djava.io.tmpdir={self._scratch}",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={_PACKAGE / 'log4j2.properties'}",
        ]
        return [*options, *self._jvm_options, "-cp", path]

    def _format(self, command: list[str]) -> None:
        """Format an empty data directory. The tool writes meta.properties last, so an interrupted run is repeated."""
        if (self._data / "meta.properties").exists():
            return
        arguments = ["format", "--config", str(self._properties_path), "--cluster-id", self._cluster_id]
        tool = [*command, "kafka.tools.StorageTool", *arguments, "--ignore-formatted"]
        answer = subprocess.run(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if answer.returncode != 0:
            raise ConfigError(f"formatting {self._data} failed:\n{answer.stdout.strip()[-2000:]}")

    def _spawn(self, command: list[str], lock: IO[Any]) -> subprocess.Popen[bytes]:
        """Start Java in its own session (so that a Ctrl-C in the terminal does not reach it), holding ``lock``."""
        if not self.daemon:
            command = parent_death.build_command(command)
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock.fileno()],
                start_new_session=True,
                cwd=self.directory,
            )

    def _wait_until_serving(self, timeout: float) -> None:
        wait_until(lambda: is_ready(self.port) or not self.running, timeout)
        if not self.running:
            raise ConfigError(f"the broker ended while it started; the end of {self.log_path}:\n{self._log_tail()}")
        if not is_ready(self.port):
            raise ConfigError(
                f"the broker does not respond on {self.bootstrap} after {timeout:.0f} s; the end of "
                f"{self.log_path}:\n{self._log_tail()}"
            )

    # ---- files ----------------------------------------------------------------------------------------------

    @property
    def _scratch(self) -> Path:
        return self.directory / "tmp"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _properties_path(self) -> Path:
        return self.directory / "server.properties"

    @property
    def _lock_path(self) -> Path:
        return self.directory / "broker.lock"

    @property
    def _state_path(self) -> Path:
        return self.directory / "broker.json"

    def _saved(self) -> dict[str, Any]:
        if not self._state_path.exists():
            return {}
        saved: dict[str, Any] = json.loads(self._state_path.read_text())
        return saved

    def _save(self, pid: int | None) -> None:
        state = {"port": self.port, "controller_port": self._controller_port, "release": self.release, "pid": pid}
        temporary = self._state_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(state))
        temporary.replace(self._state_path)

    def _log_tail(self, lines: int = 25) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            pid = self._saved().get("pid")
            if pid is not None:
                os.kill(pid, number)


def _try_lock(file: IO[Any]) -> bool:
    """Try to take an exclusive lock, which is released when the last copy of the file descriptor closes. Return whether
    it was free.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
