"""The staging catalog of the sink, in a schema of its own: what is staged, and how it ended.

    incarnations  one row per incarnation of a job's name: its newest term, and whether it was taken over
    staged        one row per staging table or transaction, open or prepared; the transaction that ends it deletes the
                  row. ``prepared``: a committable may name its rows; for a transaction, which cannot set it later, it
                  is set from the beginning
    made          the user's tables that a sink has created, or found: a missing one is not created again
    ledger        the outcome of a prepared one, inserted by the transaction that makes its rows visible, or drops them

Rule: a staging table, its row here and the rows of the user's table change in one transaction. So a row in ``staged``
proves that it is not committed, a row in ``ledger`` states its outcome, and without either the outcome is unknown.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from psycopg import sql

from kafka_eos.abc.committer import CommitStatus
from kafka_eos.connectors._staged_tables.committer import StagingEntry
from kafka_eos.connectors._staged_tables.registrations import Registration
from kafka_eos.connectors._staged_tables.stage_names import (
    Incarnation,
    Strategy,
    TableCommittable,
    build_stage_name,
    build_transaction_name,
    ensure_current,
    parse_identity,
)
from kafka_eos.connectors.postgres.connection import Connection, fetch_row
from kafka_eos.connectors.postgres.sink import prepared_transactions as transactions
from kafka_eos.core.errors import Fenced, Retryable
from kafka_eos.core.ids import Epoch, EpochId, Term

_MAKE: Final = """
    CREATE TABLE IF NOT EXISTS {schema}.incarnations (
        job text, identity text, term bigint NOT NULL DEFAULT 0, over boolean NOT NULL DEFAULT false,
        PRIMARY KEY (job, identity));
    CREATE TABLE IF NOT EXISTS {schema}.made (target text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());
    CREATE TABLE IF NOT EXISTS {schema}.staged (
        id uuid PRIMARY KEY, job text NOT NULL, identity text NOT NULL, term bigint NOT NULL, epoch bigint NOT NULL,
        subtask bigint NOT NULL, operator text NOT NULL, target text NOT NULL, prepared boolean NOT NULL DEFAULT false,
        rows bigint NOT NULL DEFAULT 0, since timestamptz NOT NULL DEFAULT now());
    CREATE TABLE IF NOT EXISTS {schema}.ledger (
        id uuid PRIMARY KEY, job text NOT NULL, identity text NOT NULL, term bigint NOT NULL, epoch bigint NOT NULL,
        subtask bigint NOT NULL, operator text NOT NULL, committed boolean NOT NULL, needed_by bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now());
