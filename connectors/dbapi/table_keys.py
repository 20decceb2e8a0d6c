"""The check that a key of a sink identifies a row of the user's table."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, inspect

from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.dbapi.database import Database


def find_key_problem(database: Database, connection: Connection, target: TargetTable) -> str | None:
    """Return why a row with an existing key cannot replace that key's row, with a remedy; None if it can."""
    if not database.traits.upserts:
        return f"the sink knows no upsert of {database.engine.dialect.name}: leave out key="
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
    if not database.is_mysql:
        return None
    # AUTO_INCREMENT gives each row a different number.
    counted = {each["name"] for each in inspector.get_columns(name, where) if each.get("autoincrement") is True}
    others = sorted(", ".join(sorted(each)) for each in unique - {frozenset(target.key)} if not each & counted)
    if others:
        return (
            f"({'), ('.join(others)}) is unique too, and ON DUPLICATE KEY UPDATE would also replace a row with equal "
            "values there: drop that index, or use its columns as the key"
        )
    return None


def _columns(names: Iterable[str | None]) -> frozenset[str]:
    """Return the columns of an index; none if it has expressions."""
    found = [*names]
    return frozenset(name for name in found if name is not None) if None not in found else frozenset()
