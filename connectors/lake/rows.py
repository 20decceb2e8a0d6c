"""Rows of a user's type in the columns of a table.

Rule: the table says what its columns are; a value that one would change is refused, with its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from kafka_eos.connectors.files.formats.arrow import ArrowLayout, arrow_schema
from kafka_eos.connectors.files.formats.fields import fields_of
from kafka_eos.errors import ConfigError

_ROW_GROUP: Final = 131_072
_FAMILIES: Final[Sequence[tuple[str, Callable[[pa.DataType], bool]]]] = (
    ("a bool", kinds.is_boolean),
    ("an integer", kinds.is_integer),
    ("a float", kinds.is_floating),
    ("a decimal", kinds.is_decimal),
    ("a text", lambda tp: kinds.is_string(tp) or kinds.is_large_string(tp) or kinds.is_string_view(tp)),
    ("bytes", lambda tp: kinds.is_binary(tp) or kinds.is_large_binary(tp) or kinds.is_binary_view(tp)),
    ("a time", kinds.is_timestamp),
    ("a date", kinds.is_date),
    ("a list", lambda tp: kinds.is_list(tp) or kinds.is_large_list(tp)),
    ("a map", kinds.is_map),
    ("a struct", kinds.is_struct),
)
_TAKEN: Final = {("an integer", "a float"), ("an integer", "a decimal")}
"""Values of the one go into a column of the other where they are the same number."""


def layout_of(schema: pa.Schema, value: Any, table: str) -> ArrowLayout:
    """What turns rows into files of a table with ``schema``; without ``value``, rows are dicts.

    ConfigError if the two do not fit, with the columns' names.
    """
    if value is None:
        return ArrowLayout(None, schema, False, "snappy", _ROW_GROUP)
    if wrong := [*_misfits(schema, value)]:
        raise ConfigError(f"rows of {value.__name__} do not fit into {table}: {'; '.join(wrong)}")
    kept = pa.schema([schema.field(name) for name in fields_of(value, "")])
    return ArrowLayout(value, kept, False, "snappy", _ROW_GROUP)


def changed(now: pa.Schema, then: pa.Schema) -> str | None:
    """Why a data file with the columns ``then`` does not fit into a table that has ``now``; None if it does."""
    for field in then:
        if field.name not in now.names:
            return f"it has no column {field.name} any more"
        if _family(now.field(field.name).type) != _family(field.type):
            return f"its column {field.name} is {now.field(field.name).type} now, and was {field.type}"
    unset = [field.name for field in now if not field.nullable and field.name not in then.names]
    return f"its new column {', '.join(unset)} may not be null" if unset else None


def _misfits(schema: pa.Schema, value: Any) -> Iterator[str]:
    fields = fields_of(value, "nothing: the table has the columns")
    if missing := [name for name in fields if name not in schema.names]:
        yield f"it has no column {', '.join(missing)} (it has {', '.join(schema.names)})"
    if unset := [field.name for field in schema if not field.nullable and field.name not in fields]:
        yield f"its column {', '.join(unset)} may not be null, and no field is for it"
    for name in fields:
        if name in schema.names and (made := _made_of(value, name)) is not None:
            has, gets = _family(schema.field(name).type), _family(made)
            if has != gets and (gets, has) not in _TAKEN:
                yield f"its column {name} is {has} ({schema.field(name).type}), and the field is {gets}"


def _made_of(value: Any, name: str) -> pa.DataType | None:
    """The type of a field by itself; None where Arrow has no one counterpart, and the table alone says it."""
    try:
        return arrow_schema(value).field(name).type
    except ConfigError:
        return None


def _family(tp: pa.DataType) -> str:
    return next((name for name, applies in _FAMILIES if applies(tp)), str(tp))
