"""A real PostgreSQL for tests: the one that is installed, else the one that the wheel ``pgserver`` brings.

    Postgres(home)            a server with its data in ``home/data``; started, stopped, killed and frozen by its owner
    shared(directory)         the one server of a test run, started by who asks first; see ``shared_broker``

Rule: PostgreSQL does not run as root; then it runs as a user that is there anyway, in a directory of that user's.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psycopg

from tests.waiting import eventually

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # nobody cuts the power
    "shared_buffers": "32MB",
    "max_connections": "100",
}


def binaries() -> Path:
    """Where ``initdb`` and ``postgres`` are."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    if installed:
        return installed[-1].parent
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    spec = find_spec("pgserver")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


def _user() -> str | None:
    """Who runs the server; None for who runs the tests."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


class Postgres:
    """One server. ``start`` and ``stop`` may follow each other; its port stays."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def _port_file(self) -> Path:
        return self.home / "port"

    @property
    def port(self) -> int:
        return int(self._port_file.read_text())

    @property
    def conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    @property
    def pid(self) -> int | None:
        """Of the postmaster; None if none runs."""
        file = self.home / "data" / "postmaster.pid"
        try:
            pid = int(file.read_text().split()[0])
            return pid if b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return None

    def start(self) -> Postgres:
        data, user = self.home / "data", _user()
        if not data.exists():
            self.home.mkdir(parents=True, exist_ok=True)
            if user is not None:
                shutil.chown(self.home, user)
            command = [binaries() / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
            done = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            self._port_file.write_text(str(free_port()))
        options = [f"-c{name}={value}" for name, value in {**_SETTINGS, "port": self.port}.items()]
        with (self.home / "log").open("ab") as log:
            subprocess.Popen(
                [binaries() / "postgres", "-D", data, *options],
                user=user,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually(self.answers, "PostgreSQL answers")
        return self

    def answers(self) -> bool:
        try:
            psycopg.connect(self.conninfo, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT is a crash: the next start recovers. SIGINT shuts down."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, how)
            eventually(lambda: not is_alive(pid), "PostgreSQL ends")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)


def shared(directory: Path) -> Postgres:
    """The server of a run, whose place is ``directory``."""
    with (directory / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        link = directory / "postgres"
        if not link.is_symlink():
            link.symlink_to(tempfile.mkdtemp(prefix="kafka-eos-postgres-"))
        server = Postgres(link.resolve())
        if server.pid is None:
            server.start()
        return server


def remove_shared(directory: Path) -> None:
    """What is left of it."""
    link = directory / "postgres"
    if link.is_symlink():
        Postgres(link.resolve()).remove()


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended, and whose parent has not noticed, does not."""
    with suppress(ChildProcessError):  # another process has started it
        os.waitpid(pid, os.WNOHANG)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
