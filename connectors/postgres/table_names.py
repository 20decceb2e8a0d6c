"""Parsing of the table names that users give. Pure."""

from __future__ import annotations

from kafka_eos.core.errors import ConfigError


def qualified(table: str | tuple[str, str]) -> tuple[str | None, str]:
    """Return the schema, if given, and the name. Raise ConfigError if the argument is not a table name."""
    schema, _, name = table.rpartition(".") if isinstance(table, str) else (table[0], "", table[1])
    if not name or (isinstance(table, str) and "." in schema):
        raise ConfigError(f'{table!r} is not a table name: use "table", "schema.table" or ("schema", "table")')
    return schema or None, name
