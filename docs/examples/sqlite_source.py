"""A source that reads a table of SQLite to which rows are only added, with ids 1, 2, 3, … by AUTOINCREMENT."""

import json
import sqlite3
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kafka_eos.errors import ConfigError, InputLost
from kafka_eos.ids import EpochId, SplitId
from kafka_eos.interfaces import Guarantee, JobContext, Json, Positions, TaskContext
from kafka_eos.records import Batch, RawOrigin, RawRecord
from kafka_eos.testing import SourceUnderTest, check_source


class SqliteSource:
    """The JSON texts in column ``value`` of a table. It has one split, and a position is the last id that was read."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, path: str, table: str) -> None:
        self.path, self.table, self.split = path, table, SplitId(f"{table}/0")

    def describe(self) -> Mapping[str, Json]:
        return {"connector": "sqlite", "path": self.path, "table": self.table}

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        newest = self.newest()
        for split, position in (known or {}).items():
            if split != self.split:
                raise ConfigError(f"the checkpoint is of {split}: give a source of another table another name")
            if after(position) > newest:
                raise InputLost(f"{split} was read up to id {after(position)}, and now ends at {newest}")
        return known or {self.split: {"after": 0}}

    def ends(self, ctx: JobContext) -> Positions:
        return {self.split: {"after": self.newest()}}

    def reader(self, ctx: TaskContext, positions: Positions) -> "SqliteReader":
        return SqliteReader(self, ctx, positions)

    def completed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Nobody watches the lag of a table."""

    def newest(self) -> int:
        ((newest,),) = self.ask(f"SELECT coalesce(max(id), 0) FROM {self.table}")
        return int(newest)

    def ask(self, statement: str, *values: int) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path, timeout=10)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()


class SqliteReader:
    def __init__(self, source: SqliteSource, ctx: TaskContext, positions: Positions) -> None:
        self.source, self.ctx = source, ctx
        self.at: dict[SplitId, int] = {}
        self.paused: Collection[SplitId] = ()
        self.ended = False
        self.assign(positions)

    def poll(self, max_records: int, timeout: float) -> Batch[Any] | None:
        split, table, rows = self.source.split, self.source.table, []
        if split in self.at and split not in self.paused:
            select = f"SELECT id, value FROM {table} WHERE id > ? ORDER BY id LIMIT ?"
            rows = self.source.ask(select, self.at[split], max_records)
            self.ended = not rows
        if not rows:
            time.sleep(timeout)
            return None
        if rows[-1][0] != self.at[split] + len(rows):
            raise InputLost(f"{table}: ids after {self.at[split]} are gone, and they had not been read")
        batch = self.decoded([RawRecord(table, 0, number, -1, None, text.encode(), ()) for number, text in rows])
        self.at[split] = rows[-1][0]
        return batch if batch.values else None

    def decoded(self, raws: list[RawRecord]) -> Batch[Any]:
        values, good = [], []
        for row, raw in enumerate(raws):
            try:
                values.append(json.loads(raw.value or b""))
                good.append(row)
            except ValueError as error:
                self.ctx.services.reject_record(self.ctx.operator, raw, error)
        return Batch(values, good, RawOrigin(self.ctx.operator, raws))

    def positions(self) -> Positions:
        return {split: {"after": at} for split, at in self.at.items()}

    def assign(self, positions: Positions) -> None:
        self.at |= {split: after(position) for split, position in positions.items()}

    def pause(self, splits: Collection[SplitId]) -> None:
        self.paused = splits

    def at_end(self) -> Collection[SplitId]:
        return list(self.at) if self.ended else []

    def lag(self) -> int | None:
        return 0 if self.ended else None

    def reached(self, ends: Positions) -> bool:
        return all(split in self.at and self.at[split] >= after(end) for split, end in ends.items())

    def close(self) -> None:
        """Nothing is held open."""


def after(position: Mapping[str, Json]) -> int:
    found = position["after"]
    assert isinstance(found, int)
    return found


def test_sqlite_source(tmp_path: Path) -> None:
    def fresh() -> SourceUnderTest:
        path = str(tmp_path / f"{uuid.uuid4().hex}.db")

        def do(statement: str, *values: tuple[object, ...]) -> None:
            with sqlite3.connect(path) as connection:
                connection.executemany(statement, values or [()])
            connection.close()

        def grow() -> list[object]:
            do("INSERT INTO orders (value) VALUES (?)", ('{"id": 5}',))
            return [{"id": 5}]

        do("CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT NOT NULL)")
        do("INSERT INTO orders (value) VALUES (?)", *((json.dumps({"id": n}),) for n in range(1, 5)))
        return SourceUnderTest(
            lambda: SqliteSource(path, "orders"),
            values=[{"id": n} for n in range(1, 5)],
            grow=grow,
            lose=lambda: do("DELETE FROM orders WHERE id BETWEEN 2 AND 3"),
        )

    check_source(fresh)
