"""A table of SQLite: its URL and its columns are all that ``DbApiSink`` needs."""

import sqlite3
import uuid
from collections.abc import Mapping
from pathlib import Path

from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.testing import SinkUnderTest, check_sink

ROWS: Mapping[str, str] = {"id": "INTEGER NOT NULL", "text": "TEXT NOT NULL CHECK (text <> '')"}


def make_sink(path: str) -> DbApiSink[dict[str, object]]:
    return DbApiSink(f"sqlite:///{path}", "rows", ROWS)


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
