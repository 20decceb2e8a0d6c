"""``DbApiSink``: rows in a table of any database that has a PEP 249 driver, each exactly once.

Rule: a guarantee that the table cannot keep is refused in ``check``, before anything is read.
"""

from __future__ import annotations

import decimal
import enum
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import RejectRow
from kafka_eos.abc.sink import Sink
from kafka_eos.codecs.type_inspection import attributes
from kafka_eos.connectors._shared.row_errors import BadRows, encode_or_reject, map_rows
from kafka_eos.connectors._shared.table_audit import NoProvenance
from kafka_eos.connectors._staged_tables.stage_names import Incarnation, TargetTable
from kafka_eos.connectors._staged_tables.table_writer import TableWriter
from kafka_eos.connectors.dbapi import statements
from kafka_eos.connectors.dbapi.committer import DbApiCommitter
from kafka_eos.connectors.dbapi.database import Connection, Database
from kafka_eos.connectors.dbapi.staging_catalog import LIVES, STAGES, StagingCatalog
from kafka_eos.connectors.dbapi.table_staging import DbApiTableStaging, find_bad_rows, roll_back_after, stage_rows
from kafka_eos.core.errors import ConfigError, RestartFromCheckpoint, Retryable
from kafka_eos.core.ids import JobIdentity, Term, ensure_name
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch, Headers

T = TypeVar("T")

_AUDIT_TABLE = "kafka_eos_told"


