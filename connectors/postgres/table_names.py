"""How a table is named by a user. Pure."""

from __future__ import annotations

from kafka_eos.core.errors import ConfigError


def qualified(table: str | tuple[str, str]) -> tuple[str | None, str]:
    """Schema, if one is said, and name. ConfigError if it is none."""
    schema, _, name = table.rpartition(".") if isinstance(table, str) else (table[0], "", table[1])
    if not name or (isinstance(table, str) and "." in schema):
        raise ConfigError(f'{table!r} names no table: use "table", "schema.table" or ("schema", "table")')
    return schema or None, name
