"""Staging tables: rows wait beside the target, one table a writer and epoch, filled by COPY.

Each batch is a transaction of its own, which waits for no disk; the pre-commit does, and with it everything before it.
So no transaction lasts longer than a batch, and vacuum never waits for an epoch.

Rule: which rows a table does not take decides the server, row by row; nothing is staged while it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg import sql

from kafka_eos._util import failpoints
from kafka_eos.connectors._shared.row_errors import BadRows
from kafka_eos.connectors._staged_tables.stage_names import Promise, Strategy, Target
from kafka_eos.connectors.postgres.connection import ROW_ERRORS, Connection, Link, mapped, of_a_row
from kafka_eos.connectors.postgres.sink import statements
from kafka_eos.connectors.postgres.sink.staging_catalog import Ledger
from kafka_eos.connectors.postgres.sink.target_table import Table
from kafka_eos.core.errors import KafkaEosError


class StagingTables:
    """The holder of ``Strategy.STAGE``."""

    strategy = Strategy.STAGE

    def __init__(self, link: Link, ledger: Ledger, table: Table) -> None:
        self._link, self._ledger, self._table = link, ledger, table

    def mapped(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        return mapped(kind, what)

    def open(self, promise: Promise, subtask: int, operator: str) -> _Stage:
        name = sql.Identifier(self._ledger.schema, promise.stage)
        with self._link.alone() as connection, connection.transaction():
            self._ledger.open(connection, promise, subtask, operator)
            statements.make_stage(connection, name, self._table, promise.target)
        return _Stage(self._link, self._ledger, promise, name)

    def close(self) -> None:
        self._link.close()


class _Stage:
    """The staging table of one epoch."""

    def __init__(self, link: Link, ledger: Ledger, promise: Promise, name: sql.Identifier) -> None:
        self._link, self._ledger, self._name = link, ledger, name
        self.promise, self.rows = promise, 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        target = self.promise.target
        numbered = [(self.rows + n, *row) for n, row in enumerate(rows)]
        with self._link.alone() as connection:
            try:
                statements.copy_into(connection, self._name, target.columns, numbered)
            except psycopg.errors.UndefinedTable:
                self._ledger.expect_staged(connection, self.promise)
                raise
            except ROW_ERRORS as error:
                raise BadRows(refused(connection, self._name, target, numbered, error)) from None

    def prepare(self, promise: Promise) -> None:
        failpoints.hit("sink.flush.before")
        with self._link.durable() as connection:
            failpoints.hit("sink.flush.after")
            failpoints.hit("sink.prepare.before")
            self._ledger.prepare(connection, promise, self.rows)
        failpoints.hit("sink.prepare.after")

    def drop(self) -> None:
        with self._link.alone() as connection, connection.transaction():
            self._ledger.drop(connection, self.promise)


def refused(
    connection: Connection, stage: sql.Identifier, target: Target, rows: Sequence[Any], error: Exception
) -> dict[int, Exception]:
    """What is wrong with each row, by its index. ``error``: what all of them raised; raised again if no row is why."""
    errors: dict[int, Exception] = {}
    if of_a_row(error, target) is None:
        raise error
    with connection.transaction(force_rollback=True):
        for index, row in enumerate(rows):
            try:
                with connection.transaction():
                    statements.copy_into(connection, stage, target.columns, [row])
            except ROW_ERRORS as alone:
                wrong = of_a_row(alone, target)
                if wrong is None:
                    raise
                errors[index] = wrong
    if not errors:
        raise error
    return errors