"""
_LOCK: Final = 4_702_394_921_427_289_928
"""The advisory lock for creating the schema: concurrent CREATE … IF NOT EXISTS statements fail."""
_NOT_PERMITTED: Final = 2**63 - 1
"""``needed_by`` of a committed transaction whose commit has not recorded the epoch of its permit yet."""


class PostgresStagingCatalog:
    """The SQL for the sink's own schema; each method runs on the caller's connection."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def is_there(self, connection: Connection) -> bool:
        query = "SELECT to_regclass(format('%%I.%%I', %s::text, 'ledger'))"
        return fetch_row(connection.execute(query, (self.schema,))) != (None,)

    def create_tables(self, connection: Connection) -> None:
        """Create missing tables. Existing ones need no permission: another user may have created the schema."""
        if self.is_there(connection):
            return
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            if connection.execute("SELECT to_regnamespace(quote_ident(%s))", (self.schema,)).fetchone() == (None,):
                connection.execute(self._sql("CREATE SCHEMA {schema}"))
            for statement in filter(str.strip, _MAKE.split(";\n")):
                connection.execute(self._sql(statement))

    # ------------------------------------------------------------ the user's tables

    def has_seen(self, connection: Connection, target: str) -> bool:
        query = self._sql("SELECT FROM {schema}.made WHERE target = %s")
        return connection.execute(query, (target,)).fetchone() is not None

    def record_target(self, connection: Connection, target: str) -> None:
        """Record that the target table exists, so that it is never created again."""
        insert = self._sql("INSERT INTO {schema}.made (target) VALUES (%s) ON CONFLICT DO NOTHING")
        connection.execute(insert, (target,))

    # ------------------------------------------------------------ writers

    def open(self, connection: Connection, stage: TableCommittable, subtask: int, operator: str) -> None:
        """Record a new staging table, in the transaction that creates it. Raise Fenced if its writer's term is
        outdated."""
        self.ensure_current_term(connection, stage.incarnation, stage.epoch.term)
        connection.execute(
            self._sql(
                "INSERT INTO {schema}.staged (id, job, identity, term, epoch, subtask, operator, target, prepared)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
            ),
            (
                *(stage.id, *_of(stage.incarnation), *_numbers(stage.epoch), subtask, operator, str(stage.target)),
                stage.strategy is Strategy.PREPARE,
            ),
        )

    def prepare(self, connection: Connection, stage: TableCommittable, rows: int) -> None:
        """Record that a stage is complete. Raise Fenced if another process has ended it."""
        self.ensure_current_term(connection, stage.incarnation, stage.epoch.term)
        done = connection.execute(
            self._sql("UPDATE {schema}.staged SET prepared = true, rows = %s, epoch = %s WHERE id = %s"),
            (rows, stage.epoch.epoch.n, stage.id),
        )
        if done.rowcount != 1:
            raise self._gone(stage)

    def write_marker_ahead(self, connection: Connection, stage: TableCommittable) -> None:
        """Write the commit marker into a transaction that is about to be prepared.

        It takes no lock on ``incarnations``, because each recovery writes there before it ends prepared transactions. A
        process that ends this transaction deletes its row first, or waits for it. Raises Fenced if another process has
        ended it.
        """
        taken = self.delete_entry(connection, stage.id, stage.incarnation)
        if taken is None:
            raise self._gone(stage)
        self._write_marker(connection, taken[:-1], committed=True, needed_by=_NOT_PERMITTED)

    def expect_staged(self, connection: Connection, stage: TableCommittable) -> None:
        """Raise Fenced if a writer's term is outdated, or another process has ended its staging table."""
        self.ensure_current_term(connection, stage.incarnation, stage.epoch.term)
        query = self._sql("SELECT FROM {schema}.staged WHERE id = %s")
        if connection.execute(query, (stage.id,)).fetchone() is None:
            raise self._gone(stage)

    def _gone(self, stage: TableCommittable) -> Fenced:
        name = self.name(stage.id, stage.strategy)
        return Fenced(f"{name} does not exist: a newer term of job {stage.incarnation.job!r} removed it")

    def name(self, of: uuid.UUID, strategy: Strategy) -> str:
        """Return the name of a stage, for messages."""
        return (
            f"{self.schema}.{build_stage_name(of)}"
            if strategy is Strategy.STAGE
            else f"transaction {build_transaction_name(of)}"
        )

    def ensure_current_term(self, connection: Connection, incarnation: Incarnation, term: Term) -> None:
        """Raise Fenced if the term is outdated; block newer terms until this transaction commits."""
        connection.execute(
            self._sql(
                "INSERT INTO {schema}.incarnations (job, identity, term) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
            ),
            (*_of(incarnation), term.n),
        )
        row = connection.execute(
            self._sql("SELECT term, over FROM {schema}.incarnations WHERE job = %s AND identity = %s FOR SHARE"),
            _of(incarnation),
        ).fetchone()
        registration = None if row is None else Registration(incarnation.identity, Term(row[0]), row[1])
        ensure_current(incarnation, registration, term)

    # ------------------------------------------------------------ committers

    def read_status(self, connection: Connection, stage: TableCommittable) -> CommitStatus:
        """Return a committable's status from one query. Raise Retryable at a standby server, which may be behind."""
        # Check this first: it shows the present transactions, the catalog those of the statement's start. So a
        # transaction that ends in between has its row below.
        own = (stage.id, *_of(stage.incarnation))
        in_doubt = stage.strategy is Strategy.PREPARE and transactions.is_there(connection, stage.id)
        query = self._sql(
            "SELECT pg_is_in_recovery(),"
            " (SELECT prepared FROM {schema}.staged WHERE id = %s AND job = %s AND identity = %s),"
            # Not to_regclass: it sees commits after the statement began, which the other subqueries do not.
            " EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s),"
            " (SELECT committed FROM {schema}.ledger WHERE id = %s AND job = %s AND identity = %s)"
        )
        values = (*own, self.schema, stage.stage_name, *own)
        follows, prepared, staged, committed = fetch_row(connection.execute(query, values))
        held = staged if stage.strategy is Strategy.STAGE else in_doubt
        if follows:
            raise Retryable(f"the server with schema {self.schema} is a standby, and may be behind its primary")
        return derive_status(prepared, held, committed)

    def find_newest_epoch(self, connection: Connection, incarnation: Incarnation) -> Epoch | None:
        """Return the newest epoch with committed rows; None if none is recorded."""
        query = self._sql(
            "SELECT max(CASE needed_by WHEN %s THEN epoch ELSE needed_by END) FROM {schema}.ledger"
            " WHERE job = %s AND identity = %s AND committed"
        )
        (number,) = fetch_row(connection.execute(query, (_NOT_PERMITTED, *_of(incarnation))))
        return None if number is None else Epoch(number)

    def delete_entry(self, connection: Connection, of: uuid.UUID, incarnation: Incarnation) -> tuple[Any, ...] | None:
        """Delete an incarnation's entry in the transaction that ends it; return its row, or None if it has ended."""
        return connection.execute(
            self._sql(
                "DELETE FROM {schema}.staged WHERE id = %s AND job = %s AND identity = %s"
                " RETURNING id, job, identity, term, epoch, subtask, operator, prepared"
            ),
            (of, *_of(incarnation)),
        ).fetchone()

    def drop_stage(self, connection: Connection, taken: tuple[Any, ...], committed: bool, needed_by: int) -> None:
        """Drop the staging table, and write its commit or abort marker if it was prepared."""
        *row, prepared = taken
        connection.execute(self._sql("DROP TABLE IF EXISTS {schema}.{stage}", stage=build_stage_name(row[0])))
        if prepared:
            self._write_marker(connection, row, committed, needed_by)

    def _write_marker(self, connection: Connection, row: Sequence[Any], committed: bool, needed_by: int) -> None:
        connection.execute(
            self._sql("INSERT INTO {schema}.ledger VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"),
            (*row, committed, needed_by),
        )

    def permitted(self, connection: Connection, stage: TableCommittable, permit: EpochId) -> None:
        """Record how long the marker of a committed transaction is needed, which was unknown when it was prepared."""
        connection.execute(
            self._sql("UPDATE {schema}.ledger SET needed_by = %s WHERE id = %s AND needed_by = %s"),
            (permit.epoch.n, stage.id, _NOT_PERMITTED),
        )

    def drop(self, connection: Connection, stage: TableCommittable) -> None:
        """End a stage without rows, which no committable names."""
        taken = self.delete_entry(connection, stage.id, stage.incarnation)
        if taken is not None:
            self.drop_stage(connection, (*taken[:-1], False), committed=False, needed_by=0)

    def prune_markers(self, connection: Connection, incarnation: Incarnation, permit: EpochId) -> None:
        """Delete markers that no recovery needs any more.

        A marker is needed until the receipt of the epoch that its commit was permitted for. An epoch is decided only
        after the receipt of the previous one, and no number is used twice: so a permit for a later epoch proves that
        receipt.
        """
        connection.execute(
            self._sql(
                "DELETE FROM {schema}.ledger WHERE id IN (SELECT id FROM {schema}.ledger"
                " WHERE job = %s AND identity = %s AND needed_by < %s FOR UPDATE SKIP LOCKED)"
            ),
            (*_of(incarnation), permit.epoch.n),
        )

    def list_open(self, connection: Connection, job: str) -> Sequence[StagingEntry]:
        """List open and prepared stages of every incarnation of a job's name, the oldest first."""
        rows = connection.execute(
            self._sql(
                "SELECT id, identity, term, target, prepared, rows, extract(epoch FROM now() - since)::float,"
                " EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname = %s AND c.relname = 'stage_' || replace(s.id::text, '-', ''))"
                " FROM {schema}.staged s WHERE job = %s ORDER BY since, id"
            ),
            (self.schema, job),
        ).fetchall()
        in_doubt = transactions.list_prepared(connection)
        entries = []
        for of, identity, term, target, prepared, count, age, has_table in rows:
            strategy, state = Strategy.STAGE if has_table else Strategy.PREPARE, "being written"
            if strategy is Strategy.PREPARE and build_transaction_name(of) in in_doubt:
                state = "prepared, holds its locks"
            elif strategy is Strategy.STAGE and prepared:
                state = f"{count} rows, prepared"
            entries.append(
                StagingEntry(of, parse_identity(identity), Term(term), f"{state}, for {target}", age, strategy)
            )
        return entries

    def free_transactions(self, connection: Connection, job: str) -> tuple[int, int]:
        """Return max_prepared_transactions, and how many would be free if this job's were ended."""
        (most,) = fetch_row(connection.execute("SELECT current_setting('max_prepared_transactions')::int"))
        if not most:
            return 0, 0
        own = {build_transaction_name(entry.id) for entry in self.list_open(connection, job)}
        return most, most - len(transactions.list_prepared(connection, everywhere=True) - own)

    # ------------------------------------------------------------ incarnations

    def list_registrations(self, connection: Connection, job: str) -> Sequence[Registration]:
        rows = connection.execute(
            self._sql("SELECT identity, term, over FROM {schema}.incarnations WHERE job = %s ORDER BY identity"), (job,)
        )
        return [Registration(parse_identity(row[0]), Term(row[1]), row[2]) for row in rows]

    def register(self, connection: Connection, incarnation: Incarnation, term: Term) -> Registration:
        """Register a term of an incarnation unless a newer one is registered; return the registration."""
        self.create_tables(connection)
        query = self._sql(
            "INSERT INTO {schema}.incarnations AS l (job, identity, term) VALUES (%s, %s, %s)"
            " ON CONFLICT (job, identity) DO UPDATE SET term = greatest(l.term, excluded.term)"
            " RETURNING term, over"
        )
        newest, over = fetch_row(connection.execute(query, (*_of(incarnation), term.n)))
        return Registration(incarnation.identity, Term(newest), over)

    def set_taken_over(self, connection: Connection, incarnation: Incarnation) -> None:
        connection.execute(
            self._sql(
                "INSERT INTO {schema}.incarnations (job, identity, over) VALUES (%s, %s, true)"
                " ON CONFLICT (job, identity) DO UPDATE SET over = true"
            ),
            _of(incarnation),
        )

    def _sql(self, text: str, **names: str) -> sql.Composed:
        quoted = {name: sql.Identifier(value) for name, value in {"schema": self.schema, **names}.items()}
        return sql.SQL(text).format(**quoted)


def derive_status(prepared: bool | None, staged: bool, committed: bool | None) -> CommitStatus:
    """Return the commit status from entry, staging table and marker. Pure.

    ``prepared``: the flag of its row in ``staged``; None if there is no such row.
    ``staged``: whether its staging table exists.
    ``committed``: the flag of its row in ``ledger``; None if there is no such row.
    """
    if committed is not None:
        return CommitStatus.COMMITTED if committed else CommitStatus.LOST
    if prepared is None:
        return CommitStatus.UNKNOWN
    return CommitStatus.PREPARED if prepared and staged else CommitStatus.LOST


def _of(incarnation: Incarnation) -> tuple[str, str]:
    return incarnation.job, incarnation.identity_text


def _numbers(epoch: EpochId) -> tuple[int, int]:
    return epoch.term.n, epoch.epoch.n
