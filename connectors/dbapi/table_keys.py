"""The check that a key of a sink identifies a row of the user's table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sqlalchemy import Connection, Inspector, inspect, text
from sqlalchemy.engine.interfaces import ReflectedColumn

from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.dbapi.database import Database
from kafka_eos.connectors.dbapi.statements import make_target_table

_DEFERRABLE: Final = text(
    "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a"
    " ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])"
    " WHERE i.indrelid = CAST(:name AS regclass) AND i.indisunique AND NOT i.indimmediate GROUP BY i.indexrelid"
)


def find_key_problem(database: Database, connection: Connection, target: TargetTable) -> str | None:
    """Return why a row with an existing key cannot replace that key's row, with a remedy; None if it can."""
    if not database.traits.upserts:
        return f"the sink does not support upserts in {database.engine.dialect.name}: omit key="
    schema, _, name = target.table.rpartition(".")
    where = schema or None
    inspector = inspect(connection)
    unique = {
        frozenset(inspector.get_pk_constraint(name, where)["constrained_columns"]),
        *(frozenset(each["column_names"]) for each in inspector.get_unique_constraints(name, where)),
        *(
            _columns(each["column_names"])
            for each in inspector.get_indexes(name, where)
            if each["unique"] and not any(option.endswith("_where") for option in each.get("dialect_options", {}))
        ),
    } - {frozenset()}
    keys = ", ".join(target.key)
    if frozenset(target.key) not in unique:
        return f"no primary key or unique index has exactly the columns ({keys}): create one that is not partial"
    if frozenset(target.key) in _list_deferrable(connection, target):
        return f"the constraint of ({keys}) is deferrable, which ON CONFLICT does not support: make it NOT DEFERRABLE"
    if not database.is_mysql:
        return None
    columns = inspector.get_columns(name, where)
    if cut := sorted(_find_prefixes(inspector, name, where, columns)):
        return (
            f"only the first characters of ({'), ('.join(cut)}) are unique, so ON DUPLICATE KEY "
            "UPDATE would also replace a row that only begins with the same characters: make the "
            "whole columns unique, with a type such as VARCHAR"
        )
    # AUTO_INCREMENT gives each row a different number, unless the sink writes it.
    counted = {each["name"] for each in columns if each.get("autoincrement") is True} - {*target.columns}
    others = sorted(", ".join(sorted(each)) for each in unique - {frozenset(target.key)} if not each & counted)
    if others:
        return (
            f"({'), ('.join(others)}) is unique too, and ON DUPLICATE KEY UPDATE would also replace a row with equal "  # noqa: S608 - a message, no statement
            "values there: drop that index, or use its columns as the key"
        )
    return None


def _list_deferrable(connection: Connection, target: TargetTable) -> list[frozenset[str]]:
    """Return the columns of each unique key that PostgreSQL may check only at the end of a transaction."""
    if connection.dialect.name != "postgresql":
        return []
    name = connection.dialect.identifier_preparer.format_table(make_target_table(target))
    return [frozenset(columns) for columns in connection.execute(_DEFERRABLE, {"name": name}).scalars()]


def _find_prefixes(
    inspector: Inspector, name: str, where: str | None, columns: Iterable[ReflectedColumn]
) -> Iterator[str]:
    """Yield the columns of each unique key of MySQL that has only the first characters of a column."""
    for each in inspector.get_indexes(name, where):
        if each["unique"] and any(option.endswith("_length") for option in each.get("dialect_options", {})):
            yield ", ".join(map(str, each["column_names"]))
    long = {each["name"] for each in columns if type(each["type"]).__name__.endswith(("TEXT", "BLOB"))}
    primary = inspector.get_pk_constraint(name, where)["constrained_columns"]
    if long.intersection(primary):  # MySQL allows this only with a length
        yield ", ".join(primary)


def _columns(names: Iterable[str | None]) -> frozenset[str]:
    """Return the columns of an index; none if it has expressions."""
    found = [*names]
    return frozenset(name for name in found if name is not None) if None not in found else frozenset()
