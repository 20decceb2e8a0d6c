"""Check whether the columns of a table can store the values of a model's fields, before any row.

The server is asked to parse samples of a field's type, as in a COPY. If it accepts one sample, and would store it
unchanged, the column passes, and each row is checked later.
Rule: only a column that could never store a row is refused.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg
import pydantic
from psycopg import sql
from psycopg.adapt import PyFormat, Transformer

from kafka_eos.codecs.type_inspection import type_name
from kafka_eos.connectors.postgres.columns import ModelColumn
from kafka_eos.connectors.postgres.connection import Connection
from kafka_eos.connectors.postgres.sink.column_losses import ColumnLosses
from kafka_eos.connectors.postgres.sink.target_table import TableColumn, TableInfo

_NOON: Final = datetime.datetime(2026, 1, 1, 12)
_SAMPLES: Final[Mapping[type, Sequence[Any]]] = {
    bool: (True, False),
    int: (0, 1, 20260101),
    float: (0.0, 0.5),
    bytes: (b"", b"\0"),
    decimal.Decimal: (decimal.Decimal(0), decimal.Decimal("0.5")),
    datetime.datetime: (_NOON, _NOON.replace(tzinfo=datetime.UTC)),
    pydantic.AwareDatetime: (_NOON.replace(tzinfo=datetime.UTC),),
    pydantic.NaiveDatetime: (_NOON,),
    datetime.date: (_NOON.date(),),
    datetime.time: (_NOON.time(), _NOON.time().replace(tzinfo=datetime.UTC)),
    datetime.timedelta: (datetime.timedelta(seconds=1),),
    uuid.UUID: (uuid.UUID("c0ffee00-0000-4000-8000-000000000000"),),
    list: ([],),
}
_JSON: Final = ("json", "jsonb")


def find_type_mismatches(connection: Connection, table: TableInfo, columns: Sequence[ModelColumn]) -> Iterator[str]:
    """Yield each column that cannot store any value of its field, with a remedy."""
    has = {column.name: column for column in table.columns}
    for column in columns:
        there = has[column.name]
        if column.holds is None or there.type_name in _JSON or not there.built_in:
            continue
        if not _fits(connection, column.holds, there):
            yield _describe(column, there)


def _describe(column: ModelColumn, there: TableColumn) -> str:
    returned = ColumnLosses(there.type).returned
    unlike = f"its column {column.name} has type {there.type}, "
    unlike += f"which returns {returned}, " if returned else ""
    unlike += f"and cannot return the field's type {type_name(column.holds)}: "
    fitting = f"change the column to {column.type}" if column.type else "change the column"
    return unlike + (f"declare the field as {returned}, or {fitting}" if returned else fitting)


def _fits(connection: Connection, holds: Any, there: TableColumn) -> bool:
    losses = ColumnLosses(there.type)
    if holds is str:
        return losses.takes(str)
    declared = next((_SAMPLES[base] for base in holds.__mro__ if base in _SAMPLES), None)
    if declared is None:
        return False  # a document, which only JSON columns store
    samples = [sample for sample in declared if not losses.describe(sample)]
    return any(_taken(connection, sample, there.type) for sample in samples)


def _taken(connection: Connection, sample: Any, tp: str) -> bool:
    written = bytes(Transformer(connection).get_dumper(sample, PyFormat.TEXT).dump(sample) or b"").decode()
    try:
        connection.execute(sql.SQL("SELECT CAST(%s::text AS {})").format(sql.SQL(tp)), (written,))
    except psycopg.DataError:
        return False
    return True
