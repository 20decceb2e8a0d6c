"""A database asks for a password that is changed while the job runs: libpq's file of passwords is read again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from kafka_eos.devtools.postgres import PostgresServer
from tests.chaos import test_tables
from tests.chaos.feeding import feeding
from tests.chaos.harness import Job
from tests.chaos.running import running

pytestmark = [pytest.mark.campaign, pytest.mark.chaos]

PASSWORDS = ("canary=8d21,c5", "canary=8d21,c6", "canary=8d21,c7")


class Asking:
    """A server that lets ``app`` in with a password only; everybody else, the test's own clients, without."""

    def __init__(self, server: PostgresServer, file: Path) -> None:
        self._server, self.file = server, file
        rules = server.home / "data" / "pg_hba.conf"
        rules.write_text(f"host all app 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.do("SELECT pg_reload_conf()", "CREATE ROLE app LOGIN", "CREATE DATABASE shop OWNER app")

    def conninfo(self, user: str) -> str:
        return f"host=127.0.0.1 port={self._server.port} user={user} dbname=shop"

    def knows(self, password: str) -> None:
        """From now on this is the password; connections that are open end, as an administrator would see to it."""
        self.do(
            f"ALTER ROLE app PASSWORD '{password}'",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'",
        )

    def write(self, password: str) -> None:
        """Into libpq's file; nobody sees half of it."""
        beside = self.file.with_suffix(".new")
        beside.touch(mode=0o600)
        beside.write_text(f"127.0.0.1:{self._server.port}:*:app:{password}\n")
        beside.replace(self.file)

    def do(self, *statements: str) -> None:
        with psycopg.connect(self._server.conninfo, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="kafka-eos-postgres-"))).start()
    try:
        yield Asking(server, tmp_path / "pgpass")
    finally:
        server.remove()


def test_a_password_is_changed_while_the_job_runs(new_job: Callable[..., Job], asking: Asking) -> None:
    """First at the server: nobody comes in before the file has it. Then in the file first."""
    first, second, third = PASSWORDS
    asking.knows(first)
    asking.write(first)
    job = new_job(300, app="tables.py", TEST_DATABASE=asking.conninfo("app"), PGPASSFILE=asking.file)

    with running(job) as started, feeding(job):
        started.until_output()
        asking.knows(second)
        started.until(lambda: "password authentication failed" in started.log, "be refused")
        asking.write(second)
        started.until_committed(3)

        asking.write(third)
        asking.knows(third)
        started.until_committed(3)
    job.run()

    job.environment["TEST_DATABASE"] = asking.conninfo("postgres")
    test_tables.check(job)
    kept = [path for path in (*job.checkpoints.rglob("*"), job.log) if path.is_file()]
    assert [path for path in kept for password in PASSWORDS if password.encode() in path.read_bytes()] == []
