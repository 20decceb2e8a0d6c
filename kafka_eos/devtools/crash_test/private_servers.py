"""Servers and directories that a crash test has for its job alone, and their addresses in environment variables.

The pipeline and the processes that run it read these variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from kafka_eos._util.extras import ensure_extra
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.crash_test.directory import CrashTestDirectory
from kafka_eos.devtools.postgres import PostgresServer, create_server_directory


@dataclass(frozen=True, slots=True)
class WantedServers:
    """Variables that get the conninfo of a PostgreSQL, and those that get an empty directory.

    ``optional``: without PostgreSQL the test runs anyway.
    """

    postgres: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    optional: bool = False


def start_servers(home: CrashTestDirectory, wanted: WantedServers, cleanup: ExitStack) -> str | None:
    """Start what is wanted and set the variables, until ``cleanup`` ends it. Return why there is no PostgreSQL.

    Raise ConfigError if it cannot be started and is not optional.
    """
    variables = {name: str(home.run / f"files-{name.lower()}") for name in wanted.directories}
    missing = None
    if wanted.postgres:
        try:
            conninfo = _started(home, cleanup).conninfo
            variables |= dict.fromkeys(wanted.postgres, conninfo)
        except ConfigError as error:
            if not wanted.optional:
                raise
            missing = str(error)
    _set_environment(variables, cleanup)
    return missing


def _started(home: CrashTestDirectory, cleanup: ExitStack) -> PostgresServer:
    ensure_extra("postgres", "a private PostgreSQL")
    server = PostgresServer(create_server_directory(home.postgres))
    cleanup.callback(server.remove)
    return server.start()


def _set_environment(variables: Mapping[str, str], cleanup: ExitStack) -> None:
    """Set environment variables for this process and its children until the end.

    What they are at the end is what they were before.
    """
    for name, value in variables.items():
        cleanup.callback(_put_back, name, os.environ.get(name))
        os.environ[name] = value


def _put_back(name: str, before: str | None) -> None:
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before
