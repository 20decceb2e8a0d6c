"""Servers in Docker, for ``pytest --broker=testcontainers`` and ``--postgres=testcontainers``. Imported only then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from testcontainers.core.container import DockerContainer

from kafka_eos.devtools.broker.readiness import is_ready
from kafka_eos.devtools.broker.settings import free_ports, server_properties
from kafka_eos.devtools.broker.wait_until import wait_until

IMAGE = "apache/kafka:4.3.0"
POSTGRES = "postgres:17"
_SECONDS = 120.0


@contextmanager
def kafka_container() -> Iterator[str]:
    """Runs the official image with the development broker's settings; yields ``host:port``."""
    port, controller_port = free_ports(2)
    listeners = f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:{controller_port}"
    properties = server_properties(Path("/tmp/kafka-data"), port, controller_port, {"listeners": listeners})
    container = DockerContainer(IMAGE).with_bind_ports(port, port)
    for line in properties.splitlines():
        name, value = line.split("=", 1)
        container = container.with_env("KAFKA_" + name.replace(".", "_").upper(), value)
    with container:
        if not wait_until(lambda: is_ready(port), _SECONDS):
            raise RuntimeError(f"{IMAGE} does not answer on port {port} after {_SECONDS:.0f} s")
        yield f"127.0.0.1:{port}"


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
