"""Comparison of the cells that a database stores with those that were written, and of a stage with its target table.

A column may round, pad, cut or convert a value without an error. SQLAlchemy describes the columns of the table. Rule: a
row is read back with these types while it is staged, and rejected unless each cell is equal in value and type. Staging
columns have the table's types, so the commit changes nothing more.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from sqlalchemy import Boolean, Connection, Float, Table, inspect, select, type_coerce
from sqlalchemy.dialects import mysql
from sqlalchemy.types import NullType, TypeEngine

from kafka_eos.codecs.returned_values import unchanged
from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.dbapi.statements import ORDER

ColumnTypes = Mapping[str, TypeEngine[Any]]

_SCALARS: Final = frozenset(
    (str, int, float, bool, bytes, decimal.Decimal, datetime.datetime, datetime.date, datetime.timedelta, type(None))
)
"""Classes whose equal values need no closer comparison."""


def read_column_types(connection: Connection, target: TargetTable) -> ColumnTypes:
    """Return the types of the written columns, by which readers of the table decode them."""
    schema, _, name = target.table.rpartition(".")
    found = inspect(connection).get_columns(name, schema or None)
    types = {spelling: each["type"] for each in found for spelling in (each["name"].lower(), each["name"])}
    return {each: _type_of_readers(types.get(each, types.get(each.lower(), NullType()))) for each in target.columns}


def _type_of_readers(tp: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return a type; for MySQL the BOOLEAN that ``TINYINT(1)`` is, and floats that are not read as Decimals."""
    if isinstance(tp, Float):
        return Float()
    return Boolean() if isinstance(tp, mysql.TINYINT) and tp.display_width == 1 else tp


def find_changed(
    connection: Connection, stage: Table, types: ColumnTypes, target: TargetTable, rows: Sequence[tuple[Any, ...]]
) -> dict[int, Exception]:
    """Return the errors of staged rows that come back changed, by index. ``rows`` are consecutive numbers and cells.

    Raise ValueError if the database has stored a value that cannot be read.
    """
    if not rows:
        return {}
    cells = (type_coerce(stage.c[name], types[name]).label(name) for name in target.columns)
    order = stage.c[ORDER]
    query = select(*cells).where(order.between(rows[0][0], rows[-1][0])).order_by(order)
    stored = [tuple(row) for row in connection.execute(query)]
    given = [tuple(row[1:]) for row in rows]
    if _are_equal(stored, given):
        return {}
    errors = dict[int, Exception]()
    for index, (back, row) in enumerate(zip(stored, given, strict=True)):
        for name, found, cell in zip(target.columns, back, row, strict=True):
            if not _is_same(found, cell):
                errors[index] = ValueError(
                    f"{target}, column {name!r} of type {types[name]!r}: {cell!r:.200} would come back as "
                    f"{found!r:.200}: map it in row(), or change the type of the column"
                )
    return errors


def _are_equal(stored: Sequence[tuple[Any, ...]], given: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether all cells are equal, by loops that run in C; False if a closer look is needed."""
    classes = [*map(type, chain.from_iterable(given))]
    if not _SCALARS.issuperset(classes) or [*map(type, chain.from_iterable(stored))] != classes:
        return False
    with suppress(ArithmeticError):  # a signaling NaN
        return stored == given
    return False


def _is_same(found: Any, cell: Any) -> bool:
    """Return whether a cell is another one. A column has its own number of decimals, and a reader its own time zone."""
    if type(found) is type(cell) and (
        isinstance(cell, decimal.Decimal) or (isinstance(cell, datetime.datetime) and cell.tzinfo is not None)
    ):
        with suppress(ArithmeticError):
            return bool(found == cell)
    return unchanged(found, cell)


def find_difference(connection: Connection, target: TargetTable, stage: str) -> str | None:
    """Return the first column whose type in a stage is not that of the table, with a remedy; None if there is none.

    Otherwise the commit would convert its values, or refuse them after the decision. A key needs no NOT NULL of its
    own: rows whose key is NULL are rejected.
    """
    declared = _describe_columns(connection, stage)
    keys = {column.lower() for column in target.key}
    for name, required in _describe_columns(connection, target.table).items():
        if (found := declared.get(name)) is None:
            continue
        needs = required.removesuffix(" NOT NULL") if name in keys else required
        if found not in (required, needs, f"{needs} NOT NULL"):
            return f"the column {name!r} is {required}, but is declared as {found}"
    return None


def _describe_columns(connection: Connection, table: str) -> dict[str, str]:
    """Return the type of each column and NOT NULL, by its name in lower case."""
    inspector = inspect(connection)
    schema, _, name = table.rpartition(".")
    options = inspector.get_table_options(name, schema or None)
    charset = next((value for option, value in options.items() if option.endswith("default charset")), None)
    return {
        each["name"].lower(): _describe_type(each["type"], charset) + ("" if each["nullable"] else " NOT NULL")
        for each in inspector.get_columns(name, schema or None)
    }


def _describe_type(tp: TypeEngine[Any], charset: str | None) -> str:
    """Return a type with its character set, without its collation, which changes no value."""
    plain: Any = tp.copy()
    if hasattr(plain, "collation"):
        plain.collation = None
    if hasattr(plain, "charset"):
        plain.charset = plain.charset or charset
    return repr(plain)
