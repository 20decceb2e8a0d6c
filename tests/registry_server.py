"""A real schema registry for tests: Apicurio, with Confluent's API.

    RegistryServer(home)   one with its schemas in memory; started, frozen and killed by its owner
    shared(directory)      the one of a test run, started by who asks first; see ``shared_broker``

Rule: it is unpacked once a machine, beside the archive that it came in.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tarfile
import urllib.request
from pathlib import Path

from kafka_eos._util.jvm.jars import cache_dir, fetch_jars
from kafka_eos._util.jvm.java import find_java
from kafka_eos.devtools.postgres import free_port, is_alive
from tests.waiting import eventually

_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-Dquarkus.http.host=127.0.0.1")


def _unpacked() -> Path:
    """The jar to run."""
    (archive,) = fetch_jars("registry")
    home = cache_dir() / archive.name.removesuffix("-all.tar.gz")
    with (cache_dir() / "registry.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.is_dir():
            partial = home.with_name(f"{home.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            with tarfile.open(archive) as files:
                files.extractall(partial, filter="data")
            partial.rename(home)
    return next(home.glob("*-runner.jar"))


class RegistryServer:
    """One server. Its owner may freeze it (``signal``), or kill it for good: what it knows is in memory."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    @property
    def port(self) -> int:
        return int((self.home / "port").read_text())

    @property
    def pid(self) -> int | None:
        """None if none runs."""
        try:
            pid = int((self.home / "pid").read_text())
            return pid if is_alive(pid) and b"apicurio" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
        except (FileNotFoundError, ProcessLookupError):
            return None

    def start(self) -> RegistryServer:
        self.home.mkdir(parents=True, exist_ok=True)
        if not (self.home / "port").exists():
            (self.home / "port").write_text(str(free_port()))
        command = [
            find_java(),
            *_OPTIONS,
            f"-Dquarkus.http.port={self.port}",
            "-jar",
            _unpacked(),
        ]
        with (self.home / "log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        (self.home / "pid").write_text(str(process.pid))

        def answers() -> bool:
            # Not by its command line, which is empty for a moment after the start.
            assert process.poll() is None, (self.home / "log").read_text()[-2000:]
            return self.answers()

        eventually(answers, "the schema registry answers")
        return self

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def signal(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            os.kill(pid, number)

    def kill(self) -> None:
        if (pid := self.pid) is not None:
            self.signal(signal.SIGKILL)
            eventually(lambda: not is_alive(pid), "the schema registry ends")


def shared(directory: Path) -> RegistryServer:
    """The server of a run, whose place is ``directory``."""
    with (directory / "registry.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = RegistryServer(directory / "registry")
        return server if server.pid is not None else server.start()
