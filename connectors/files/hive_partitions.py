"""Partition directories, ``day=2026-01-31/hour=5/``, as Hive and FileSink write them, and the columns in them.

Pure. Rule: the user names each level. A file outside these levels is an error, because it would be unclear whether it
is read.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote

import pydantic
from msgspec import Struct

from kafka_eos.codecs.type_inspection import field_aliases, reason
from kafka_eos.connectors.files.file_names import DEFAULT_PARTITION, PARTITION_NAME
from kafka_eos.core.errors import ConfigError

Columns: TypeAlias = Mapping[str, str | None]
"""The column values of a file, from its directories; None is Hive's null."""


class PartitionLevels(Struct, frozen=True):
    """The partition directories that contain a source's files."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, given: Sequence[str]) -> PartitionLevels:
        """Return the levels with these names. Raise ConfigError if they are not valid."""
        if isinstance(given, str) or not all(map(PARTITION_NAME.fullmatch, given)):
            raise ConfigError(f'partitions={given!r}: list the directory levels, as in, ("day",) for day=2026-01-31')
        if len(set(given)) < len(given):
            raise ConfigError(f"partitions={given!r} contains a level twice")
        return cls(tuple(given))

    def columns(self, name: str) -> Columns:
        """Return the column values from a file's directories. Raise ValueError if it is outside these levels."""
        *directories, _ = name.split("/")
        pairs = [directory.partition("=") for directory in directories]
        if [each for each, _, _ in pairs] != [*self.names] or not all(value for _, _, value in pairs):
            raise ValueError(f"{name} is not in a directory such as {'/'.join(f'{each}=…' for each in self.names)}")
        return {each: _value(value) for each, _, value in pairs}


def _value(text: str) -> str | None:
    return None if text == DEFAULT_PARTITION else unquote(text, errors="strict")


def typed(columns: Columns, tp: Any) -> Mapping[str, Any]:
    """Return the values as the type's fields require, or as text without such a field. Raise ValueError for
    bad values."""
    hints = _hints(tp)
    return {name: _typed(name, value, hints[name]) if name in hints else value for name, value in columns.items()}


def _typed(name: str, value: str | None, hint: Any) -> Any:
    adapter = pydantic.TypeAdapter(hint)
    try:
        return adapter.validate_python(None) if value is None else adapter.validate_strings(value)
    except pydantic.ValidationError as error:
        raise ValueError(f"{name}={DEFAULT_PARTITION if value is None else value}: {reason(error)}") from None


def _hints(tp: Any) -> Mapping[str, Any]:
    """Return the types of fields by their names in a file."""
    if not isinstance(tp, type) or issubclass(tp, dict):
        return {}
    hints = typing.get_type_hints(tp, include_extras=True)
    return hints | {alias: hints[field] for field, alias in field_aliases(tp).items()}
