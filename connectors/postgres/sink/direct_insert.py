"""Rows in the target itself, by COPY, in one transaction a writer and epoch that is prepared at the barrier.

Each row is written once. The price is a transaction as long as an epoch, and locks until it is committed; so it is for
tables that only get new rows, see ``strategies``.

A row that the table refuses undoes what its transaction did, so there are savepoints. A transaction with many of them
slows down the whole server, which remembers the first 64 of each; so one comes after many rows, and what was written
since is kept here, to be written again behind it.

Rule: whose fault an error is decides a temporary staging table on another connection, as for ``Strategy.STAGE``: what a
row is refused for does not depend on the strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Final

from psycopg import sql

from kafka_eos._util import failpoints
from kafka_eos.connectors._shared.row_errors import BadRows
from kafka_eos.connectors._staged_tables.stage_names import Promise, Strategy, Target
from kafka_eos.connectors.postgres.connection import LOCK_TIMEOUT, ROW_ERRORS, Connection, mapped
from kafka_eos.connectors.postgres.sink import prepared_transactions as prepared
from kafka_eos.connectors.postgres.sink import statements
from kafka_eos.connectors.postgres.sink.staging_catalog import Ledger
from kafka_eos.connectors.postgres.sink.staging_tables import refused
from kafka_eos.connectors.postgres.sink.target_table import Table
from kafka_eos.core.errors import KafkaEosError
from kafka_eos.core.limits import LIMITS

_JUDGE: Final = sql.Identifier("pg_temp", "stage_rows")


class Transactions:
    """The holder of ``Strategy.PREPARE``. Of its connections one writes; another one may prepare the epoch before."""

    strategy = Strategy.PREPARE

    def __init__(
        self,
        first: Connection,
        connect: Callable[[], Connection],
        ledger: Ledger,
        table: Table,
        target: Target,
    ) -> None:
        """``first``: a connection that is there already. ``connect`` makes others."""
        self._connect, self._ledger = connect, ledger
        self._judge = _Judge(self._connected, table, target)
        self._lock = Lock()
        self._idle: list[Connection] = []
        self._all: list[Connection] = []
        self._let_go(self._ready(first))

    def mapped(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        return mapped(kind, what)

    def open(self, promise: Promise, subtask: int, operator: str) -> _Transaction:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connected()
        with connection.transaction():
            self._ledger.open(connection, promise, subtask, operator)
        prepared.begin(connection, promise.id)
        connection.execute("SAVEPOINT kept")
        return _Transaction(connection, self._ledger, promise, self._judge, self._let_go)

    def close(self) -> None:
        with self._lock:
            connections, self._all = self._all, []
        for connection in connections:
            connection.close()

    def _connected(self) -> Connection:
        return self._ready(self._connect())

    def _ready(self, connection: Connection) -> Connection:
        # Who changes the table waits for an epoch, and rows of the next one would wait for it: for the same epoch's,
        # in another subtask. This ends the attempt, and with it the transactions that it waits for.
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (LOCK_TIMEOUT,))
        with self._lock:
            self._all.append(connection)
        return connection

    def _let_go(self, connection: Connection) -> None:
        with self._lock:
            self._idle.append(connection)


class _Transaction:
    """The transaction of one epoch, and its connection for as long."""

    def __init__(
        self,
        connection: Connection,
        ledger: Ledger,
        promise: Promise,
        judge: _Judge,
        let_go: Callable[[Connection], None],
    ) -> None:
        self._connection, self._ledger, self._judge, self._let_go = connection, ledger, judge, let_go
        self.promise, self.rows = promise, 0
        self._kept: list[tuple[Any, ...]] = []
        self._size = 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        cells = [row[1:] for row in rows]  # no row here deletes
        try:
            self._copy(cells)
        except ROW_ERRORS as error:
            bad = self._judge.refused(rows, error)
            self._connection.execute("ROLLBACK TO SAVEPOINT kept")
            self._copy(self._kept)
            raise BadRows(bad) from None
        self._kept += cells
        self._size += sum(len(cell) for row in cells for cell in row if isinstance(cell, str | bytes))
        if len(self._kept) >= LIMITS.rows_per_insert or self._size >= LIMITS.insert_bytes:
            self._connection.execute("RELEASE SAVEPOINT kept")
            self._connection.execute("SAVEPOINT kept")
            self._kept, self._size = [], 0

    def prepare(self, promise: Promise) -> None:
        failpoints.hit("sink.flush.before")
        self._ledger.foretell(self._connection, promise)
        failpoints.hit("sink.flush.after")
        failpoints.hit("sink.prepare.before")
        prepared.prepare(self._connection, promise.id)
        failpoints.hit("sink.prepare.after")
        self._let_go(self._connection)

    def drop(self) -> None:
        self._connection.execute("ROLLBACK")
        with self._connection.transaction():
            self._ledger.drop(self._connection, self.promise)
        self._let_go(self._connection)

    def _copy(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            statements.copy_rows(self._connection, self.promise.target, rows)


class _Judge:
    """Says which rows are to blame, with a connection that is made when it is needed."""

    def __init__(self, connect: Callable[[], Connection], table: Table, target: Target) -> None:
        self._connect, self._table, self._target = connect, table, target
        self._connection: Connection | None = None

    def refused(self, rows: Sequence[tuple[Any, ...]], error: Exception) -> dict[int, Exception]:
        """As ``staging.refused``."""
        if self._connection is None:
            self._connection = self._connect()
            statements.make_stage(self._connection, _JUDGE, self._table, self._target)
        numbered = [(n, *row) for n, row in enumerate(rows)]
        return refused(self._connection, _JUDGE, self._target, numbered, error)
