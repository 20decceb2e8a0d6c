"""A real PgBouncer in front of a PostgreSQL server, for tests of poolers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from psycopg import conninfo

from kafka_eos.devtools.postgres import free_port
from tests.waiting import eventually


def find_pgbouncer() -> str | None:
    """Return the path of the program, Debian's package ``pgbouncer``; None if it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


@contextmanager
def pooling(server: str, pool_mode: str) -> Iterator[str]:
    """Run PgBouncer with one connection to the server; yield the conninfo that goes through it."""
    to, port = conninfo.conninfo_to_dict(server), free_port()
    program = find_pgbouncer()
    assert program is not None
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        config = Path(directory) / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n* = host={to['host']} port={to['port']} user={to['user']}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {pool_mode}\ndefault_pool_size = {1 if pool_mode == 'transaction' else 20}\n"
        )
        user = "nobody" if os.getuid() == 0 else None  # it refuses to run as root
        process = subprocess.Popen([program, "-q", config], user=user, stdin=subprocess.DEVNULL)
        through = conninfo.make_conninfo(server, host="127.0.0.1", port=port)
        try:
            eventually(lambda: _answers(through), "PgBouncer answers")
            yield through
        finally:
            process.terminate()
            process.wait()


def _answers(through: str) -> bool:
    try:
        psycopg.connect(through).close()
    except psycopg.OperationalError:
        return False
    return True
