"""SQL for staging tables, and for copying rows from them into a user's table. Pure.

Rule: the database quotes identifiers; only the columns' definitions, which a user gives, are inserted unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.dbapi.database import Database, P

ORDER: Final = "kafka_eos_n"
"""The column of a staging table with the order of its rows; a user's column must not have this name."""


def stage_columns(database: Database, definitions: Mapping[str, str]) -> list[str]:
    """Return the columns of a staging table: the user's with their rules, so that bad rows are rejected early."""
    return [
        f"{ORDER} {database.number} NOT NULL",
        *(f"{database.quoted(name)} {definition}" for name, definition in definitions.items()),
    ]


def insert(database: Database, stage: str, target: TargetTable) -> str:
    """Return the statement that inserts one row, with its number, into a staging table, whose name is quoted."""
    columns = ", ".join([ORDER, *map(database.quoted, target.columns)])
    return f"INSERT INTO {stage} ({columns}) VALUES ({', '.join([P] * (len(target.columns) + 1))})"


def apply(database: Database, stage: str, target: TargetTable) -> Iterator[str]:
    """Yield the statements that make staged rows visible, in stream order.

    With a key, the last row of each key wins and replaces the existing row completely.
    """
    table, columns = database.table(target.table), ", ".join(map(database.quoted, target.columns))
    own = ", ".join(f"s.{database.quoted(name)}" for name in target.columns)
    if not target.key:
        yield f"INSERT INTO {table} ({columns}) SELECT {own} FROM {stage} s ORDER BY s.{ORDER}"
        return
    key = [database.quoted(name) for name in target.key]
    keys = ", ".join(key)
    same = " AND ".join(f"s.{name} = {table}.{name}" for name in key)
    yield f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {stage} s WHERE {same})"
    yield (
        f"INSERT INTO {table} ({columns}) SELECT {own} FROM {stage} s"
        f" JOIN (SELECT MAX({ORDER}) AS newest FROM {stage} GROUP BY {keys}) t ON s.{ORDER} = t.newest"
        f" ORDER BY s.{ORDER}"
    )
