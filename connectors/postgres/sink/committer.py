"""The committer of staged rows: commit them, and abort what no manifest names. I/O around ``staging_catalog``.

The commit of a staging table is one transaction: it copies the rows into the user's table, drops the staging table, and
inserts a marker into the ledger. The commit of a prepared transaction is one statement, and its marker is part of it.
So the outcome is never guessed: if the response is lost, the ledger is read.
Rule: a process that ends a stage first deletes its row in ``staged``, which only one transaction can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from kafka_eos.abc.committer import (
    CommitOutcome,
    CommitPermit,
    CommitStatus,
    Committable,
    Committer,
    Probe,
    StagedOutput,
)
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import IncarnationSign as Sign
from kafka_eos.abc.incarnation import SupportsLossCheck, SupportsRegistration
from kafka_eos.connectors._staged_tables.incarnation_markers import OpenStage, ensure_registered, list_signs
from kafka_eos.connectors._staged_tables.probe_details import describe_status
from kafka_eos.connectors._staged_tables.stage_names import (
    COMMITTER,
    WRITER,
    Incarnation,
    Strategy,
    TableCommittable,
    application,
    build_stage_name,
    describe_missing_commits,
)
from kafka_eos.connectors.postgres.connection import Connection, ConnectionPool, PostgresDatabase, map_errors
from kafka_eos.connectors.postgres.sink import prepared_transactions as prepared
from kafka_eos.connectors.postgres.sink import statements
from kafka_eos.connectors.postgres.sink.staging_catalog import PostgresStagingCatalog, PostgresStagingEntry
from kafka_eos.core.errors import Bug, CommittableLost, Retryable
from kafka_eos.core.ids import EpochId, JobIdentity

_FROZEN = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = ANY (%s) AND usename = current_user AND pid <> pg_backend_pid()
        AND state <> 'idle' AND wait_event = 'ClientRead' AND state_change < clock_timestamp() - interval '5 s'
"""

_GONE = {Strategy.STAGE: "dropped", Strategy.PREPARE: "rolled back"}


