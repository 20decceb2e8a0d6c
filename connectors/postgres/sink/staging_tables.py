"""Staging tables: rows wait next to the target, in one table per writer and epoch, filled by COPY.

Each batch is a transaction of its own, committed asynchronously. The pre-commit is synchronous, and makes everything
before it durable. So no transaction lasts longer than a batch, and vacuum never waits for an epoch.
Rule: the server decides row by row which rows a table rejects; nothing is staged meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg import sql

from kafka_eos._util import failpoints
from kafka_eos.connectors._shared.row_errors import BadRows
from kafka_eos.connectors._staged_tables.stage_names import Strategy, TableCommittable, TargetTable
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


class PostgresTableStaging:
    """The staging of rows in tables filled by COPY (Strategy.STAGE)."""

    strategy = Strategy.STAGE

    def __init__(self, link: WriterConnection, ledger: PostgresStagingCatalog, table: TableInfo) -> None:
        self._link = link
        self._ledger = ledger
        self._table = table

    def map_errors(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        return map_errors(kind, what)

    def open(self, promise: TableCommittable, subtask: int, operator: str) -> _PostgresStagingTable:
        name = sql.Identifier(self._ledger.schema, promise.build_stage_name)
        with self._link.asynchronous() as connection:
            self._ledger.open(connection, promise, subtask, operator)
            statements.make_stage(connection, name, self._table, promise.target)
        return _PostgresStagingTable(self._link, self._ledger, promise, name)

    def close(self) -> None:
        self._link.close()


class _PostgresStagingTable:
    """The staging table of one epoch."""

    def __init__(
        self, link: WriterConnection, ledger: PostgresStagingCatalog, promise: TableCommittable, name: sql.Identifier
    ) -> None:
        self._link = link
        self._ledger = ledger
        self._name = name
        self.promise, self.rows = promise, 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        target = self.promise.target
        numbered = [(self.rows + n, *row) for n, row in enumerate(rows)]
        try:
            with self._link.asynchronous() as connection:
                statements.copy_into(connection, self._name, target.columns, numbered)
        except psycopg.errors.UndefinedTable:
            with self._link.acquire() as connection:
                self._ledger.expect_staged(connection, self.promise)
            raise
        except ROW_ERRORS as error:
            with self._link.acquire() as connection:
                raise BadRows(refused(connection, self._name, target, numbered, error)) from None

    def prepare(self, promise: TableCommittable) -> None:
        failpoints.hit("sink.flush.before")
        with self._link.durable() as connection:
            failpoints.hit("sink.flush.after")
            failpoints.hit("sink.prepare.before")
            self._ledger.prepare(connection, promise, self.rows)
        failpoints.hit("sink.prepare.after")

    def drop(self) -> None:
        with self._link.asynchronous() as connection:
            self._ledger.drop(connection, self.promise)


def refused(
    connection: Connection, stage: sql.Identifier, target: TargetTable, rows: Sequence[Any], error: Exception
) -> dict[int, Exception]:
    """Return the errors of rejected rows, by index. Re-raise ``error``, which all of them raised, if no row is the
    cause."""
    errors: dict[int, Exception] = {}
    if find_row_error(error, target) is None:
        raise error
    with connection.transaction(force_rollback=True):
        for index, row in enumerate(rows):
            try:
                with connection.transaction():
                    statements.copy_into(connection, stage, target.columns, [row])
            except ROW_ERRORS as alone:
                wrong = find_row_error(alone, target)
                if wrong is None:
                    raise
                errors[index] = wrong
    if not errors:
        raise error
    return errors
