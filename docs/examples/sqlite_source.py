"""A source that reads a table of SQLite to which rows are only added, with ids 1, 2, 3, … by AUTOINCREMENT."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from kafka_eos.abc import Json
from kafka_eos.connectors.polling_source import PollingSource
from kafka_eos.testing import SourceUnderTest, check_source


class SqliteSource(PollingSource[Any]):
    """The JSON texts in column ``value``. The table is one split, and the id of a row is its offset."""

    def __init__(self, path: str, table: str) -> None:
        self.path, self.table = path, table

    def describe(self) -> Mapping[str, Json]:
        return {"connector": "sqlite", "path": self.path, "table": self.table}

    def splits(self) -> Mapping[str, range]:
        ((first, last),) = self.ask(f"SELECT coalesce(min(id), 1), coalesce(max(id), 0) FROM {self.table}")  # noqa: S608 - the table is the program's
        return {f"{self.table}/0": range(first, last + 1)}

    def read(self, split: str, first: int, most: int) -> Sequence[tuple[int, bytes]]:
        select = f"SELECT id, value FROM {self.table} WHERE id >= ? ORDER BY id LIMIT ?"  # noqa: S608 - as above
        return [(number, text.encode()) for number, text in self.ask(select, first, most)]

    def decode(self, data: bytes) -> Any:
        return json.loads(data)

    def ask(self, statement: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            return connection.execute(statement, values).fetchall()


def test_sqlite_source(tmp_path: Path) -> None:
    def fresh() -> SourceUnderTest:
        source = SqliteSource(str(tmp_path / f"{len([*tmp_path.iterdir()])}.db"), "orders")

        def add(number: int) -> list[object]:
            source.ask("INSERT INTO orders (value) VALUES (?)", json.dumps({"id": number}))
            return [{"id": number}]

        def lose() -> None:
            source.ask("DELETE FROM orders WHERE id BETWEEN 2 AND 3")

        def spoil() -> list[object]:
            source.ask("INSERT INTO orders (value) VALUES ('no JSON')")
            return add(6)

        source.ask("CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT NOT NULL)")
        values = [value for number in range(1, 5) for value in add(number)]
        return SourceUnderTest(lambda: SqliteSource(source.path, "orders"), values, lambda: add(5), lose, spoil)

    check_source(fresh)
