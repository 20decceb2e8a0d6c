"""Directories of partitions, ``day=2026-01-31/hour=5/``, as Hive and FileSink write them: what they tell of the rows.

Pure. Rule: each level is named by the user. A file beside the levels is an error: nobody may take it for one that is
read, or for one that is left out.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec
import pydantic

from kafka_eos.codecs.type_inspection import is_model, reason
from kafka_eos.connectors.files.file_names import DEFAULT_PARTITION, PARTITION_NAME
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import SplitId

Columns: TypeAlias = Mapping[str, str | None]
"""Of a file, by the directories that it is in; None where Hive has no value."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of directories in which the files of a source are; none if it has no partitions."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, given: Sequence[str]) -> Levels:
        """ConfigError if these cannot be the names of levels."""
        if isinstance(given, str) or not all(map(PARTITION_NAME.fullmatch, given)):
            raise ConfigError(f'partitions={given!r}: name the levels of directories, ("day",) for day=2026-01-31')
        if len(set(given)) < len(given):
            raise ConfigError(f"partitions={given!r} names a level twice")
        return cls(tuple(given))

    def columns(self, name: str) -> Columns:
        """What the directories of a file tell. ValueError if it is not in directories of these levels."""
        *directories, _ = name.split("/")
        told = [directory.partition("=") for directory in directories]
        if [each for each, _, _ in told] != [*self.names] or not all(value for _, _, value in told):
            raise ValueError(
                f"{name} does not lie in directories such as {'/'.join(f'{each}=…' for each in self.names)}"
            )
        return {each: _value(value) for each, _, value in told}

    def split(self, name: str) -> SplitId:
        return SplitId(f"{self.origin(name)}/0")

    def name(self, split: SplitId) -> str:
        """The way back."""
        origin = split.rpartition("/")[0]
        return unquote(origin) if self.names else origin

    def origin(self, name: str) -> str:
        """A file as provenance calls it, whose fields a slash parts."""
        return name.replace("%", "%25").replace("/", "%2F") if self.names else name


def _value(text: str) -> str | None:
    return None if text == DEFAULT_PARTITION else unquote(text, errors="strict")


def typed(columns: Columns, tp: Any) -> Mapping[str, Any]:
    """As the fields of the type say; as texts where it has no such field, or there is none. ValueError for others."""
    hints = _hints(tp)
    return {name: _typed(name, value, hints[name]) if name in hints else value for name, value in columns.items()}


def _typed(name: str, value: str | None, hint: Any) -> Any:
    adapter = pydantic.TypeAdapter(hint)
    try:
        return adapter.validate_python(None) if value is None else adapter.validate_strings(value)
    except pydantic.ValidationError as error:
        raise ValueError(f"{name}={DEFAULT_PARTITION if value is None else value}: {reason(error)}") from None


def _hints(tp: Any) -> Mapping[str, Any]:
    """Types by the names that fields have in a file."""
    if not isinstance(tp, type) or issubclass(tp, dict):
        return {}
    hints = typing.get_type_hints(tp, include_extras=True)
    if is_model(tp):
        return {field.alias or name: hints[name] for name, field in tp.model_fields.items()}  # type: ignore[attr-defined]
    if issubclass(tp, msgspec.Struct):
        return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(tp)}
    return hints
