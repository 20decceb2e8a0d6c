"""The directory of a crash test, locked against other tests.

    <directory>/test.lock            locked by the test that runs here
    <directory>/report.html, .json   of the last finished test
    <directory>/run/                 created fresh for each test: broker, cluster, checkpoints, logs, process.json

Rule: only files that a test created are removed, and only processes that a test started are stopped. A broker is
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
from pathlib import Path

from kafka_eos._util.extras import ensure_extra
from kafka_eos._util.jvm.java import find_java
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.postgres import PostgresServer

_NEEDED_BYTES = 2 * 1024**3
_END_SECONDS = 10.0


class CrashTestDirectory:
    """The files and subdirectories of one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.run = self.directory / "run"
        self.broker = self.run / "broker"
        self.checkpoints = self.run / "checkpoints"
        self.cluster = self.run / "cluster"
        self.audit = self.run / "audit"
        self.postgres = self.run / "postgres"
        self.job_log = self.run / "job.log"
        self.fired = self.run / "failpoints.log"
        self.calls = self.run / "calls"
        self.html = self.directory / "report.html"
        self.json = self.directory / "report.json"

    @property
    def process_file(self) -> Path:
        return self.run / "process.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory and prepare an empty `run` in it. Raises ConfigError if another test runs here."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "test.lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise ConfigError(
                    f"a crash test runs in {self.directory} already (process "
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
            marker = self.run / "made-by-kafka-eos-crash-test"
            if not marker.exists():
                raise ConfigError(
                    f"{self.run} exists but does not belong to a crash test; move it away or choose another --directory"
                )
            self._stop_leftovers()
            shutil.rmtree(self.run)
        self.run.mkdir()
        (self.run / "made-by-kafka-eos-crash-test").touch()

    def _stop_leftovers(self) -> None:
        """End what an interrupted test has left running."""
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
        """Write down the job's process, so that a later test can find it."""
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
            raise ConfigError(f"the job of an earlier test (process {pid}) survived SIGKILL: its disk may hang")
        time.sleep(0.05)


def check_machine(directory: Path) -> None:
    """Raise ConfigError for anything that would stop a test halfway: no Java, no audit, a full disk."""
    find_java()
    ensure_extra("audit", "a crash test, which ends with an audit,")
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if free < _NEEDED_BYTES:
        raise ConfigError(
            f"{directory.absolute()} has {free / 1e9:.1f} GB left; it needs {_NEEDED_BYTES / 1e9:.1f} GB. "
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
