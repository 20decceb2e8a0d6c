"""Staging tables of any database, one per writer and epoch. Each batch is one transaction.

Rule: the database decides row by row which rows a table rejects; nothing is staged meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection, Table, select

from kafka_eos._util import failpoints
from kafka_eos.connectors._shared.row_errors import BadRows
from kafka_eos.connectors._staged_tables.stage_names import Strategy, TableCommittable, TargetTable
from kafka_eos.connectors.dbapi import statements
from kafka_eos.connectors.dbapi.database import ROW_ERRORS, Database, format_error
from kafka_eos.connectors.dbapi.staging_catalog import DbApiStagingCatalog, name_stage
from kafka_eos.core.errors import Fenced, KafkaEosError


class DbApiTableStaging:
    """The staging of rows in tables of any database, one transaction per batch.

    ``connection`` belongs to the writing thread; other threads open their own.
    """

    strategy = Strategy.STAGE

    def __init__(
        self, database: Database, catalog: DbApiStagingCatalog, connection: Connection, definitions: Mapping[str, str]
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._connection = connection
        self._definitions = definitions

    def map_errors(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        return self._database.mapped(kind, what)

    def open(self, promise: TableCommittable, subtask: int, operator: str) -> _DbApiStagingTable:
        table = statements.make_stage_table(self._database, name_stage(promise.id), self._definitions)
        with self._connection.begin():
            self._catalog.open(self._connection, promise, subtask, operator)
            table.create(self._connection, checkfirst=False)
        return _DbApiStagingTable(self._database, self._catalog, self._connection, table, promise)

    def close(self) -> None:
        self._connection.close()


class _DbApiStagingTable:
    """The staging table of one epoch."""

    def __init__(
        self,
        database: Database,
        catalog: DbApiStagingCatalog,
        connection: Connection,
        table: Table,
        promise: TableCommittable,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._connection = connection
        self._table = table
        self.promise, self.rows = promise, 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        numbered = [(self.rows + n, *row) for n, row in enumerate(rows)]
        try:
            with self._connection.begin():
                statements.insert_rows(self._connection, self._table, numbered)
        except ROW_ERRORS as error:
            with self._connection.begin():
                self._catalog.expect_open(self._connection, self.promise)
            bad = find_bad_rows(self._database, self._connection, self._table, self.promise.target, numbered, error)
            raise BadRows(bad) from None

    def prepare(self, promise: TableCommittable) -> None:
        failpoints.hit("sink.flush.before")
        with self._database.connected() as connection:
            try:
                with connection.begin():
                    failpoints.hit("sink.flush.after")
                    failpoints.hit("sink.prepare.before")
                    self._catalog.prepare(connection, promise, self.rows)
            except Fenced:
                # A process that ended the stage may have dropped its table before this writer created it.
                with connection.begin():
                    self._catalog.drop_table(connection, promise.id)
                raise
        failpoints.hit("sink.prepare.after")

    def drop(self) -> None:
        with self._database.connected() as connection, connection.begin():
            if self._catalog.abort(connection, self.promise.id):
                self._catalog.drop(connection, self.promise.id)


def find_bad_rows(
    database: Database,
    connection: Connection,
    stage: Table,
    target: TargetTable,
    rows: Sequence[tuple[Any, ...]],
    error: Exception,
) -> dict[int, Exception]:
    """Return the errors of rows that the table rejects. Re-raise ``error`` if no row is the cause."""
    if not database.is_row_error(error):
        raise error
    with roll_back_after(connection):  # a missing table is not the fault of a row
        connection.execute(select(stage).limit(0))
    errors: dict[int, Exception] = {}
    for index, row in enumerate(rows):
        try:
            with roll_back_after(connection):
                statements.insert_rows(connection, stage, [row])
        except ROW_ERRORS as alone:
            if not database.is_row_error(alone):
                raise
            errors[index] = ValueError(f"{target}: {format_error(alone)}")
    if not errors:
        raise error
    return errors


@contextmanager
def roll_back_after(connection: Connection) -> Iterator[None]:
    """Run a transaction, and always roll it back."""
    with connection.begin() as transaction:
        yield
        transaction.rollback()
