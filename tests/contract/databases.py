"""Sinks of SQLite and PostgreSQL for tests of ``DbApiSink``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import conninfo
from sqlalchemy import URL

from kafka_eos.connectors.dbapi import DbApiSink

COLUMNS: Mapping[str, str] = {"id": "BIGINT NOT NULL", "te%xt?": "TEXT NOT NULL CHECK (\"te%xt?\" NOT LIKE '%never%')"}
"""With characters that mean something in statements with parameters."""


class _Renamed(DbApiSink[dict[str, Any]]):
    def row(self, value: dict[str, Any]) -> Sequence[Any]:
        return value["id"], value["text"]


def sqlite_sink(path: str, key: Sequence[str] = ()) -> DbApiSink[dict[str, Any]]:
    return _Renamed(f"sqlite:///{path}", "rows", COLUMNS, key=key)


def postgres_sink(server: str, key: Sequence[str] = ()) -> DbApiSink[dict[str, Any]]:
    return _Renamed(postgres_url(server), "rows", COLUMNS, key=key)


def postgres_url(server: str) -> URL:
    """Return the URL of a server and database that libpq's text names."""
    given = conninfo.conninfo_to_dict(server)
    return URL.create(
        "postgresql+psycopg",
        database=str(given.pop("dbname")),
        query={name: str(value) for name, value in given.items()},
    )