class PostgresCommitter(SupportsRegistration, SupportsLossCheck, Committer):
    """The committer of one database. Thread-safe, and usable by any process that has the manifest."""

    def __init__(self, database: PostgresDatabase, ledger: PostgresStagingCatalog, scope: str, job: str) -> None:
        self._connections = ConnectionPool(database, application(COMMITTER, job))
        self._ledger = ledger
        self._scope = scope
        self._job = job

    def probe(self, committable: Committable) -> Probe:
        promise = TableCommittable.from_payload(committable.payload)
        with map_errors(Retryable, f"look for {self._name(promise)}"), self._connections.one() as connection:
            standing = CommitStatus.UNKNOWN
            if self._ledger.is_there(connection):
                found = self._ledger.read_status(connection, promise)
                if found is None:
                    raise Retryable(f"the server of {self._scope} follows another one, and may be behind it")
                standing = found
        return Probe(standing, self._detail(promise, standing))

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        promise = TableCommittable.from_payload(committable.payload)
        if permit.epoch < promise.epoch:  # an older epoch may have been aborted; its output is part of this one
            raise Bug(f"a permit for epoch {permit.epoch} cannot commit {self._name(promise)}")
        what = f"commit {self._name(promise)} into {promise.target}"
        with (
            map_errors(Retryable, what),
            self._end_frozen_peers(promise.life),
            self._connections.one() as connection,
        ):
            carry_out = self._apply_staged_rows if promise.strategy is Strategy.STAGE else self._commit_prepared
            done = carry_out(connection, promise, permit)
        if done:
            return CommitOutcome.COMMITTED
        probe = self.probe(committable)
        if probe.status is CommitStatus.COMMITTED:
            return CommitOutcome.ALREADY
        raise CommittableLost(f"epoch {permit.epoch}: {probe.detail}")

    def _commit_prepared(self, connection: Connection, promise: TableCommittable, permit: CommitPermit) -> bool:
        """Commit a prepared transaction; return whether this call did it. The catalog is updated in any case."""
        done = prepared.commit(connection, promise.id)
        with connection.transaction():
            self._ledger.permitted(connection, promise, permit.epoch)
            if done:
                self._ledger.prune_markers(connection, promise.life, permit.epoch)
        return done

    def _apply_staged_rows(self, connection: Connection, promise: TableCommittable, permit: CommitPermit) -> bool:
        """Copy staged rows into the target in one transaction. Return False, without changes, if they are not prepared.

        A writer's stages of one manifest are committed in any order, and concurrently. Its older rows must not
        overwrite its newer ones, so remaining predecessors are applied first; they belong to the same manifest. All
        processes apply them in the same order, the oldest first, so there is no deadlock.
        """
        with connection.transaction() as transaction:
            taken = [(of, self._ledger.delete_entry(connection, of)) for of in (*promise.predecessors, promise.id)]
            there = taken[-1][1] is not None
            if not there:
                raise psycopg.Rollback(transaction)
            for of, row in taken:
                if row is not None:
                    name = sql.Identifier(self._ledger.schema, build_stage_name(of))
                    statements.apply(connection, name, promise.target)
                    self._ledger.drop_stage(connection, row, committed=True, needed_by=permit.epoch.epoch.n)
            self._ledger.prune_markers(connection, promise.life, permit.epoch)
        return there

    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        """List open and prepared staging tables, and transactions."""
        with map_errors(Retryable, f"look into {self._scope}"), self._connections.one() as connection:
            entries = self._entries(connection, ctx.job)
        return [StagedOutput(of.term, self._entry(of), of.detail, of.age, of.identity) for of in entries]

    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        """Drop this incarnation's staging tables and end its transactions of older terms, including open ones."""
        return self._end(ctx.job, lambda of: ctx.owns(of.identity) and of.term < ctx.term)

    def _end(self, job: str, whose: Callable[[PostgresStagingEntry], bool]) -> list[str]:
        with map_errors(Retryable, f"clean up {self._scope}"), self._connections.one() as connection:
            old = [entry for entry in self._entries(connection, job) if whose(entry)]
        return [self._entry(entry) for entry in old if self._dropped(Incarnation(job, entry.identity), entry)]

    def _dropped(self, life: Incarnation, entry: PostgresStagingEntry) -> bool:
        """Drop a stage; return whether it existed: a process with a commit permit may have been faster.

        The row of a transaction that is being prepared is locked: then the next call finds it.
        """
        with (
            map_errors(Retryable, f"drop {self._entry(entry)}"),
            self._end_frozen_peers(life),
            self._connections.one() as connection,
        ):
            if entry.strategy is Strategy.PREPARE:
                prepared.roll_back(connection, entry.id)
            with connection.transaction():
                taken = self._ledger.delete_entry(connection, entry.id)
                if taken is not None:
                    self._ledger.drop_stage(connection, taken, committed=False, needed_by=int(taken[4]))
            return taken is not None

    def _entries(self, connection: Connection, job: str) -> Sequence[PostgresStagingEntry]:
        return self._ledger.staged(connection, job) if self._ledger.is_there(connection) else ()

    # ------------------------------------------------------------ incarnations

    def list_incarnations(self, ctx: JobContext) -> Sequence[Sign]:
        """List incarnations by registrations and staged output."""
        with map_errors(Retryable, f"look into {self._scope}"), self._connections.one() as connection:
            if not self._ledger.is_there(connection):
                return []
            marks = self._ledger.marks(connection, ctx.job)
            entries = self._ledger.staged(connection, ctx.job)
            lives = [Incarnation(ctx.job, mark.identity) for mark in marks]
            committed = {life.identity: self._ledger.newest(connection, life) for life in lives}
        open_ = [OpenStage(of.identity, self._entry(of), of.term, of.age) for of in entries]
        return list_signs(self._scope, marks, open_, committed)

    def find_missing_commits(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        """Return which committed output the database lacks, or None."""
        life, promises = (
            Incarnation(ctx.job, ctx.identity),
            [TableCommittable.from_payload(each.payload) for each in committables],
        )
        with map_errors(Retryable, f"look into {self._scope}"), self._connections.one() as connection:
            if not self._ledger.is_there(connection):
                return describe_missing_commits(
                    self._scope, None, newest, [CommitStatus.UNKNOWN for _ in promises], None
                )
            marks = {mark.identity: mark for mark in self._ledger.marks(connection, ctx.job)}
            found = [self._ledger.read_status(connection, promise) for promise in promises]
            last = self._ledger.newest(connection, life)
        standings = [standing for standing in found if standing is not None]
        if len(standings) < len(found):
            raise Retryable(f"the server of {self._scope} follows another one, and may be behind it")
        return describe_missing_commits(self._scope, marks.get(ctx.identity), newest, standings, last)

    def register(self, ctx: JobContext) -> None:
        """Register the incarnation in a row with its newest term: writers of older terms can begin nothing any more."""
        with (
            map_errors(Retryable, f"look for the mark of job {ctx.job!r} in {self._scope}"),
            self._end_frozen_peers(Incarnation(ctx.job, ctx.identity)),
            self._connections.one() as connection,
        ):
            if not self._ledger.is_there(connection):
                self._ledger.create_tables(connection)
            mark = self._ledger.register(connection, Incarnation(ctx.job, ctx.identity), ctx.term)
        ensure_registered(ctx, self._scope, mark)

    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """End an incarnation. Without its registration it prepares nothing any more; then its stages are aborted."""
        life = Incarnation(ctx.job, identity)
        with (
            map_errors(Retryable, f"take the mark of life {identity} in {self._scope}"),
            self._end_frozen_peers(life),
            self._connections.one() as connection,
        ):
            if not self._ledger.is_there(connection):
                return []
            self._ledger.set_taken_over(connection, life)
        return self._end(ctx.job, lambda of: of.identity == identity)

    def close(self) -> None:
        self._connections.close()

    @contextmanager
    def _end_frozen_peers(self, life: Incarnation) -> Iterator[None]:
        """On a lock timeout, terminate connections of this job that are frozen in a transaction."""
        try:
            yield
        except psycopg.errors.LockNotAvailable:
            with self._connections.one() as connection:
                connection.execute(_FROZEN, ([life.application(WRITER), application(COMMITTER, life.job)],))
            raise

    def _entry(self, entry: PostgresStagingEntry) -> str:
        return self._ledger.name(entry.id, entry.strategy)

    def _name(self, promise: TableCommittable) -> str:
        return self._ledger.name(promise.id, promise.strategy)

    def _detail(self, promise: TableCommittable, standing: CommitStatus) -> str:
        life = promise.life
        remedy = (
            f": INSERT INTO {self._ledger.schema}.ledger VALUES ('{promise.id}', '{life.job}', '{life.identity_text}', "
            f"{promise.epoch.term}, {promise.epoch.epoch}, 0, '', true, {promise.epoch.epoch}); if it does not, the "
            "same with false"
        )
        lost = f"{_GONE[promise.strategy]}: aborted, or by hand"
        return describe_status(promise, standing, self._name(promise), self._scope, lost, remedy)
