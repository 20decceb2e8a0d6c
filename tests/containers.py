"""A PostgreSQL in Docker, for ``pytest --postgres=testcontainers``. Imported only then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from testcontainers.core.container import DockerContainer

from kafka_eos.devtools.broker.settings import free_ports
from kafka_eos.devtools.broker.wait_until import wait_until

POSTGRES = "postgres:17"
_SECONDS = 120.0


@contextmanager
def postgres_container(prepared: int) -> Iterator[str]:
    """Runs the official image, which lets so many transactions be prepared; yields its conninfo."""
    (port,) = free_ports(1)
    container = DockerContainer(POSTGRES).with_bind_ports(5432, port).with_env("POSTGRES_HOST_AUTH_METHOD", "trust")
    conninfo = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    with container.with_command(f"postgres -c max_prepared_transactions={prepared}"):
        if not wait_until(lambda: _takes_connections(conninfo), _SECONDS):
            raise RuntimeError(f"{POSTGRES} does not answer on port {port} after {_SECONDS:.0f} s")
        yield conninfo


def _takes_connections(conninfo: str) -> bool:
    try:
        psycopg.connect(conninfo, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
