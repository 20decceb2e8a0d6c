"""Staging tables: rows wait next to the target, in one table per writer and epoch, filled by COPY.

Each batch is a transaction of its own, committed asynchronously. The pre-commit is synchronous, and makes everything
before it durable. So no transaction lasts longer than a batch, and vacuum never waits for an epoch.
Rule: the server decides row by row which rows a table rejects; nothing is staged meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from kafka_eos._util import failpoints
from kafka_eos.connectors._shared.row_errors import BadRows
from kafka_eos.connectors._staged_tables.stage_names import Strategy, TableCommittable, TargetTable
from kafka_eos.connectors._staged_tables.table_writer import find_bad_rows
from kafka_eos.connectors.postgres.connection import (
    ROW_ERRORS,
    Connection,
    WriterConnection,
    find_row_error,
    map_errors,
)
from kafka_eos.connectors.postgres.sink import statements
from kafka_eos.connectors.postgres.sink.staging_catalog import PostgresStagingCatalog
from kafka_eos.connectors.postgres.sink.target_table import TableInfo
from kafka_eos.core.errors import KafkaEosError


@dataclass
class PostgresTableStaging:
    """The staging of rows in tables filled by COPY (Strategy.STAGE)."""

    link: WriterConnection
    catalog: PostgresStagingCatalog
    table: TableInfo
    strategy: Strategy = Strategy.STAGE

    def map_errors(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        return map_errors(kind, what)

    def open(self, stage: TableCommittable, subtask: int, operator: str) -> _PostgresStagingTable:
        name = sql.Identifier(self.catalog.schema, stage.stage_name)
        with self.link.asynchronous() as connection:
            self.catalog.open(connection, stage, subtask, operator)
            statements.make_stage(connection, name, self.table, stage.target)
        return _PostgresStagingTable(self.link, self.catalog, stage, name)

    def close(self) -> None:
        self.link.close()


@dataclass
class _PostgresStagingTable:
    """The staging table of one epoch."""

    link: WriterConnection
    catalog: PostgresStagingCatalog
    stage: TableCommittable
    name: sql.Identifier
    rows: int = 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        target = self.stage.target
        numbered = [(self.rows + n, *row) for n, row in enumerate(rows)]
        try:
            with self.link.asynchronous() as connection:
                statements.copy_into(connection, self.name, target.columns, numbered)
        except psycopg.errors.UndefinedTable:
            with self.link.acquire() as connection:
                self.catalog.expect_staged(connection, self.stage)
            raise
        except ROW_ERRORS as error:
            with self.link.acquire() as connection:
                raise BadRows(refused(connection, self.name, target, numbered, error)) from None

    def prepare(self, stage: TableCommittable) -> None:
        failpoints.hit("sink.flush.before")
        with self.link.durable() as connection:
            failpoints.hit("sink.flush.after")
            failpoints.hit("sink.prepare.before")
            self.catalog.prepare(connection, stage, self.rows)
        failpoints.hit("sink.prepare.after")

    def drop(self) -> None:
        with self.link.asynchronous() as connection:
            self.catalog.drop(connection, self.stage)


def refused(
    connection: Connection, stage: sql.Identifier, target: TargetTable, rows: Sequence[Any], error: Exception
) -> dict[int, Exception]:
    """Return the errors of rejected rows, by index. Re-raise ``error``, which all of them raised, if no row is the
    cause."""

    def stage_alone(row: Any) -> None:
        with connection.transaction():
            statements.copy_into(connection, stage, target.columns, [row])

    with connection.transaction(force_rollback=True):
        return find_bad_rows(rows, stage_alone, ROW_ERRORS, lambda alone: find_row_error(alone, target), error)
