"""Databases for tests of ``DbApiSink``: SQLite in every style of parameters that it knows, and PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import psycopg

from docs.examples.sqlite_sink import Sqlite
from kafka_eos.connectors.dbapi import Connection, Database, DbApiSink

_ERRORS = (
    "Error", "InterfaceError", "OperationalError", "InternalError", "IntegrityError", "DataError", "ProgrammingError",
    "NotSupportedError",
)  # fmt: skip


def styled(driver: Any, paramstyle: str) -> Any:
    """A driver that is asked in another style, which it knows too."""
    return SimpleNamespace(paramstyle=paramstyle, **{name: getattr(driver, name) for name in _ERRORS})


class NamedSqlite(Sqlite):
    driver = styled(sqlite3, "named")


class Postgres(Database):
    driver = psycopg

    def __init__(self, conninfo: str, paramstyle: str = "pyformat") -> None:
        self._conninfo = conninfo
        self.driver = styled(psycopg, paramstyle)

    def connect(self) -> Connection:
        return psycopg.connect(self._conninfo, options="-c lock_timeout=5s")

    @property
    def name(self) -> str:
        return "postgres:test"


COLUMNS: Mapping[str, str] = {"id": "BIGINT NOT NULL", "te%xt?": "TEXT NOT NULL"}
"""With characters that mean something in statements with parameters."""


def _sink(database: Database, key: Sequence[str]) -> DbApiSink[dict[str, Any]]:
    return _Renamed(database, "rows", COLUMNS, key=key)


class _Renamed(DbApiSink[dict[str, Any]]):
    def row(self, value: dict[str, Any]) -> Sequence[Any]:
        return value["id"], value["text"]


def sqlite_sink(path: str, key: Sequence[str] = (), named: bool = False) -> DbApiSink[dict[str, Any]]:
    return _sink(NamedSqlite(path) if named else Sqlite(path), key)


def postgres_sink(conninfo: str, key: Sequence[str] = (), paramstyle: str = "pyformat") -> DbApiSink[dict[str, Any]]:
    return _sink(Postgres(conninfo, paramstyle), key)
