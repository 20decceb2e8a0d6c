"""The servers of a test session: those that run already, in Docker, or local ones.

Rule: the same test runs on all of them. A server that a session started ends with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from kafka_eos._util.extras import ensure_extra
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.containers import has_docker, kafka_container, postgres_container
from kafka_eos.devtools.postgres import PostgresServer, create_server_directory

AUTO: Final = "auto"
_KINDS: Final = (AUTO, "local", "testcontainers")
STARTED: Final = set[str]()
"""The addresses of servers that this session has started: they have nothing but what tests wrote."""


def choose(option: str | None, variable: str, flag: str, example: str) -> str:
    """Return what the option or the variable says: one of the kinds, or an address, which resembles ``example``."""
    wanted = option or os.environ.get(variable) or AUTO
    if wanted not in _KINDS and not any(sign in wanted for sign in ":="):
        raise ConfigError(f"{flag} (or {variable}): {wanted!r} must be {', '.join(_KINDS)} or an address: {example}")
    return wanted


@contextmanager
def open_broker(option: str | None, make_directory: Callable[[], Path]) -> Iterator[str]:
    """Yield the address of a broker."""
    wanted = choose(option, "KAFKA_EOS_TEST_BROKER", "--kafka-eos-broker", "HOST:PORT")

    @contextmanager
    def local() -> Iterator[str]:
        with Broker(make_directory()) as broker:
            yield broker.bootstrap

    with ExitStack() as servers:
        yield _open(wanted, local, kafka_container, servers)


@contextmanager
def open_postgres(option: str | None, make_directory: Callable[[], Path]) -> Iterator[str]:
    """Yield the conninfo of a PostgreSQL."""
    wanted = choose(option, "KAFKA_EOS_TEST_POSTGRES", "--kafka-eos-postgres", "host=… port=… user=… dbname=…")
    ensure_extra("postgres", "the fixture kafka_eos_postgres")

    @contextmanager
    def local() -> Iterator[str]:
        server = PostgresServer(create_server_directory(make_directory() / "postgres"))
        try:
            yield server.start().conninfo
        finally:
            server.remove()

    with ExitStack() as servers:
        yield _open(wanted, local, postgres_container, servers)


def _open(
    wanted: str,
    local: Callable[[], AbstractContextManager[str]],
    container: Callable[[], AbstractContextManager[str]],
    servers: ExitStack,
) -> str:
    """Return an address that is given, or start a server. Skip the tests if nothing is given and none can be started.

    A run that must not skip them, such as that of a CI, says what it wants.
    """
    if wanted not in _KINDS:
        return wanted
    in_docker = wanted == "testcontainers" or (wanted == AUTO and has_docker())
    try:
        address = servers.enter_context(container() if in_docker else local())
    except ConfigError as error:
        if wanted != AUTO or in_docker:
            raise
        pytest.skip(f"no server for this test: Docker does not run, and {error}")
    STARTED.add(address)
    return address
