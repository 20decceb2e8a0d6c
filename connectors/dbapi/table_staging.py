"""Staging tables of a PEP 249 database, one per writer and epoch. Each batch is one transaction.

Rule: the database decides row by row which rows a table rejects; nothing is staged meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from kafka_eos._util import failpoints
from kafka_eos.connectors._shared.row_errors import BadRows
from kafka_eos.connectors._staged_tables.stage_names import Strategy, TableCommittable, TargetTable
from kafka_eos.connectors.dbapi import statements
from kafka_eos.connectors.dbapi.database import Connection, Database, DbTransaction, format_error
from kafka_eos.connectors.dbapi.staging_catalog import StagingCatalog, stage
from kafka_eos.core.errors import Fenced, KafkaEosError


class DbApiTableStaging:
    """The staging of rows in tables of a PEP 249 database, one transaction per batch.

    ``connection`` belongs to the writing thread; other threads open their own.
    """

    strategy = Strategy.STAGE

    def __init__(
        self, database: Database, books: StagingCatalog, connection: Connection, definitions: Mapping[str, str]
    ) -> None:
        self._database = database
        self._books = books
        self._connection = connection
        self._columns = statements.stage_columns(database, definitions)

    def map_errors(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        return self._database.mapped(kind, what)

    def open(self, promise: TableCommittable, subtask: int, operator: str) -> _DbApiStagingTable:
        name = self._database.quoted(stage(promise.id))
        with self._database.transaction(self._connection) as session:
            self._books.open(session, promise, subtask, operator)
            session.run(self._database.create_table(name, self._columns))
        return _DbApiStagingTable(self._database, self._books, self._connection, promise)

    def close(self) -> None:
        self._connection.close()


class _DbApiStagingTable:
    """The staging table of one epoch."""

    def __init__(
        self, database: Database, books: StagingCatalog, connection: Connection, promise: TableCommittable
    ) -> None:
        self._database = database
        self._books = books
        self._connection = connection
        self.promise, self.rows = promise, 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        numbered = [(self.rows + n, *row) for n, row in enumerate(rows)]
        try:
            with self._database.transaction(self._connection) as session:
                stage_rows(session, self._database, stage(self.promise.id), self.promise.target, numbered)
        except self._database.row_errors as error:
            with self._database.transaction(self._connection) as session:
                self._books.expect_open(session, self.promise)
            raise BadRows(self._refused(numbered, error)) from None

    def prepare(self, promise: TableCommittable) -> None:
        failpoints.hit("sink.flush.before")
        with self._database.connected() as connection:
            try:
                with self._database.transaction(connection) as session:
                    failpoints.hit("sink.flush.after")
                    failpoints.hit("sink.prepare.before")
                    self._books.prepare(session, promise, self.rows)
            except Fenced:
                # A process that ended the stage may have dropped its table before this writer created it.
                with self._database.transaction(connection) as session:
                    session.run(self._database.drop_table(self._database.quoted(stage(promise.id))))
                raise
        failpoints.hit("sink.prepare.after")

    def drop(self) -> None:
        with self._database.open_transaction() as session:
            if self._books.abort(session, self.promise.id):
                self._books.drop(session, self.promise.id)

    def _refused(self, rows: Sequence[tuple[Any, ...]], error: Exception) -> dict[int, Exception]:
        return find_bad_rows(self._database, self._connection, stage(self.promise.id), self.promise.target, rows, error)


def stage_rows(
    session: DbTransaction, database: Database, name: str, target: TargetTable, rows: Sequence[Sequence[Any]]
) -> None:
    """Insert numbered rows into a staging table."""
    session.run_each(statements.insert(database, database.quoted(name), target), rows)


def find_bad_rows(
    database: Database,
    connection: Connection,
    name: str,
    target: TargetTable,
    rows: Sequence[Sequence[Any]],
    error: Exception,
) -> dict[int, Exception]:
    """Return the errors of rows that the table rejects. Re-raise ``error`` if no row is the cause."""
    if not database.is_row_error(error):
        raise error
    with roll_back_after(database, connection) as session:  # a missing table is not the fault of a row
        session.rows(f"SELECT * FROM {database.quoted(name)} WHERE 1 = 0")
    errors: dict[int, Exception] = {}
    for index, row in enumerate(rows):
        try:
            with roll_back_after(database, connection) as session:
                stage_rows(session, database, name, target, [row])
        except database.row_errors as alone:
            if not database.is_row_error(alone):
                raise
            errors[index] = ValueError(f"{target}: {format_error(alone)}")
    if not errors:
        raise error
    return errors


class _ForcedRollback(Exception):
    """Ends a transaction that must change nothing. Never leaves this module."""


@contextmanager
def roll_back_after(database: Database, connection: Connection) -> Iterator[DbTransaction]:
    """Run a transaction, and always roll it back."""
    try:
        with database.transaction(connection) as session:
            yield session
            raise _ForcedRollback
    except _ForcedRollback:
        return
