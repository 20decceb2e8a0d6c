"""A Kafka broker and a PostgreSQL in Docker: the official images, for tests. Needs testcontainers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker.readiness import is_ready, wait_until
from kafka_eos.devtools.broker.settings import free_ports, server_properties
from kafka_eos.devtools.postgres import accepts_connections

IMAGE = "apache/kafka:4.3.0"
POSTGRES = "postgres:17"
_SECONDS = 120.0


def has_docker() -> bool:
    """Return whether testcontainers is installed and a Docker daemon responds."""
    if find_spec("testcontainers") is None:
        return False

    with suppress(OSError, subprocess.TimeoutExpired):  # no command, or a daemon that hangs
        return subprocess.run(["docker", "info"], capture_output=True, timeout=5, check=False).returncode == 0  # noqa: S607
    return False


@contextmanager
def kafka_container() -> Iterator[str]:
    """Run the image and yield ``host:port``. Raise ConfigError if the broker does not respond."""
    from testcontainers.core.container import DockerContainer

    port, controller_port = free_ports(2)
    listeners = f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:{controller_port}"
    properties = server_properties(Path("/tmp/kafka-data"), port, controller_port, {"listeners": listeners})  # noqa: S108 - in the container
    container = DockerContainer(IMAGE).with_bind_ports(port, port)
    for line in properties.splitlines():
        name, value = line.split("=", 1)
        container = container.with_env("KAFKA_" + name.replace(".", "_").upper(), value)
    with container:
        if not wait_until(lambda: is_ready(port), _SECONDS):
            raise ConfigError(f"{IMAGE} does not respond on port {port} after {_SECONDS:.0f} s; look at docker logs")
        yield f"127.0.0.1:{port}"


@contextmanager
def postgres_container(prepared: int = 0) -> Iterator[str]:
    """Run the image and yield its conninfo. ``prepared``: transactions that it lets be prepared."""
    from testcontainers.core.container import DockerContainer

    (port,) = free_ports(1)
    container = DockerContainer(POSTGRES).with_bind_ports(5432, port).with_env("POSTGRES_HOST_AUTH_METHOD", "trust")
    conninfo = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    with container.with_command(f"postgres -c max_prepared_transactions={prepared}"):
        if not wait_until(lambda: accepts_connections(conninfo), _SECONDS):
            raise ConfigError(f"{POSTGRES} does not respond on port {port} after {_SECONDS:.0f} s; look at docker logs")
        yield conninfo
