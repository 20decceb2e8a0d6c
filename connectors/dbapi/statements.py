"""SQL about staging tables, and from them into a user's table. Pure.

Rule: identifiers are quoted by the database; what is pasted as it is are the columns' definitions, which a user gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kafka_eos.connectors._staged_tables.stage_names import Target
from kafka_eos.connectors.dbapi.database import Database, P

ORDER: Final = "kafka_eos_n"
"""The column of a staging table that says in which order its rows came; no column of a user may be called like it."""


def stage_columns(database: Database, definitions: Mapping[str, str]) -> list[str]:
    """Of a staging table: the user's columns with their rules, so that a row is refused while its record is known."""
    return [
        f"{ORDER} {database.number} NOT NULL",
        *(f"{database.quoted(name)} {definition}" for name, definition in definitions.items()),
    ]


def insert(database: Database, stage: str, target: Target) -> str:
    """One row into a staging table, which is quoted: its number and its values."""
    columns = ", ".join([ORDER, *map(database.quoted, target.columns)])
    return f"INSERT INTO {stage} ({columns}) VALUES ({', '.join([P] * (len(target.columns) + 1))})"


def apply(database: Database, stage: str, target: Target) -> Iterator[str]:
    """Make staged rows visible, in the order of the stream. Of a key's rows the last one counts, and replaces all of
    the row that is there."""
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
