"""``DbApiSink``: rows in a table of any database that has a driver of PEP 249, each exactly once.

Rule: a promise that the table cannot keep is refused in ``check``, before anything is read.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.services import RejectRow
from kafka_eos.codecs.type_inspection import attributes
from kafka_eos.connectors._shared.row_errors import BadRows, each_row, encoded
from kafka_eos.connectors._shared.table_audit import Unmarked
from kafka_eos.connectors._staged_tables.stage_names import Life, Target
from kafka_eos.connectors._staged_tables.table_writer import TableWriter
from kafka_eos.connectors.dbapi import statements
from kafka_eos.connectors.dbapi.committer import DbApiCommitter
from kafka_eos.connectors.dbapi.database import Connection, Database
from kafka_eos.connectors.dbapi.staging import StagingTables, refused, stage_rows, undone
from kafka_eos.connectors.dbapi.staging_catalog import LIVES, STAGES, Books
from kafka_eos.core.errors import ConfigError, RestartFromCheckpoint, Retryable
from kafka_eos.core.ids import JobIdentity, Term, token
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch, Headers

T = TypeVar("T")

_TOLD = "kafka_eos_told"


class DbApiSink(Unmarked, Generic[T]):
    """Writes a stream of ``T`` into a table, each value exactly once.

    ``database``  how to get to it, see ``Database``
    ``table``     "table" or "schema.table", as the database takes it between its quotes; it must be there
    ``columns``   the columns that are written, and what CREATE TABLE says of each: type and rules of one row, such as
                  "INTEGER NOT NULL CHECK (total >= 0)". Staging tables have them, so a row that the table would refuse
                  is refused when its input record is known
    ``key``       columns that tell a row: a value replaces the row of its key, and of several in an epoch the last one
                  does. Without it every value is a new row

    A subclass may say in ``row`` what the cells of a value are.
    """

    def __init__(
        self, database: Database, table: str, columns: Mapping[str, str], *, key: str | Sequence[str] = ()
    ) -> None:
        self._database, self._books, self._columns = database, Books(database), dict(columns)
        self._target = Target("", table, tuple(columns), (key,) if isinstance(key, str) else tuple(key))
        _expect_fit(self._target)
        self._taken = attributes(self._target.columns)

    def row(self, value: T) -> Sequence[Any]:
        """The cells of a value, as the driver takes them, in the order of ``columns``.

        Anything raised here refuses the value: it stops the job with its input record, or goes to its dead letters.
        """
        if isinstance(value, Mapping):
            cells: Sequence[Any] = [value[name] for name in self._columns]
        else:
            cells = self._taken(value)
        return [cell.value if isinstance(cell, enum.Enum) else cell for cell in cells]

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def price(self) -> Sequence[str]:
        """See ``abc.Priced``."""
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
        """At start; see ``abc.Sink``. Raises Retryable if the database cannot be reached."""
        token(ctx.job, "the job's name")
        database, what = self._database, f"look at {self._target} in {self._database.name}"
        with database.mapped(Retryable, what), database.connected() as connection:
            with database.mapped(Retryable, f"make {STAGES} and {LIVES}"):
                self._books.make(connection)
            self._expect_transactions(connection)
            try:
                with database.transaction(connection) as session:
                    session.rows(f"SELECT {self._listed} FROM {database.table(self._target.table)} t WHERE 1 = 0")
            except database.driver.Error as error:
                with database.transaction(connection) as session:
                    session.rows(f"SELECT * FROM {STAGES} WHERE 1 = 0")  # the server is there, so the table is why
                raise ConfigError(
                    f"there is no table {self._target} with columns {', '.join(self._columns)} in {database.name} "
                    f"({error}): make it. (Names are taken as they are: Totals may not be totals.)"
                ) from error
            with undone(database, connection) as session:
                self._make_temporary(session.run)
        return []

    def advice(self, ctx: JobContext) -> str:
        """See ``abc.Advises``."""
        connect = f"{type(self._database).__name__}.connect"
        return f"Check that the database runs there and lets this job in: {connect} says where and as whom"

    def _expect_transactions(self, connection: Connection) -> None:
        """ConfigError if what a transaction has done stays when it is undone."""
        trial = Life("", JobIdentity.new())
        with undone(self._database, connection) as session:
            self._books.leave_mark(session, trial, Term(0))
        with self._database.transaction(connection) as session:
            if self._books.mark(session, trial) is None:
                return
            self._books.remove_mark(session, trial)
        raise ConfigError(
            f"connections of {self._database.name} commit each statement by itself, so an epoch would not be there "
            "whole or not at all: let connect() return one that has transactions (autocommit off)"
        )

    def writer(self, ctx: TaskContext) -> TableWriter:
        database, life = self._database, Life(ctx.job.job, ctx.job.identity)
        with database.mapped(RestartFromCheckpoint, f"open a writer of {self._target}"):
            connection = database.connect()
            try:
                self._books.make(connection)
                self._books.expect_mark(connection, life, ctx.job.term)
            except BaseException:
                connection.close()
                raise
        holder = StagingTables(database, self._books, connection, self._columns)
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
        """For the audit: the table, and whether it holds one row a key."""
        return f"{self._target} in {self._database.name}", bool(self._target.key)

    def audit_table_rows(self) -> Iterator[tuple[bytes | None, bytes]]:
        """For the audit: key and value of each row that is there, as ``audit_rows`` tells them."""
        with self._database.mapped(Retryable, f"read {self._target}"), self._database.once() as session:
            query = f"SELECT {self._listed} FROM {self._database.table(self._target.table)} t"
            yield from map(self._told, session.each(query))

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """For the audit: the rows that the writer stages, and what the database makes of each.

        They go through a temporary table with the columns of a staging table: so the database changes or refuses them
        as it did for the job.
        """
        with self._database.mapped(Retryable, f"tell what {self._target} holds of values"):
            kept, told = encoded(lambda rows: self._through(rows.values), batch, operator, reject)
        return kept, [(key, said, (), -1) for key, said in told]

    def _through(self, values: Sequence[Any]) -> list[tuple[bytes | None, bytes]]:
        rows = [(n, *row) for n, row in enumerate(each_row(self._cells, values))]
        database, quoted = self._database, self._database.quoted(_TOLD)
        with database.connected() as connection:
            with database.transaction(connection) as session:
                self._make_temporary(session.run)
            try:
                with database.transaction(connection) as session:
                    stage_rows(session, database, _TOLD, self._target, rows)
                    found = session.rows(f"SELECT {self._listed} FROM {quoted} t ORDER BY {statements.ORDER}")
            except database.row_errors as error:
                raise BadRows(refused(database, connection, _TOLD, self._target, rows, error)) from None
        return [*map(self._told, found)]

    def _make_temporary(self, run: Any) -> None:
        columns = statements.stage_columns(self._database, self._columns)
        run(self._database.create_table(self._database.quoted(_TOLD), columns, temporary=True))

    def _told(self, row: Sequence[Any]) -> tuple[bytes | None, bytes]:
        said = dict(zip(self._columns, row, strict=True))
        key = {name: said[name] for name in self._target.key}
        return _plain(key) if key else None, _plain(said)

    @property
    def _listed(self) -> str:
        """Of table t: SQLite takes a name in quotes that is no column's for a text, unless it says of which table."""
        return ", ".join(f"t.{self._database.quoted(name)}" for name in self._columns)


def _plain(cells: Mapping[str, Any]) -> bytes:
    return json.dumps(cells, default=lambda cell: f"{type(cell).__name__} {cell!r}", ensure_ascii=False).encode()


def _expect_fit(target: Target) -> None:
    if not target.columns:
        raise ConfigError('DbApiSink needs to know its columns: columns={"account": "TEXT NOT NULL", …}')
    if statements.ORDER in target.columns:
        raise ConfigError(f"no column may be called {statements.ORDER}: the sink's own one is")
    if unknown := [name for name in target.key if name not in target.columns]:
        raise ConfigError(f"key: {', '.join(unknown)} is no column of the sink (they are {', '.join(target.columns)})")
    if len(set(target.key)) < len(target.key):
        raise ConfigError(f"key: a name comes twice in {', '.join(target.key)}; say each column once")
