"""The checks of the columns that are the key of a sink for tables."""

from __future__ import annotations

from collections.abc import Collection

from kafka_eos.core.errors import ConfigError


def expect_key_columns(key: Collection[str], columns: Collection[str]) -> None:
    """Raise ConfigError if the columns of a key are not some of the sink's."""
    if unknown := [name for name in key if name not in columns]:
        raise ConfigError(f"key: {', '.join(unknown)} is not a column of the sink (they are {', '.join(columns)})")
    expect_distinct(key)


def expect_distinct(key: Collection[str]) -> None:
    """Raise ConfigError if a key names a column twice."""
    if len(set(key)) < len(key):
        raise ConfigError(f"key: a column is named twice in {', '.join(key)}")
