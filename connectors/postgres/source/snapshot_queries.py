"""The SQL statements that read a snapshot.

Rule: the condition for rows of a snapshot is defined here once, for the count at the first start and for each read, so
both mean the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from psycopg import sql

from kafka_eos.connectors.postgres.connection import Connection, fetch_row
from kafka_eos.connectors.postgres.sink.target_table import TableInfo
from kafka_eos.connectors.postgres.source.snapshot import Key, RangeProgress, TableSnapshot
from kafka_eos.core.errors import ConfigError, Retryable

_XIDS = 2**32
"""Transaction ids in rows have 32 bits, and wrap around. The first three are reserved: such a row is old."""
_RECENT = 1000
"""Most transactions that a position may name."""


class SnapshotQuery(Struct, frozen=True):
    """The queries that read one table in the order of its key."""

    table: TableInfo
    key: tuple[str, ...]
    columns: tuple[str, ...]
    where: str | None

    def start_ranges(self, connection: Connection, oid: int, splits: int) -> list[RangeProgress]:
        """Return the present table divided into key ranges."""
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            (horizon,) = fetch_row(connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"))
            parts = tuple(part for (part,) in connection.execute(_PARTS, (oid,)))
            of = TableSnapshot(oid, self.key, self.where, horizon, parts=parts)
            of = replace(of, recent=self._recent(connection, of))
            found = connection.execute(self._ends(of, splits)).fetchall()
        ends = {tile: (tuple(key), rows) for tile, rows, *key in found}
        ranges: list[RangeProgress] = []
        last: Key | None = None
        before = 0
        for tile in range(1, splits + 1):
            until, rows = ends.get(tile, (None, before))
            ranges.append(RangeProgress(of, rows - before, until, last))
            last, before = until or last, rows
        return ranges

    def _recent(self, connection: Connection, of: TableSnapshot) -> tuple[int, ...]:
        """Return transactions that are not older than the horizon, and have rows in the table."""
        newer = sql.SQL("SELECT DISTINCT xmin::text::bigint FROM {} WHERE NOT {} LIMIT {}")
        found = connection.execute(newer.format(self._name, _old(of), sql.Literal(_RECENT + 1))).fetchall()
        if len(found) > _RECENT:
            raise Retryable(
                f"more than {_RECENT:,} transactions have written to "
                f"{self.table.schema}.{self.table.name} since the start of a transaction that is "
                "still open, perhaps in another database of the server "
                "(pg_stat_activity.backend_xid): the snapshot is taken when that one has ended"
            )
        return tuple(sorted(row[0] for row in found))

    def _ends(self, of: TableSnapshot, splits: int) -> sql.Composed:
        """Return SQL for the number, last row and last key of each range."""
        names = [sql.Identifier(f"key_{number}") for number, _ in enumerate(self.key)]
        keys = _list(
            sql.SQL("{}::text AS {}").format(sql.Identifier(k), n) for k, n in zip(self.key, names, strict=True)
        )
        return sql.SQL(
            "SELECT DISTINCT ON (tile) tile, number, {names} FROM (SELECT {keys},"
            " ntile({splits}) OVER (ORDER BY {order}) AS tile, row_number() OVER (ORDER BY {order}) AS number"
            " FROM {table} WHERE {belongs}) AS found ORDER BY tile, number DESC"
        ).format(
            names=_list(names),
            keys=keys,
            splits=sql.Literal(splits),
            order=self._order,
            table=self._name,
            belongs=self._belongs(of),
        )

    def next(self, at: RangeProgress, most: int, *, as_text: bool = False) -> sql.Composed:
        """Return SQL for the next rows of a range: the columns, then the key as text. ``as_text``: all as text."""
        form = sql.SQL("{}::text" if as_text else "{}")
        columns = [form.format(sql.Identifier(column)) for column in self.columns]
        keys = [sql.SQL("{}::text").format(sql.Identifier(column)) for column in self.key]
        # Qualify with the table's name; otherwise a name might mean a selected column, which may be its text.
        order = _list(sql.Identifier("snapshot", column) for column in self.key)
        bounds = [self._belongs(at.of), sql.SQL("({}) <= ({})").format(order, self._values(at.until or ()))]
        if at.after is not None:
            bounds.append(sql.SQL("({}) > ({})").format(order, self._values(at.after)))
        return sql.SQL("SELECT {} FROM {} AS snapshot WHERE {} ORDER BY {} LIMIT {}").format(
            _list([*columns, *keys]), self._name, sql.SQL(" AND ").join(bounds), order, sql.Literal(most)
        )

    def _belongs(self, of: TableSnapshot) -> sql.Composed:
        """Return the condition that a row belongs to the snapshot and the user's selection."""
        recent = [sql.SQL(" OR xmin::text::bigint = ANY ({})").format(sql.Literal([*of.recent]))] if of.recent else []
        # The condition is the user's code, like the rest of the pipeline.
        wanted: Any = "TRUE" if self.where is None else self.where
        there = [sql.SQL(" AND tableoid = ANY ({}::oid[])").format(sql.Literal([*of.parts]))] if of.parts else []
        return sql.SQL("({}{}){} AND ({})").format(_old(of), sql.Composed(recent), sql.Composed(there), sql.SQL(wanted))

    def _values(self, key: Key) -> sql.Composed:
        types = {column.name: column.type for column in self.table.columns}
        return _list(
            sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(_any(types[column])))
            for column, value in zip(self.key, key, strict=True)
        )

    @property
    def _order(self) -> sql.Composed:
        return _list(map(sql.Identifier, self.key))

    @property
    def _name(self) -> sql.Composed:
        return sql.SQL("{}.{}").format(sql.Identifier(self.table.schema), sql.Identifier(self.table.name))