class DbApiSink(NoProvenance, Sink[T]):
    """A sink that writes a stream of ``T`` into a table, each value exactly once.

    ``database``: how to connect to it, see ``Database``.
    ``table``: "table" or "schema.table", as the database accepts it in quotes; it must exist.
    ``columns``: the columns to write, with what CREATE TABLE says of each: the type and the rules for one row, such as
    "INTEGER NOT NULL CHECK (total >= 0)". Staging tables have the same columns, so a row that the table would reject is
    rejected while its input record is known.
    ``key``: columns that identify a row: a value replaces the row of its key, and the last value of an epoch wins.
    Without a key every value is a new row.

    A subclass may override ``row`` to define the cells of a value.
    """

    def __init__(
        self, database: Database, table: str, columns: Mapping[str, str], *, key: str | Sequence[str] = ()
    ) -> None:
        self._database = database
        self._books = StagingCatalog(database)
        self._columns = dict(columns)
        self._target = TargetTable("", table, tuple(columns), (key,) if isinstance(key, str) else tuple(key))
        _expect_fit(self._target)
        self._taken = attributes(self._target.columns)

    def row(self, value: T) -> Sequence[Any]:
        """Return the cells of a value, as the driver takes them, in the order of ``columns``.

        An error raised here rejects the value: it stops the job with its input record, or becomes a dead letter.
        """
        if isinstance(value, Mapping):
            cells: Sequence[Any] = [value[name] for name in self._columns]
        else:
            cells = self._taken(value)
        if any(isinstance(cell, float | decimal.Decimal) and math.isnan(cell) for cell in cells):
            raise ValueError("NaN is NULL in SQLite, and an error elsewhere: map it to None, or override row()")
        return [cell.value if isinstance(cell, enum.Enum) else cell for cell in cells]

    @property
    def default_name(self) -> str:
        """Return the table."""
        return self._target.table.rpartition(".")[2]

    def trade_offs(self) -> Sequence[str]:
        """Return the trade-offs of this sink."""
        return (
            "each row is written twice: into a staging table, and from there into the table, in the commit",
            "the commit holds the locks of its rows while it lasts; a process that is frozen in it keeps them",
        )

    def describe(self) -> Mapping[str, Json]:
        return {
            "connector": "dbapi",
            "database": self._database.name,
            "table": self._target.table,
            "mode": "upsert" if self._target.key else "insert",
            "key": [*self._target.key],
            "commit": f"staging table, one transaction; books in {STAGES}",
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._database.name!r}, {self._target.table!r})"

    def scope(self, ctx: JobContext) -> str:
        return f"dbapi:{self._database.name}"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Check the environment at a start; see ``Sink.check``. Raise Retryable if the database cannot be reached."""
        ensure_name(ctx.job, "the job's name")
        database, what = self._database, f"look at {self._target} in {self._database.name}"
        with database.mapped(Retryable, what), database.connected() as connection:
            with database.mapped(Retryable, f"make {STAGES} and {LIVES}"):
                self._books.create_tables(connection)
            self._expect_transactions(connection)
            try:
                with database.transaction(connection) as session:
                    session.rows(f"SELECT {self._listed} FROM {database.table(self._target.table)} t WHERE 1 = 0")
            except database.driver.Error as error:
                with database.transaction(connection) as session:
                    session.rows(
                        f"SELECT * FROM {STAGES} WHERE 1 = 0"
                    )  # the server responds, so the table is the cause
                raise ConfigError(
                    f"there is no table {self._target} with columns {', '.join(self._columns)} in {database.name} "
                    f"({error}): make it. (Names are taken as they are: Totals may not be totals.)"
                ) from error
            with roll_back_after(database, connection) as session:
                self._make_temporary(session.run)
        return []

    def advice(self, ctx: JobContext) -> str:
        """Return advice for a database that does not respond."""
        connect = f"{type(self._database).__name__}.connect"
        return f"Check that the database runs there and lets this job in: {connect} says where and as whom"

    def _expect_transactions(self, connection: Connection) -> None:
        """Raise ConfigError if the changes of a transaction survive its rollback."""
        trial = Incarnation("", JobIdentity.new())
        with roll_back_after(self._database, connection) as session:
            self._books.leave_mark(session, trial, Term(0))
        with self._database.transaction(connection) as session:
            if self._books.read_registration(session, trial) is None:
                return
            self._books.remove_mark(session, trial)
        raise ConfigError(
            f"connections of {self._database.name} commit each statement by itself, so an epoch would not be there "
            "whole or not at all: let connect() return one that has transactions (autocommit off)"
        )

    def writer(self, ctx: TaskContext) -> TableWriter:
        database, life = self._database, Incarnation(ctx.job.job, ctx.job.identity)
        with database.mapped(RestartFromCheckpoint, f"open a writer of {self._target}"):
            connection = database.connect()
            try:
                self._books.create_tables(connection)
                self._books.ensure_registered(connection, life, ctx.job.term)
            except BaseException:
                connection.close()
                raise
        holder = DbApiTableStaging(database, self._books, connection, self._columns)
        return TableWriter(ctx, self.scope(ctx.job), holder, self._target, self._cells)

    def committer(self, ctx: JobContext) -> DbApiCommitter:
        return DbApiCommitter(self._database, self.scope(ctx))

    def _cells(self, value: T) -> tuple[Any, ...]:
        cells = tuple(self.row(value))
        if len(cells) != len(self._columns):
            raise ValueError(f"{self._target} has {len(self._columns)} columns here, and row() made {len(cells)} cells")
        return cells

    # ------------------------------------------------------------ for the audit

    def audit_table(self, ctx: JobContext) -> tuple[str, bool]:
        """Return the table, and whether it has one row per key. For the audit."""
        return f"{self._target} in {self._database.name}", bool(self._target.key)

    def audit_table_rows(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield key and value of each present row, encoded as ``audit_rows`` does. For the audit."""
        with self._database.mapped(Retryable, f"read {self._target}"), self._database.open_transaction() as session:
            query = f"SELECT {self._listed} FROM {self._database.table(self._target.table)} t"
            yield from map(self._encoded_row, session.each(query))

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """Return the rows that the writer stages, and each row's content as the database stores it. For the audit.

        The rows pass through a temporary table with the columns of a staging table. So the database changes or rejects
        them as it did for the job.
        """
        with self._database.mapped(Retryable, f"tell what {self._target} holds of values"):
            kept, encoded = encode_or_reject(lambda rows: self._encode_for_audit(rows.values), batch, operator, reject)
        return kept, [(key, content, (), -1) for key, content in encoded]

    def _encode_for_audit(self, values: Sequence[Any]) -> list[tuple[bytes | None, bytes]]:
        rows = [(n, *row) for n, row in enumerate(map_rows(self._cells, values))]
        database, quoted = self._database, self._database.quoted(_AUDIT_TABLE)
        with database.connected() as connection:
            with database.transaction(connection) as session:
                self._make_temporary(session.run)
            try:
                with database.transaction(connection) as session:
                    stage_rows(session, database, _AUDIT_TABLE, self._target, rows)
                    found = session.rows(f"SELECT {self._listed} FROM {quoted} t ORDER BY {statements.ORDER}")
            except database.row_errors as error:
                raise BadRows(find_bad_rows(database, connection, _AUDIT_TABLE, self._target, rows, error)) from None
        return [*map(self._encoded_row, found)]

    def _make_temporary(self, run: Any) -> None:
        columns = statements.stage_columns(self._database, self._columns)
        run(self._database.create_table(self._database.quoted(_AUDIT_TABLE), columns, temporary=True))

    def _encoded_row(self, row: Sequence[Any]) -> tuple[bytes | None, bytes]:
        cells = dict(zip(self._columns, row, strict=True))
        key = {name: cells[name] for name in self._target.key}
        return _plain(key) if key else None, _plain(cells)

    @property
    def _listed(self) -> str:
        """Return the columns of table t. They are qualified, because SQLite reads unknown quoted names as text."""
        return ", ".join(f"t.{self._database.quoted(name)}" for name in self._columns)


def _plain(cells: Mapping[str, Any]) -> bytes:
    return json.dumps(cells, default=lambda cell: f"{type(cell).__name__} {cell!r}", ensure_ascii=False).encode()


def _expect_fit(target: TargetTable) -> None:
    if not target.columns:
        raise ConfigError('DbApiSink needs to know its columns: columns={"account": "TEXT NOT NULL", …}')
    if statements.ORDER in target.columns:
        raise ConfigError(f"no column may be called {statements.ORDER}: the sink's own one is")
    if unknown := [name for name in target.key if name not in target.columns]:
        raise ConfigError(f"key: {', '.join(unknown)} is no column of the sink (they are {', '.join(target.columns)})")
    if len(set(target.key)) < len(target.key):
        raise ConfigError(f"key: a name comes twice in {', '.join(target.key)}; say each column once")
