"""The outputs of a demo's job: a topic, Parquet files, and a table if PostgreSQL can be started here.

The pipeline (``three_systems.py``) and the processes that run it receive them in environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from kafka_eos._util.extras import ensure_extra
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.demo.directory import DemoDirectory
from kafka_eos.devtools.postgres import PostgresServer, create_server_directory


@dataclass(frozen=True, slots=True)
class DemoOutputs:
    """The names of the job's outputs, and the reason if it has no table."""

    names: tuple[str, ...]
    missing: str | None = None


def start_outputs(home: DemoDirectory, cleanup: ExitStack) -> DemoOutputs:
    """Start PostgreSQL, or learn why that is not possible, and tell the pipeline; until ``cleanup`` ends it."""
    found = ["topic totals", f"Parquet files in {home.files}"]
    environment, missing = {"ORDERS_FILES": str(home.files)}, None
    try:
        environment["ORDERS_DATABASE"] = _started(home, cleanup).conninfo
        found.append("table totals in PostgreSQL")
    except ConfigError as error:
        missing = str(error)
    _set_environment(environment, cleanup)
    return DemoOutputs(tuple(found), missing)


def _started(home: DemoDirectory, cleanup: ExitStack) -> PostgresServer:
    ensure_extra("postgres", "the table of the demo")
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