def _old(of: TableSnapshot) -> sql.Composed:
    """Return the condition that a row was written by a transaction older than the horizon."""
    return sql.SQL(
        "(xmin::text::bigint < 3 OR (xmin::text::bigint + {xids} - {low}) % {xids} >="
        " pg_snapshot_xmax(pg_current_snapshot())::text::bigint - {horizon})"
    ).format(xids=sql.Literal(_XIDS), low=sql.Literal(of.horizon % _XIDS), horizon=sql.Literal(of.horizon))


def _any(text: str) -> Any:
    """Return text from the catalog as a type that psycopg accepts, which allows only literal strings."""
    return text


def _list(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


_PRIMARY = """
    SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    WHERE i.indrelid = %s AND i.indisprimary ORDER BY k.place
"""
_PARTS = """
    WITH RECURSIVE parts(oid) AS (SELECT %s::oid UNION SELECT inhrelid FROM pg_inherits JOIN parts ON inhparent = oid)
    SELECT oid::bigint FROM parts JOIN pg_class USING (oid) WHERE relkind <> 'p' ORDER BY oid
"""
_CHILDREN = """
    SELECT inhrelid::regclass::text FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = %s AND NOT relispartition ORDER BY inhrelid
"""
_KINDS = ("r", "p", "m")


def oid_of(connection: Connection, table: TableInfo) -> int:
    query = "SELECT to_regclass(format('%%I.%%I', %s::text, %s::text))::oid::bigint"
    (oid,) = fetch_row(connection.execute(query, (table.schema, table.name)))
    return int(oid)


def plan_snapshot(
    connection: Connection, table: TableInfo, key: Sequence[str], columns: Sequence[str], where: str | None
) -> SnapshotQuery:
    """Check that the table can be read as a snapshot, and return its query."""
    name = f"{table.schema}.{table.name}"
    if table.kind not in _KINDS:
        raise ConfigError(
            f"{name} is not an ordinary table: PostgresSource reads tables, not views, because it "
            "needs the transaction that wrote each row"
        )
    if children := [child for (child,) in connection.execute(_CHILDREN, (oid_of(connection, table),))]:
        raise ConfigError(
            f"{name} has children by INHERITS, {', '.join(children)}: a key is unique only within "
            "each of them, so it does not identify a row. Use one PostgresSource per table, or "
            "turn them into partitions"
        )
    known = {column.name: column for column in table.columns}
    primary = [row[0] for row in connection.execute(_PRIMARY, (oid_of(connection, table),))]
    chosen = tuple(key or primary)
    if not chosen:
        raise ConfigError(f"{name} has no primary key: pass key=(…), the columns that identify a row, in order")
    if unknown := [column for column in (*chosen, *columns) if column not in known]:
        raise ConfigError(f"{name} has no column {', '.join(unknown)}; its columns are {', '.join(known)}")
    nullable = [column for column in chosen if not known[column].not_null]
    if nullable or not any(unique <= set(chosen) for unique in table.unique):
        raise ConfigError(
            f"{name} may have two rows with the same {', '.join(chosen)}, or a row without it: "
            "the columns of key= must be NOT NULL, and exactly these columns must have a unique "
            "index"
        )
    return SnapshotQuery(table, chosen, tuple(columns or known), where)
