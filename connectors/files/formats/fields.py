"""The fields of a user's type, for formats with columns.

Rule: a value of another type, or a dict with a key that is no column, is refused: nothing is left out silently.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kafka_eos.connectors.files.formats.base import PROVENANCE
from kafka_eos.errors import ConfigError
from kafka_eos.schemas.types import is_model, is_record, type_name


def fields_of(tp: Any, what: str) -> dict[str, Any]:
    """Names and types. ConfigError if it has none; ``what`` says how to name columns without a type."""
    if not is_model(tp) and not is_record(tp):
        raise ConfigError(
            f"value={type_name(tp)}: a file with columns holds pydantic models, msgspec Structs or dataclasses; for "
            f"streams of dicts leave value out and say {what}"
        )
    hints = typing.get_type_hints(tp, include_extras=True)
    if is_model(tp):
        names: Sequence[str] = list(tp.model_fields)
    elif issubclass(tp, msgspec.Struct):
        names = tp.__struct_fields__
    else:
        names = [field.name for field in dataclasses.fields(tp)]
    expect_columns(names)
    return {name: hints[name] for name in names}


def expect_columns(names: Sequence[str]) -> None:
    """ConfigError for names that cannot be the columns of a file."""
    if not names or len(set(names)) < len(names) or PROVENANCE in names:
        raise ConfigError(
            f"columns: {', '.join(names) or 'none'}: at least one, none twice, and none that is called {PROVENANCE}"
        )


def picker(tp: Any, names: Sequence[str]) -> Callable[[Any], list[Any]]:
    """What takes a value apart into its columns. ValueError for a value that is not of the sink's type."""
    known = frozenset(names)

    def of_dict(value: Any) -> list[Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected a dict with the columns, got {type(value).__name__}")
        if not known.issuperset(value):
            raise ValueError(f"no column for {', '.join(sorted(map(str, value.keys() - known)))}")
        return [value.get(name) for name in names]

    def of_record(value: Any) -> list[Any]:
        if not isinstance(value, tp):
            raise ValueError(f"expected {type_name(tp)}, got {type(value).__name__}")
        return [getattr(value, name) for name in names]

    return of_dict if tp is None else of_record
