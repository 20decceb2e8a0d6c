"""SQL for a user's table: its staging tables, inserts into them, and copying from them into the table.

Rule: psycopg quotes identifiers, and values are never part of a statement. Text that is inserted unchanged comes from
the server's own catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from psycopg import sql

from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.postgres.columns import DELETED, ORDER, ModelColumn
from kafka_eos.connectors.postgres.connection import Connection
from kafka_eos.connectors.postgres.sink.target_table import TableInfo, find_partition_rule

_LONG: Final = 1000
"""Bytes of the values of a row that an index always accepts, whatever else it contains."""


def create_table(name: sql.Identifier, columns: Sequence[ModelColumn], key: Sequence[str]) -> sql.Composed:
    """Return the statement that creates the user's table as its model declares it."""
    parts = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name), _pasted(column.type), sql.SQL("" if column.nullable else " NOT NULL")
        )
        for column in columns
    ]
    if key:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(_names(key)))
    return sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(parts))


def create_stage(
    stage: sql.Identifier, table: TableInfo, target: TargetTable, partition_rule: str | None
) -> sql.Composed:
    """Return the statement for a staging table: the target's columns, and the target's rules for a single row.

    A bad row is rejected here, while its input record is known. So the staging table also computes the columns that the
    server computes, because their values may overflow, and checks that a partition takes the row. A deletion has only
    its key.
    """
    types = {column.name: column.type for column in table.columns}
    computed = table.computed_from(target.columns)
    demands = [*table.demands([*target.columns, *(column.name for column, _ in computed)])]
    if partition_rule is not None:
        demands.append(("a partition of the table takes the row", partition_rule))
    parts: list[sql.Composable] = [
        sql.SQL("{} bigint NOT NULL").format(sql.Identifier(ORDER)),
        sql.SQL("{} boolean NOT NULL").format(sql.Identifier(DELETED)),
        *(sql.SQL("{} {}").format(sql.Identifier(name), _pasted(types[name])) for name in target.columns),
        *(
            sql.SQL("{} {} GENERATED ALWAYS AS (CASE WHEN {} THEN NULL ELSE {} END) STORED").format(
                sql.Identifier(column.name), _pasted(column.type), sql.Identifier(DELETED), _pasted(expression)
            )
            for column, expression in computed
        ),
        *(
            sql.SQL("CONSTRAINT {} CHECK ({} IS NOT NULL)").format(
                sql.Identifier(f"{name} is part of the key"), sql.Identifier(name)
            )
            for name in target.key
        ),
        *(
            sql.SQL("CONSTRAINT {} CHECK ({} OR ({}))").format(
                sql.Identifier(name), sql.Identifier(DELETED), _pasted(condition)
            )
            for name, condition in demands
        ),
    ]
    # The table exists for one epoch only, so vacuuming it is useless.
    return sql.SQL("CREATE TABLE {} ({}) WITH (autovacuum_enabled = false)").format(stage, sql.SQL(", ").join(parts))


def create_indexes(stage: sql.Identifier, table: TableInfo, target: TargetTable) -> Iterator[sql.Composed]:
    """Yield indexes that reject the values which an index of the target rejects: a text that is too long for it, or
    one for which its expression raises an error.

    The limit depends on how the value compresses. So only long values are in the index of plain columns.
    """
    lengths = {column.name: column.length for column in table.columns}
    staged = {*target.columns, *(column.name for column, _ in table.computed_from(target.columns))}
    for index in table.indexes:
        found = {name: length for name in sorted(index.columns) if (length := lengths[name])}
        if not index.columns <= staged or (index.is_plain and not found):
            continue
        made = sql.SQL("CREATE INDEX ON {} USING {}").format(stage, _pasted(index.definition))
        if not index.is_plain or "any" in found.values():
            yield made
        else:
            octets = [sql.SQL("coalesce(octet_length({}), 0)").format(sql.Identifier(name)) for name in found]
            yield sql.SQL("{} WHERE {} > {}").format(made, sql.SQL(" + ").join(octets), _LONG)


def make_stage(connection: Connection, stage: sql.Identifier, table: TableInfo, target: TargetTable) -> None:
    """Create a staging table, with the indexes that it needs."""
    connection.execute(create_stage(stage, table, target, find_partition_rule(connection, target)))
    for index in create_indexes(stage, table, target):
        connection.execute(index)


def copy_into(connection: Connection, stage: sql.Identifier, columns: Sequence[str], rows: Iterable[Any]) -> None:
    """Copy all rows or none into a staging table."""
    _copy(connection, stage, (ORDER, DELETED, *columns), rows)


def copy_rows(connection: Connection, target: TargetTable, rows: Iterable[Any]) -> None:
    """Copy all rows or none into the user's table itself, within a transaction."""
    _copy(connection, sql.Identifier(target.schema, target.table), target.columns, rows)


def _copy(connection: Connection, table: sql.Identifier, columns: Sequence[str], rows: Iterable[Any]) -> None:
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(table, _names(columns))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def apply(connection: Connection, stage: sql.Identifier, target: TargetTable) -> None:
    """Make staged rows visible, in stream order. The last row of each key wins.

    A key that was deleted in between is deleted: columns that the sink does not write then have the values of a new
    row, as if the deletion were in an earlier epoch.
    """
    table = sql.Identifier(target.schema, target.table)
    columns, order = _names(target.columns), sql.Identifier(ORDER)
    if not target.key:
        connection.execute(
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} ORDER BY {}").format(table, columns, columns, stage, order)
        )
        return
    # Both statements lock rows in the order of the keys: two subtasks that write the same keys then wait for each
    # other, without a deadlock.
    last = sql.SQL("(SELECT DISTINCT ON ({}) * FROM {} ORDER BY {}, {} DESC) AS s").format(
        _names(target.key), stage, _names(target.key), order
    )
    gone = sql.SQL("(SELECT DISTINCT {} FROM {} WHERE {} ORDER BY {}) AS s").format(
        _names(target.key), stage, sql.Identifier(DELETED), _names(target.key)
    )
    connection.execute(
        sql.SQL("DELETE FROM {} AS t USING {} WHERE {}").format(
            table,
            gone,
            sql.SQL(" AND ").join(
                sql.SQL("{} = {}").format(sql.Identifier("t", name), sql.Identifier("s", name)) for name in target.key
            ),
        )
    )
    others = [name for name in target.columns if name not in target.key]
    update = sql.SQL("UPDATE SET {}").format(
        sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier("excluded", name)) for name in others
        )
    )
    connection.execute(
        sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE NOT {} ON CONFLICT ({}) DO {}").format(
            table,
            columns,
            columns,
            last,
            sql.Identifier("s", DELETED),
            _names(target.key),
            update if others else sql.SQL("NOTHING"),
        )
    )


def _names(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _pasted(text: str) -> sql.SQL:
    """Return a type or a condition from the server's catalog or our table of types as SQL."""
    return sql.SQL(text)
