"""The one PostgreSQL of a test run, started by who asks first; see ``shared_broker``."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

from kafka_eos.demo.postgres import Postgres


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
