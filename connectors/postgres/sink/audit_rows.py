"""Rows for the audit, encoded by the server: rows of a table, and values that are not in it.

A value is inserted into a temporary table with the columns of the target, as it would be into a staging table. So the
server rounds, pads or rejects it as it did for the job. Rule: nothing remains, and no other table is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from psycopg import sql

from kafka_eos.connectors._shared.row_errors import BadRows, map_rows
from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.postgres.columns import DELETED, ORDER
from kafka_eos.connectors.postgres.connection import ROW_ERRORS, Connection, fetch_row
from kafka_eos.connectors.postgres.sink import statements
from kafka_eos.connectors.postgres.sink.staging_tables import refused
from kafka_eos.connectors.postgres.sink.target_table import TableInfo
from kafka_eos.core.limits import LIMITS

_STAGE: Final = sql.Identifier("pg_temp", "stage_audit")
_ALIKE: Final = frozenset({
    "bool", "int2", "int4", "int8", "text", "varchar", "bpchar", "name", "bytea", "uuid", "date", "time", "timestamp",
    "timestamptz",
})  # fmt: skip
"""Types whose equal values have the same text."""
_READABLE: Final = """
    SELECT has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid),
        EXISTS (SELECT FROM pg_trigger t WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 2 = 2
                AND (t.tgrelid = c.oid OR t.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid))))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
_VAGUE: Final = """
    SELECT a.attname::text FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE n.nspname = %s AND c.relname = %s AND a.attname = ANY (%s)
        AND (t.typname <> ALL (%s) AND t.typtype <> 'e' OR NOT coalesce(l.collisdeterministic, true))
    ORDER BY a.attnum
"""

AuditRow = tuple[bytes | None, bytes | None]
"""Key and content of a row for the audit; None content is a deletion."""


class AuditEncoder:
    """The encoding of values as the target table would store them. It owns ``connection``."""

    def __init__(
        self, connection: Connection, table: TableInfo, target: TargetTable, row: Callable[[Any], tuple[Any, ...]]
    ) -> None:
        self._connection = connection
        self._target = target
        self._row = row
        statements.make_stage(connection, _STAGE, table, target)

    def encode(self, values: Sequence[Any]) -> list[AuditRow]:
        """Return the values encoded as the table would store them. Raises BadRows."""
        rows = [(n, *row) for n, row in enumerate(map_rows(self._row, values))]
        connection = self._connection
        try:
            with connection.transaction(force_rollback=True):
                statements.copy_into(connection, _STAGE, self._target.columns, rows)
                query = sql.SQL("SELECT {}, {} FROM {} AS s ORDER BY {}").format(
                    sql.Identifier(DELETED), _said(self._target), _STAGE, sql.Identifier(ORDER)
                )
                return [
                    (key, None if deleted else content)
                    for deleted, key, content in map(_encoded, connection.execute(query).fetchall())
                ]
        except ROW_ERRORS as error:
            raise BadRows(refused(connection, _STAGE, self._target, rows, error)) from None


def rows(connection: Connection, target: TargetTable) -> Iterator[tuple[bytes | None, bytes]]:
    """Yield every row of the target, in one snapshot."""
    query = sql.SQL("SELECT {} FROM {} AS s").format(_said(target), sql.Identifier(target.schema, target.table))
    with connection.transaction(), connection.cursor("audit") as cursor:
        cursor.itersize = LIMITS.rows_per_fetch
        for _, key, content in map(_encoded, ((False, *row) for row in cursor.execute(query))):
            assert content is not None
            yield key, content


def find_audit_obstacle(connection: Connection, target: TargetTable) -> str | None:
    """Return why the table's rows cannot be compared; None if they can."""
    # The caller has just found the table.
    may_read, secured, triggered = fetch_row(connection.execute(_READABLE, (target.schema, target.table)))
    if not may_read:
        return f"the user may not read it: GRANT SELECT ON {target}"
    if secured:
        return f"row security hides rows of {target} from the user"
    if triggered:
        return f"{target} has a BEFORE trigger, which may write other rows than the sink's"
    place = (target.schema, target.table, [*target.key], [*_ALIKE])
    if vague := [name for (name,) in connection.execute(_VAGUE, place)]:
        return f"values of {', '.join(vague)}, which is part of the key of {target}, may be equal and look different"
    return None


def _said(target: TargetTable) -> sql.Composed:
    """Return SQL for the key and all columns, as JSON."""
    return sql.SQL("{}, {}").format(
        _object(target.key) if target.key else sql.SQL("NULL"),
        _object(target.columns),
    )


def _object(columns: Iterable[str]) -> sql.Composed:
    listed = sql.SQL(", ").join(sql.Identifier("s", name) for name in columns)
    return sql.SQL("(SELECT row_to_json(o)::text FROM (SELECT {}) AS o)").format(listed)


def _encoded(row: tuple[Any, ...]) -> tuple[bool, bytes | None, bytes | None]:
    deleted, key, content = row
    return deleted, None if key is None else key.encode(), content.encode()
