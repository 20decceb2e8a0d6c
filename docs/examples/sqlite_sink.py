"""A sink for SQLite: what a database is like, in one small class; all that makes it exactly-once is inherited."""

import sqlite3
import uuid
from collections.abc import Mapping
from pathlib import Path

from kafka_eos.connectors.dbapi import Connection, Database, DbApiSink
from kafka_eos.testing import SinkUnderTest, check_sink

BUSY, LOCKED, READ_ONLY, INPUT_OUTPUT, FULL, CANNOT_OPEN = 5, 6, 8, 10, 13, 14


class Sqlite(Database):
    """A SQLite database in one file."""

    driver = sqlite3

    def __init__(self, path: str) -> None:
        self._path = Path(path).resolve()

    def connect(self) -> Connection:
        # IMMEDIATE: a transaction locks the file when it begins, so two transactions that read first cannot deadlock.
        # Several threads use the connection, one at a time.
        connection = sqlite3.connect(self._path, timeout=10, isolation_level="IMMEDIATE", check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    @property
    def name(self) -> str:
        return f"sqlite:{self._path}"

    def is_retryable(self, error: Exception) -> bool:
        """Return whether SQLite is busy: OperationalError also means a missing table, and the code shows which."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code in (BUSY, LOCKED, READ_ONLY, INPUT_OUTPUT, FULL, CANNOT_OPEN)


ROWS: Mapping[str, str] = {"id": "INTEGER NOT NULL", "text": "TEXT NOT NULL CHECK (text <> '')"}


def make_sink(path: str) -> DbApiSink[dict[str, object]]:
    return DbApiSink(Sqlite(path), "rows", ROWS)


def test_sqlite_sink(tmp_path: Path) -> None:
    def fresh() -> SinkUnderTest:
        path = tmp_path / f"{uuid.uuid4().hex}.db"

        def ask(statement: str) -> list[object]:
            with sqlite3.connect(path) as connection:
                return [{"id": number, "text": text} for number, text in connection.execute(statement)]

        def clear() -> None:
            ask("DELETE FROM rows")

        ask("CREATE TABLE rows (n INTEGER PRIMARY KEY, id INTEGER NOT NULL, text TEXT NOT NULL)")
        read = "SELECT id, text FROM rows ORDER BY n"
        return SinkUnderTest("test_my_sink:make_sink", {"path": str(path)}, lambda: ask(read), remove_visible=clear)

    check_sink(fresh)
