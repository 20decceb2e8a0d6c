"""The committer of staged rows in PostgreSQL.

The commit of a staging table is one transaction: it copies the rows into the user's table, drops the staging table, and
inserts a marker into the ledger. The commit of a prepared transaction is one statement, and its marker is part of it.
Rule: a process that ends a stage first deletes its row in ``staged``, which only one transaction can do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from kafka_eos.connectors._staged_tables.committer import StagedTableCommitter, StagingEntry
from kafka_eos.connectors._staged_tables.stage_names import (
    COMMITTER,
    WRITER,
    Incarnation,
    Strategy,
    TableCommittable,
    application,
    build_stage_name,
)
from kafka_eos.connectors.postgres.connection import (
    Connection,
    ConnectionPool,
    PostgresDatabase,
    ensure_own_session,
    map_errors,
)
from kafka_eos.connectors.postgres.sink import prepared_transactions as prepared
from kafka_eos.connectors.postgres.sink import statements
from kafka_eos.connectors.postgres.sink.staging_catalog import PostgresStagingCatalog
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import EpochId

_FROZEN = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = ANY (%s) AND usename = current_user AND pid <> pg_backend_pid()
        AND state <> 'idle' AND wait_event = 'ClientRead' AND state_change < clock_timestamp() - interval '5 s'
"""

_GONE = {Strategy.STAGE: "dropped", Strategy.PREPARE: "rolled back"}


class PostgresCommitter(StagedTableCommitter[Connection]):
    """The committer of one database. Thread-safe, and usable by any process that has the manifest."""

    _catalog: PostgresStagingCatalog

    def __init__(self, database: PostgresDatabase, catalog: PostgresStagingCatalog, scope: str, job: str) -> None:
        super().__init__(catalog, scope)
        self._connections = ConnectionPool(database, application(COMMITTER, job))

    def _apply(self, stage: TableCommittable, permit: EpochId, what: str) -> bool:
        """See the base class. The marker of a prepared transaction is part of it."""
        carry_out = self._apply_staged_rows if stage.strategy is Strategy.STAGE else self._commit_prepared
        with self._session(what, stage.incarnation) as connection:
            return carry_out(connection, stage, permit)

    def _commit_prepared(self, connection: Connection, stage: TableCommittable, permit: EpochId) -> bool:
        """Commit a prepared transaction; return whether this call did it. The catalog is updated in any case."""
        done = prepared.commit(connection, stage.id)
        with connection.transaction():
            self._catalog.permitted(connection, stage, permit)
            if done:
                self._catalog.prune_markers(connection, stage.incarnation, permit)
        return done

    def _apply_staged_rows(self, connection: Connection, stage: TableCommittable, permit: EpochId) -> bool:
        with connection.transaction() as transaction:
            ensure_own_session(connection)
            taken = [
                (of, self._catalog.delete_entry(connection, of, stage.incarnation))
                for of in (*stage.predecessors, stage.id)
            ]
            there = taken[-1][1] is not None
            if not there:
                raise psycopg.Rollback(transaction)
            for of, row in taken:
                if row is not None:
                    name = sql.Identifier(self._catalog.schema, build_stage_name(of))
                    statements.apply(connection, name, stage.target)
                    self._catalog.drop_stage(connection, row, committed=True, needed_by=permit.epoch.n)
            self._catalog.prune_markers(connection, stage.incarnation, permit)
        return there

    def _abort(self, incarnation: Incarnation, entry: StagingEntry) -> bool:
        """See the base class. The row of a transaction that is being prepared is locked: then the next call finds
        it."""
        with self._session(f"drop {self._entry_name(entry)}", incarnation) as connection:
            if entry.strategy is Strategy.PREPARE:
                prepared.roll_back(connection, entry.id)
            with connection.transaction():
                taken = self._catalog.delete_entry(connection, entry.id, incarnation)
                if taken is not None:
                    self._catalog.drop_stage(connection, taken, committed=False, needed_by=int(taken[4]))
            return taken is not None

    def close(self) -> None:
        self._connections.close()

    @contextmanager
    def _session(self, what: str, incarnation: Incarnation | None = None) -> Iterator[Connection]:
        """See the base class. After a lock timeout, connections of this job that are frozen in a transaction end."""
        with map_errors(Retryable, what):
            try:
                with self._connections.one() as connection:
                    yield connection
            except psycopg.errors.LockNotAvailable:
                if incarnation is not None:
                    with self._connections.one() as connection:
                        connection.execute(
                            _FROZEN, ([incarnation.application(WRITER), application(COMMITTER, incarnation.job)],)
                        )
                raise

    def _describe_loss(self, stage: TableCommittable) -> str:
        return f"{_GONE[stage.strategy]}: aborted, or by hand"

    def _describe_remedy(self, stage: TableCommittable) -> str:
        incarnation = stage.incarnation
        return (
            f": INSERT INTO {self._catalog.schema}.ledger VALUES ('{stage.id}', '{incarnation.job}', "  # noqa: S608 - a statement for people, which nothing runs
            f"'{incarnation.identity_text}', {stage.epoch.term}, {stage.epoch.epoch}, 0, '', true, "
            f"{stage.epoch.epoch}); if it does not, the same with false"
        )
