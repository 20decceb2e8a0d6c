"""Staging tables of any database, one per writer and epoch. Each batch is one transaction.

Rule: the database decides row by row which rows a table rejects; nothing is staged meanwhile. A row that it would
change is rejected too (``stored_cells``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, select

from kafka_eos._util import failpoints
from kafka_eos.connectors._shared.row_errors import BadRows
from kafka_eos.connectors._staged_tables.stage_names import Strategy, TableCommittable, TargetTable
from kafka_eos.connectors._staged_tables.table_writer import find_bad_rows
from kafka_eos.connectors.dbapi import statements
from kafka_eos.connectors.dbapi.database import ROW_ERRORS, Database
from kafka_eos.connectors.dbapi.staging_catalog import DbApiStagingCatalog, name_stage
from kafka_eos.connectors.dbapi.stored_cells import ColumnTypes, find_changed
from kafka_eos.core.errors import Fenced, KafkaEosError


@dataclass
class DbApiTableStaging:
    """The staging of rows in tables of any database, one transaction per batch.

    ``connection`` belongs to the writing thread; other threads open their own.
    """

    database: Database
    catalog: DbApiStagingCatalog
    connection: Connection
    definitions: Mapping[str, str]
    types: ColumnTypes
    strategy: Strategy = Strategy.STAGE

    def map_errors(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        return self.database.mapped(kind, what)

    def open(self, stage: TableCommittable, subtask: int, operator: str) -> _DbApiStagingTable:
        table = statements.make_stage_table(self.database, name_stage(stage.id), self.definitions)
        with self.connection.begin():
            self.catalog.open(self.connection, stage, subtask, operator)
            table.create(self.connection, checkfirst=False)
        return _DbApiStagingTable(self.database, self.catalog, self.connection, table, self.types, stage)

    def close(self) -> None:
        self.connection.close()


@dataclass
class _DbApiStagingTable:
    """The staging table of one epoch."""

    database: Database
    catalog: DbApiStagingCatalog
    connection: Connection
    table: Table
    types: ColumnTypes
    stage: TableCommittable
    rows: int = 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        numbered = [(self.rows + n, *row) for n, row in enumerate(rows)]
        try:
            with self.connection.begin():
                insert_unchanged(self.connection, self.table, self.types, self.stage.target, numbered)
        except ROW_ERRORS as error:
            with self.connection.begin():
                self.catalog.expect_open(self.connection, self.stage)
            bad = refused(self.database, self.connection, self.table, self.types, self.stage.target, numbered, error)
            raise BadRows(bad) from None

    def prepare(self, stage: TableCommittable) -> None:
        failpoints.hit("sink.flush.before")
        with self.database.connected() as connection:
            try:
                with connection.begin():
                    failpoints.hit("sink.flush.after")
                    failpoints.hit("sink.prepare.before")
                    self.catalog.prepare(connection, stage, self.rows)
            except Fenced:
                # A process that ended the stage may have dropped its table before this writer created it.
                with connection.begin():
                    self.catalog.drop_table(connection, stage.id)
                raise
        failpoints.hit("sink.prepare.after")

    def drop(self) -> None:
        with self.database.connected() as connection, connection.begin():
            if self.catalog.abort(connection, self.stage.id):
                self.catalog.drop(connection, self.stage.id)


def insert_unchanged(
    connection: Connection, stage: Table, types: ColumnTypes, target: TargetTable, rows: Sequence[tuple[Any, ...]]
) -> None:
    """Stage rows of a number and cells. Raise BadRows with those that come back changed, or one of ``ROW_ERRORS``."""
    statements.insert_rows(connection, stage, rows)
    if changed := find_changed(connection, stage, types, target, rows):
        raise BadRows(changed)


def refused(
    database: Database,
    connection: Connection,
    stage: Table,
    types: ColumnTypes,
    target: TargetTable,
    rows: Sequence[tuple[Any, ...]],
    error: Exception,
) -> dict[int, Exception]:
    """Return the errors of rejected rows. See ``find_bad_rows``."""

    def stage_alone(row: tuple[Any, ...]) -> None:
        with roll_back_after(connection):
            statements.insert_rows(connection, stage, [row])
            find_changed(connection, stage, types, target, [row])  # raises for a value that cannot be read

    if database.find_row_error(error, target) is not None:
        with roll_back_after(connection):  # a missing table is not the fault of a row
            connection.execute(select(stage).limit(0))
    return find_bad_rows(rows, stage_alone, ROW_ERRORS, lambda alone: database.find_row_error(alone, target), error)


@contextmanager
def roll_back_after(connection: Connection) -> Iterator[None]:
    """Run a transaction, and always roll it back."""
    with connection.begin() as transaction:
        yield
        transaction.rollback()
