"""Staging tables, and the statement that copies rows from them into a user's table. Pure.

Rule: names are quoted, and values are parameters; only the columns' definitions, which a user gives, are inserted
unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Insert,
    Integer,
    MetaData,
    Table,
    and_,
    bindparam,
    cast,
    false,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.types import UserDefinedType

from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.dbapi.database import INNODB, Database

ORDER: Final = "kafka_eos_n"
"""The column of a staging table with the order of its rows; a user's column must not have this name."""

# SQLite has no second index if an INTEGER is the primary key.
_NUMBER: Final = BigInteger().with_variant(Integer(), "sqlite")


class DefinedColumn(UserDefinedType[Any]):
    """The type of a column with its rules, as a user writes them. Values reach the driver unchanged."""

    cache_ok = True

    def __init__(self, definition: str) -> None:
        self.definition = definition

    def get_col_spec(self, **_: Any) -> str:
        return self.definition


def make_target_table(target: TargetTable) -> Table:
    """Return the user's table, with the columns that the sink writes."""
    schema, _, name = target.table.rpartition(".")
    columns: list[Column[Any]] = [Column(each, quote=True) for each in target.columns]
    return Table(name, MetaData(), *columns, schema=schema or None, quote=True, quote_schema=True)


def make_stage_table(
    database: Database, name: str, definitions: Mapping[str, str], *, temporary: bool = False
) -> Table:
    """Return a staging table: the user's columns with their rules, so that bad rows are rejected early."""
    types = {column: DefinedColumn(database.escape(definition)) for column, definition in definitions.items()}
    columns: list[Column[Any]] = [
        Column(ORDER, _NUMBER, primary_key=True, autoincrement=False, quote=True),
        *(Column(column, type_, quote=True) for column, type_ in types.items()),
    ]
    return Table(name, MetaData(), *columns, prefixes=["TEMPORARY"] if temporary else [], **INNODB)


def insert_rows(connection: Connection, stage: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows of a number and cells, in one call of the driver."""
    if not rows:
        return
    names = [f"p{n}" for n in range(len(stage.columns))]
    statement = insert(stage).values(dict(zip(stage.columns, map(bindparam, names), strict=True)))
    # The text goes directly to the driver, because an insert by SQLAlchemy takes twice the time per row.
    compiled = statement.compile(dialect=connection.dialect)
    parameters: Any = rows
    if compiled.positiontup is None:
        parameters = [dict(zip(names, row, strict=True)) for row in rows]
    connection.exec_driver_sql(str(compiled), parameters)


def select_stored_keys(connection: Connection, stage: Table, target: TargetTable) -> dict[int, dict[str, Any]]:
    """Return the keys that the target table has for staged rows, by their numbers: a key may be stored in another
    spelling.

    The keys pass through a table whose columns are those of the target, because only their collations define which keys
    are equal.
    """
    table, name = make_target_table(target), f"{stage.name}_keys"
    keys = Table(name, MetaData(), Column(ORDER, BigInteger), *(Column(each, quote=True) for each in target.key))
    empty = select(cast(literal(0), BigInteger).label(ORDER), *(table.c[each] for each in target.key)).where(false())
    compiled = empty.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
    connection.exec_driver_sql(f"CREATE TEMPORARY TABLE {name} AS {compiled}")
    staged = select(stage.c[ORDER], *(stage.c[each] for each in target.key))
    connection.execute(insert(keys).from_select([ORDER, *target.key], staged))
    same = and_(*(table.c[each] == keys.c[each] for each in target.key))  # SQLite takes the collation of the left one
    found = connection.execute(select(keys.c[ORDER], *(table.c[each] for each in target.key)).join(table, same))
    return {number: dict(zip(target.key, cells, strict=True)) for number, *cells in found}


def apply(database: Database, stage_name: str, target: TargetTable) -> Insert:
    """Return the statement that makes staged rows visible, in stream order.

    With a key, the last row of each key wins and updates the existing row.
    """
    stage = Table(stage_name, MetaData(), *(Column(each, quote=True) for each in (ORDER, *target.columns)))
    rows = select(*(stage.c[name] for name in target.columns)).order_by(stage.c[ORDER])
    if not target.key:
        return insert(make_target_table(target)).from_select(target.columns, rows)
    table = make_target_table(target)
    if database.traits.updates_once:
        # An empty cell of the table gives each key the collation of its column, by which ON CONFLICT compares.
        all_, empty = stage.alias("all_rows"), table.alias("no_rows")
        cells = {name: select(empty.c[name]).where(false()).scalar_subquery() for name in target.key}
        keys = (func.coalesce(all_.c[name], cell) for name, cell in cells.items())
        rows = rows.where(stage.c[ORDER].in_(select(func.max(all_.c[ORDER])).group_by(*keys)))
    return database.upsert(table, target.columns, rows, target.key)
