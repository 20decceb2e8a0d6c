"""Where the job of a demo writes: a topic, Parquet files, and a table if PostgreSQL can be started here.

The pipeline (``three_systems.py``) is told by environment variables, like the processes that run it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from kafka_eos._util.extras import expect_extra
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.demo.directory import Home
from kafka_eos.devtools.demo.postgres import Postgres, place


@dataclass(frozen=True, slots=True)
class Outputs:
    """In words, for people. ``missing``: why there is no table, if there is none."""

    names: tuple[str, ...]
    missing: str | None = None


def start_outputs(home: Home, cleanup: ExitStack) -> Outputs:
    """Start PostgreSQL, or learn why that is not possible, and tell the pipeline; until ``cleanup`` ends it."""
    found = ["topic totals", f"Parquet files in {home.files}"]
    told, missing = {"ORDERS_FILES": str(home.files)}, None
    try:
        told["ORDERS_DATABASE"] = _started(home, cleanup).conninfo
        found.append("table totals in PostgreSQL")
    except ConfigError as error:
        missing = str(error)
    _tell(told, cleanup)
    return Outputs(tuple(found), missing)


def _started(home: Home, cleanup: ExitStack) -> Postgres:
    expect_extra("postgres", "the table of the demo")
    server = Postgres(place(home.postgres))
    cleanup.callback(server.remove)
    return server.start()


def _tell(variables: Mapping[str, str], cleanup: ExitStack) -> None:
    """This process, and those that it starts. What they are at the end is what they were before."""
    for name, value in variables.items():
        cleanup.callback(_put_back, name, os.environ.get(name))
        os.environ[name] = value


def _put_back(name: str, before: str | None) -> None:
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before
