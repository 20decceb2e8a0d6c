"""The PostgreSQL of a test run, and the one that lets transactions be prepared, each started by who asks first.

See ``shared_broker``.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql

from kafka_eos.devtools.postgres import PostgresServer

NAMES = ("postgres", "postgres-that-prepares")


def shared(directory: Path, prepared: int = 0) -> PostgresServer:
    """The server of a run, whose place is ``directory``. ``prepared``: the other one, which lets so many be."""
    with (directory / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        link = directory / NAMES[bool(prepared)]
        if not link.is_symlink():
            link.symlink_to(tempfile.mkdtemp(prefix="kafka-eos-postgres-"))
        server = PostgresServer(link.resolve(), prepared)
        if server.pid is None:
            server.start()
        return server


@contextmanager
def databases(server: str) -> Iterator[Callable[[], str]]:
    """``make() -> conninfo`` of a new database of a server, whose conninfo this is; dropped at the end."""
    made: list[str] = []

    def make() -> str:
        name = f"test_{uuid4().hex[:12]}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        made.append(name)
        return server.replace("dbname=postgres", f"dbname={name}")

    yield make
    with psycopg.connect(server, autocommit=True) as connection:
        for name in made:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def remove_shared(directory: Path) -> None:
    """What is left of both."""
    for name in NAMES:
        link = directory / name
        if link.is_symlink():
            PostgresServer(link.resolve()).remove()
