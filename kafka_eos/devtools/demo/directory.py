"""The directory of a demo, locked against other demos.

    <directory>/demo.lock            locked by the demo that runs here
    <directory>/report.html, .json   of the last finished demo
    <directory>/run/                 created fresh for each demo: broker, cluster, checkpoints, logs, process.json

Rule: only files that a demo created are removed, and only processes that a demo started are stopped. A broker is
identified by the file it locks. A job is identified by its process id *and* its start time, because ids are reused.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka_eos._util.extras import ensure_extra
from kafka_eos._util.jvm.java import find_java
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.demo.faults import FAULT_PROFILES
from kafka_eos.devtools.postgres import PostgresServer

_NEEDED_BYTES = 2 * 1024**3
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a demo. ``seconds``: how long writing most of the orders takes; None for the engine's default."""

    orders: int = 200_000
    seed: int = 1
    directory: Path = Path(".kafka-eos/demo")
    port: int = 0
    keep_broker: bool = False
    engine: str = "embedded"
    step_kills: int = 3
    outside_kills: int = 2
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.engine not in FAULT_PROFILES:
            raise ConfigError(f"--engine {self.engine!r} must be one of {', '.join(FAULT_PROFILES)}")
        if self.orders < 1000:
            raise ConfigError(f"--orders {self.orders} is too few for faults in between; use at least 1000")


class DemoDirectory:
    """The files and subdirectories of one demo."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.run = self.directory / "run"
        self.broker = self.run / "broker"
        self.checkpoints = self.run / "checkpoints"
        self.cluster = self.run / "cluster"
        self.audit = self.run / "audit"
        self.postgres = self.run / "postgres"
        self.files = self.run / "paid-orders"
        self.job_log = self.run / "job.log"
        self.fired = self.run / "failpoints.log"
        self.html = self.directory / "report.html"
        self.json = self.directory / "report.json"

    @property
    def process_file(self) -> Path:
        return self.run / "process.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory and prepare an empty `run` in it. Raises ConfigError if another demo runs here."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "demo.lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise ConfigError(
                    f"a demo runs in {self.directory} already (process "
                    f"{lock.read().strip() or 'unknown'}); wait for it, stop it, or choose another "
                    "--directory"
                ) from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            self._make_fresh()
            yield

    def _make_fresh(self) -> None:
        if self.run.exists():
            marker = self.run / "made-by-kafka-eos-demo"
            if not marker.exists():
                raise ConfigError(
                    f"{self.run} exists but does not belong to a demo; move it away or choose another --directory"
                )
            self._stop_leftovers()
            shutil.rmtree(self.run)
        self.run.mkdir()
        (self.run / "made-by-kafka-eos-demo").touch()

    def _stop_leftovers(self) -> None:
        """End what an interrupted demo has left running."""
        if self.process_file.exists():
            left = json.loads(self.process_file.read_text())
            if read_start_time(left["pid"]) == left["started"]:
                os.kill(left["pid"], signal.SIGKILL)
                _await_end(left["pid"], left["started"])
        if broker := Broker.attach(self.broker):
            broker.kill()
        if self.postgres.exists():
            PostgresServer(self.postgres.resolve()).remove()

    def remember(self, pid: int) -> None:
        """Write down the job's process, so that a later demo can find it."""
        temporary = self.process_file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"pid": pid, "started": read_start_time(pid)}))
        temporary.replace(self.process_file)


def read_start_time(pid: int) -> str | None:
    """Return when a process started; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = fields[0], fields[19]
    return None if state in "ZX" else f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {started}"


def parent_of(pid: int) -> int | None:
    """Process id of the parent; None if the process is gone (or only its shell is left)."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(parent)


def children_of(pid: int) -> list[int]:
    """Process ids of the children that live, in ascending order."""
    everybody = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [one for one in everybody if parent_of(one) == pid]


def _await_end(pid: int, started: str) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while read_start_time(pid) == started:
        if time.monotonic() > deadline:
            raise ConfigError(f"the job of an earlier demo (process {pid}) survived SIGKILL: its disk may hang")
        time.sleep(0.05)


def check_machine(options: Options) -> None:
    """Raise ConfigError for anything that would stop the demo halfway: no Java, no audit, a used port, a full disk."""
    find_java()
    ensure_extra("audit", "the demo, which ends with an audit,")
    options.directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(options.directory).free
    if free < _NEEDED_BYTES:
        raise ConfigError(
            f"{options.directory.absolute()} has {free / 1e9:.1f} GB left; it needs {_NEEDED_BYTES / 1e9:.1f} GB. "
            "Free some or give --directory on another disk."
        )


def check_port(port: int) -> None:
    """Raise ConfigError if a process listens on ``port``; 0 is any free one. Call it after leftovers were removed."""
    if not port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"port {port} cannot be used: {error.strerror}. Give another --port, or 0.") from None
