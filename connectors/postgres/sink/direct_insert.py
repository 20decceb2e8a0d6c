"""Staging of rows in the target itself, by COPY, in one transaction per writer and epoch that is prepared at the
barrier.

Each row is written once. The trade-off is a transaction as long as an epoch, and locks until it is committed. So it is
for tables that only get new rows, see ``write_strategy``.

A rejected row aborts its transaction, so savepoints are used. A transaction with many savepoints slows down the whole
server, which caches the first 64 of each. So a savepoint is set after many rows, and rows written since are kept in
memory, to be written again after a rollback.
Rule: a temporary staging table on another connection decides which row is at fault, as for ``Strategy.STAGE``. So the
reason for a rejection does not depend on the strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Final

from psycopg import sql

from kafka_eos._util import failpoints
from kafka_eos.connectors._shared.row_errors import BadRows
from kafka_eos.connectors._staged_tables.stage_names import Strategy, TableCommittable, TargetTable
from kafka_eos.connectors.postgres.connection import LOCK_TIMEOUT, ROW_ERRORS, Connection, map_errors
from kafka_eos.connectors.postgres.sink import prepared_transactions as prepared
from kafka_eos.connectors.postgres.sink import statements
from kafka_eos.connectors.postgres.sink.staging_catalog import PostgresStagingCatalog
from kafka_eos.connectors.postgres.sink.staging_tables import refused
from kafka_eos.connectors.postgres.sink.target_table import TableInfo
from kafka_eos.core.errors import KafkaEosError
from kafka_eos.core.limits import LIMITS

_JUDGE: Final = sql.Identifier("pg_temp", "stage_rows")


class PostgresTransactionStaging:
    """The staging of rows in transactions prepared at the barrier (Strategy.PREPARE).

    One of its connections writes, while another one may prepare the previous epoch.
    """

    strategy = Strategy.PREPARE

    def __init__(
        self,
        first: Connection,
        connect: Callable[[], Connection],
        ledger: PostgresStagingCatalog,
        table: TableInfo,
        target: TargetTable,
    ) -> None:
        """Create the strategy for one table. ``first``: an open connection. ``connect``: opens others."""
        self._connect, self._ledger = connect, ledger
        self._judge = _RowChecker(self._connected, table, target)
        self._lock = Lock()
        self._idle: list[Connection] = []
        self._all: list[Connection] = []
        self._release(self._ready(first))

    def map_errors(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        return map_errors(kind, what)

    def open(self, stage: TableCommittable, subtask: int, operator: str) -> _StagingTransaction:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connected()
        with connection.transaction():
            self._ledger.open(connection, stage, subtask, operator)
        prepared.begin(connection, stage.id)
        connection.execute("SAVEPOINT kept")
        return _StagingTransaction(connection, self._ledger, stage, self._judge, self._release)

    def close(self) -> None:
        with self._lock:
            connections, self._all = self._all, []
        for connection in connections:
            connection.close()

    def _connected(self) -> Connection:
        return self._ready(self._connect())

    def _ready(self, connection: Connection) -> Connection:
        # A statement that alters the table waits for an epoch's transaction, and rows of the next epoch would wait for
        # that statement: a deadlock across subtasks. This timeout ends the attempt, and with it the transactions that
        # are waited for.
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (LOCK_TIMEOUT,))
        with self._lock:
            self._all.append(connection)
        return connection

    def _release(self, connection: Connection) -> None:
        with self._lock:
            self._idle.append(connection)


class _StagingTransaction:
    """The transaction of one epoch, and its connection."""

    def __init__(
        self,
        connection: Connection,
        ledger: PostgresStagingCatalog,
        stage: TableCommittable,
        judge: _RowChecker,
        release: Callable[[Connection], None],
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._judge = judge
        self._release = release
        self.stage, self.rows = stage, 0
        self._kept: list[tuple[Any, ...]] = []
        self._size = 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        cells = [row[1:] for row in rows]  # this strategy has no deletions
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

    def prepare(self, stage: TableCommittable) -> None:
        failpoints.hit("sink.flush.before")
        self._ledger.write_marker_ahead(self._connection, stage)
        failpoints.hit("sink.flush.after")
        failpoints.hit("sink.prepare.before")
        prepared.prepare(self._connection, stage.id)
        failpoints.hit("sink.prepare.after")
        self._release(self._connection)

    def drop(self) -> None:
        self._connection.execute("ROLLBACK")
        with self._connection.transaction():
            self._ledger.drop(self._connection, self.stage)
        self._release(self._connection)

    def _copy(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            statements.copy_rows(self._connection, self.stage.target, rows)


class _RowChecker:
    """The search for rows that the table rejects, on a connection opened on demand."""

    def __init__(self, connect: Callable[[], Connection], table: TableInfo, target: TargetTable) -> None:
        self._connect = connect
        self._table = table
        self._target = target
        self._connection: Connection | None = None

    def refused(self, rows: Sequence[tuple[Any, ...]], error: Exception) -> dict[int, Exception]:
        """Return the errors of rejected rows. See ``staging_tables.refused``."""
        if self._connection is None or self._table.partitions:  # partitions may have changed since
            connection = self._connection = self._connection or self._connect()
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(_JUDGE))
            statements.make_stage(connection, _JUDGE, self._table, self._target)
        numbered = [(n, *row) for n, row in enumerate(rows)]
        return refused(self._connection, _JUDGE, self._target, numbered, error)
