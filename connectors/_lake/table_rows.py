"""Conversion of a user's rows to the columns of a table.

Rule: the table defines its columns; a value that a column would change is rejected, with its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from kafka_eos.connectors._lake.lake_table import TableSpec
from kafka_eos.connectors.files.formats.arrow_layout import ArrowLayout, family, find_misfits
from kafka_eos.connectors.files.formats.record_fields import fields_of
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.limits import LIMITS

_ID: Final = b"PARQUET:field_id"


def layout_of(fit: TableSpec, value: Any, table: str) -> ArrowLayout:
    """Return the layout that turns rows into files of a table; without ``value``, rows are dicts.

    Raises ConfigError, with the names of the columns, if the two do not match.
    """
    schema = fit.columns
    if value is None:
        return ArrowLayout(
            None, schema, False, "snappy", LIMITS.rows_per_lake_row_group, fit.partitions.omitted_columns
        )
    if wrong := [*_misfits(schema, value)]:
        raise ConfigError(f"rows of {value.__name__} do not fit into {table}: {'; '.join(wrong)}")
    kept = pa.schema([schema.field(name) for name in fields_of(value, "")])
    if missing := [name for name in fit.partitions.columns if name not in kept.names]:
        raise ConfigError(f"{table} is partitioned by {', '.join(missing)}, and {value.__name__} has no such field")
    return ArrowLayout(value, kept, False, "snappy", LIMITS.rows_per_lake_row_group, fit.partitions.omitted_columns)


def explain_schema_change(fit: TableSpec, then: pa.Schema, partition: Mapping[str, str | None]) -> str | None:
    """Return why a data file with these columns no longer matches the table; None if it does.

    Columns and nested fields are the same if they have the same Iceberg id or, without ids, the same name.
    """
    if (why := fit.partitions.explain_mismatch(partition)) is not None:
        return why
    now = [field for field in fit.columns if field.name not in fit.partitions.omitted_columns]
    there, given = ({known: (at, field) for known, at, field in _all(fields)} for fields in (now, then))
    for known, (at, field) in given.items():
        if known not in there:
            return f"its column {at} was dropped or replaced"
        at, has = there[known]
        if family(has.type) != family(field.type):
            return f"its column {at} is {has.type} now, and was {field.type}"
    unset = [at for known, (at, field) in there.items() if not field.nullable and known not in given]
    return f"its new column {', '.join(unset)} may not be null" if unset else None


def counterpart(field: pa.Field, columns: pa.Schema) -> pa.Field | None:
    """Return the same column among others: by Iceberg id if both have one, otherwise by name."""
    of = (field.metadata or {}).get(_ID)
    for each in columns:
        other = (each.metadata or {}).get(_ID)
        if (of == other) if of and other else (field.name == each.name):
            return each
    return None


def _all(fields: Iterable[pa.Field], inside: str = "") -> Iterator[tuple[bytes | str, str, pa.Field]]:
    """Yield every field, however deep: its identification, its path and the field."""
    for field in fields:
        yield from _named(field, f"{inside}{field.name}")


def _named(field: pa.Field, at: str) -> Iterator[tuple[bytes | str, str, pa.Field]]:
    yield (field.metadata or {}).get(_ID, at), at, field
    if kinds.is_struct(field.type):
        yield from _all(field.type, f"{at}.")
    elif kinds.is_list(field.type) or kinds.is_large_list(field.type):
        yield from _named(field.type.value_field, f"{at}[]")
    elif kinds.is_map(field.type):
        yield from _named(field.type.key_field, f"{at}{{key}}")
        yield from _named(field.type.item_field, f"{at}{{}}")


def _misfits(schema: pa.Schema, value: Any) -> Iterator[str]:
    fields = fields_of(value, "nothing: the table has the columns")
    if missing := [name for name in fields if name not in schema.names]:
        yield f"it has no column {', '.join(missing)} (it has {', '.join(schema.names)})"
    if unset := [field.name for field in schema if not field.nullable and field.name not in fields]:
        yield f"its column {', '.join(unset)} may not be null, and no field is for it"
    yield from find_misfits(fields, schema)
