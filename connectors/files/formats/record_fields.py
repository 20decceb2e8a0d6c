"""The fields of a user's type, for formats with columns.

Rule: a value of another type, or a dict with a key that is not a column, is rejected: nothing is dropped silently.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

import msgspec

from kafka_eos.codecs.type_inspection import attributes, field_aliases, is_model, is_record, type_name
from kafka_eos.connectors.files.formats.format import PROVENANCE
from kafka_eos.core.errors import ConfigError

_EXTRA: Final = "__pydantic_extra__"


def fields_of(tp: Any, what: str) -> dict[str, Any]:
    """Return names and types of the fields. Raise ConfigError if the type has none.

    ``what``: how to define columns without a type, for the message.
    """
    if not is_model(tp) and not is_record(tp):
        raise ConfigError(
            f"value={type_name(tp)}: the rows of a file with columns must be pydantic models, "
            f"msgspec Structs or dataclasses; for streams of dicts omit value and pass {what}"
        )
    hints = typing.get_type_hints(tp, include_extras=True)
    names = _names(tp)
    expect_columns(names)
    field_aliases(tp)  # refuses a type that the columns could be read as in two ways
    return {name: hints[name] for name in names}


def _names(tp: Any) -> Sequence[str]:
    if is_model(tp):
        return list(tp.model_fields)
    if issubclass(tp, msgspec.Struct):
        return list(tp.__struct_fields__)
    return [field.name for field in dataclasses.fields(tp)]


def taken_apart(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a dict or a record, including undeclared ones; None for any other value."""
    if isinstance(value, Mapping):
        return value
    if not is_model(type(value)) and not is_record(type(value)):
        return None
    return {name: getattr(value, name) for name in _names(type(value))} | (getattr(value, _EXTRA, None) or {})


def expect_declared(value: Any, known: Set[str]) -> None:
    """Raise ValueError if the record has a field that is not among these."""
    found = taken_apart(value) or {}
    if not known >= found.keys():
        raise ValueError(f"no column for {', '.join(sorted(found.keys() - known))}")


def expect_columns(names: Sequence[str]) -> None:
    """Raise ConfigError for names that cannot be the columns of a file."""
    if not names or len(set(names)) < len(names) or PROVENANCE in names:
        raise ConfigError(
            f"columns must be at least one, without duplicates, and none named {PROVENANCE} "
            f"(got {', '.join(names) or 'none'})"
        )


def picker(tp: Any, names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """Return a function that splits a value into its columns; it raises ValueError for a value of another type."""
    known = frozenset(names)
    extra = tp.model_config.get("extra") if is_model(tp) else None

    taken = attributes(names)

    def of_dict(value: Any) -> Sequence[Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected a dict with the columns, got {type(value).__name__}")
        if not known.issuperset(value):
            raise ValueError(f"no column for {', '.join(sorted(map(str, value.keys() - known)))}")
        return [value.get(name) for name in names]

    def of_record(value: Any) -> Sequence[Any]:
        if not isinstance(value, tp):
            raise ValueError(f"expected {type_name(tp)}, got {type(value).__name__}")
        if type(value) is not tp or extra is not None:
            expect_declared(value, known)
        return taken(value)

    return of_dict if tp is None else of_record
