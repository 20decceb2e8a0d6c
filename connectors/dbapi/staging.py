"""Staging tables of a database that PEP 249 describes, one a writer and epoch. Each batch is one transaction.

Rule: which rows a table does not take decides the database, row by row; nothing is staged while it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from kafka_eos._util import failpoints
from kafka_eos.connectors._shared.row_errors import BadRows
from kafka_eos.connectors._staged_tables.stage_names import Promise, Strategy, Target
from kafka_eos.connectors.dbapi import statements
from kafka_eos.connectors.dbapi.database import Connection, Database, Session, said
from kafka_eos.connectors.dbapi.staging_catalog import Books, stage
from kafka_eos.core.errors import Fenced, KafkaEosError


class StagingTables:
    """The holder of one writer. ``connection`` is that of the thread that writes; others open their own."""

    strategy = Strategy.STAGE

    def __init__(
        self, database: Database, books: Books, connection: Connection, definitions: Mapping[str, str]
    ) -> None:
        self._database, self._books, self._connection = database, books, connection
        self._columns = statements.stage_columns(database, definitions)

    def mapped(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        return self._database.mapped(kind, what)

    def open(self, promise: Promise, subtask: int, operator: str) -> _Stage:
        name = self._database.quoted(stage(promise.id))
        with self._database.transaction(self._connection) as session:
            self._books.open(session, promise, subtask, operator)
            session.run(self._database.create_table(name, self._columns))
        return _Stage(self._database, self._books, self._connection, promise)

    def close(self) -> None:
        self._connection.close()


class _Stage:
    """The staging table of one epoch."""

    def __init__(self, database: Database, books: Books, connection: Connection, promise: Promise) -> None:
        self._database, self._books, self._connection = database, books, connection
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

    def prepare(self, promise: Promise) -> None:
        failpoints.hit("sink.flush.before")
        with self._database.connected() as connection:
            try:
                with self._database.transaction(connection) as session:
                    failpoints.hit("sink.flush.after")
                    failpoints.hit("sink.prepare.before")
                    self._books.prepare(session, promise, self.rows)
            except Fenced:
                # Who ended it may have dropped its table before this writer had made it.
                with self._database.transaction(connection) as session:
                    session.run(self._database.drop_table(self._database.quoted(stage(promise.id))))
                raise
        failpoints.hit("sink.prepare.after")

    def drop(self) -> None:
        with self._database.once() as session:
            if self._books.abort(session, self.promise.id):
                self._books.drop(session, self.promise.id)

    def _refused(self, rows: Sequence[tuple[Any, ...]], error: Exception) -> dict[int, Exception]:
        return refused(self._database, self._connection, stage(self.promise.id), self.promise.target, rows, error)


def stage_rows(session: Session, database: Database, name: str, target: Target, rows: Sequence[Sequence[Any]]) -> None:
    """Numbered rows into a staging table."""
    session.run_each(statements.insert(database, database.quoted(name), target), rows)


def refused(
    database: Database,
    connection: Connection,
    name: str,
    target: Target,
    rows: Sequence[Sequence[Any]],
    error: Exception,
) -> dict[int, Exception]:
    """What is wrong with each row, by its index. ``error``: what all of them raised; raised again if no row is why."""
    if not database.refuses_row(error):
        raise error
    with undone(database, connection) as session:  # that the table itself is gone is no row's fault
        session.rows(f"SELECT * FROM {database.quoted(name)} WHERE 1 = 0")
    errors: dict[int, Exception] = {}
    for index, row in enumerate(rows):
        try:
            with undone(database, connection) as session:
                stage_rows(session, database, name, target, [row])
        except database.row_errors as alone:
            if not database.refuses_row(alone):
                raise
            errors[index] = ValueError(f"{target}: {said(alone)}")
    if not errors:
        raise error
    return errors


class _Undone(Exception):
    """Never leaves this module."""


@contextmanager
def undone(database: Database, connection: Connection) -> Iterator[Session]:
    """A transaction of which nothing stays."""
    try:
        with database.transaction(connection) as session:
            yield session
            raise _Undone
    except _Undone:
        return
