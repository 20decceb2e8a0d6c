"""Ends what writers have staged: commit, and abort what no manifest knows. I/O around ``ledger``.

The commit of a staging table is one transaction: the rows go into the user's table, the staging table goes, and a row
in the ledger says so. That of a prepared transaction is one statement, and its row in the ledger is part of it. Whether
it happened is therefore never a guess: if the answer is lost, the ledger is asked.

Rule: who ends something takes its row in ``staged`` first, which one transaction can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from kafka_eos.abc.committer import CommitPermit, Committable, Outcome, Probe, Staged, Standing
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import Life as Sign
from kafka_eos.connectors._staged_tables.incarnation_markers import Open, expect_held, signs
from kafka_eos.connectors._staged_tables.probe_details import detail
from kafka_eos.connectors._staged_tables.stage_names import (
    COMMITTER,
    WRITER,
    Life,
    Promise,
    Strategy,
    application,
    lacking,
    stage,
)
from kafka_eos.connectors.postgres.connection import Connection, Connections, Database, mapped
from kafka_eos.connectors.postgres.sink import prepared_transactions as prepared
from kafka_eos.connectors.postgres.sink import statements
from kafka_eos.connectors.postgres.sink.staging_catalog import Entry, Ledger
from kafka_eos.core.errors import Bug, CommittableLost, Retryable
from kafka_eos.core.ids import EpochId, JobIdentity

_FROZEN = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = ANY (%s) AND usename = current_user AND pid <> pg_backend_pid()
        AND state <> 'idle' AND wait_event = 'ClientRead' AND state_change < clock_timestamp() - interval '5 s'
"""

_GONE = {Strategy.STAGE: "dropped", Strategy.PREPARE: "rolled back"}


class PostgresCommitter:
    """The committer of one database. May be used from threads, and by any process that has the manifest."""

    def __init__(self, database: Database, ledger: Ledger, scope: str, job: str) -> None:
        self._connections = Connections(database, application(COMMITTER, job))
        self._ledger, self._scope, self._job = ledger, scope, job

    def probe(self, committable: Committable) -> Probe:
        promise = Promise.read(committable.payload)
        with mapped(Retryable, f"look for {self._name(promise)}"), self._connections.one() as connection:
            standing = Standing.UNKNOWN
            if self._ledger.is_there(connection):
                found = self._ledger.standing(connection, promise)
                if found is None:
                    raise Retryable(f"the server of {self._scope} follows another one, and may be behind it")
                standing = found
        return Probe(standing, self._detail(promise, standing))

    def commit(self, permit: CommitPermit, committable: Committable) -> Outcome:
        promise = Promise.read(committable.payload)
        if permit.epoch < promise.epoch:  # an older one was given up; its output is part of this epoch
            raise Bug(f"a permit for epoch {permit.epoch} cannot commit {self._name(promise)}")
        what = f"commit {self._name(promise)} into {promise.target}"
        with (
            mapped(Retryable, what),
            self._thawing(promise.life),
            self._connections.one() as connection,
        ):
            carry_out = self._moved if promise.strategy is Strategy.STAGE else self._released
            done = carry_out(connection, promise, permit)
        if done:
            return Outcome.COMMITTED
        probe = self.probe(committable)
        if probe.standing is Standing.COMMITTED:
            return Outcome.ALREADY
        raise CommittableLost(f"epoch {permit.epoch}: {probe.detail}")

    def _released(self, connection: Connection, promise: Promise, permit: CommitPermit) -> bool:
        """Whether the transaction was prepared, and not ended. Of one that was committed before, the books are kept."""
        done = prepared.commit(connection, promise.id)
        with connection.transaction():
            self._ledger.permitted(connection, promise, permit.epoch)
            if done:
                self._ledger.forget(connection, promise.life, permit.epoch)
        return done

    def _moved(self, connection: Connection, promise: Promise, permit: CommitPermit) -> bool:
        """One transaction. Whether it was there to be committed; if not, nothing has changed.

        A writer's stages of one manifest are committed in any order, and at once. Its older rows must not overwrite
        its newer ones, so those that are left go first: they are of the same manifest, as nothing else can be left.
        Everyone takes them in the same order, the oldest first, so nobody locks another out.
        """
        with connection.transaction() as transaction:
            taken = [(of, self._ledger.take(connection, of)) for of in (*promise.after, promise.id)]
            there = taken[-1][1] is not None
            if not there:
                raise psycopg.Rollback(transaction)
            for of, row in taken:
                if row is not None:
                    name = sql.Identifier(self._ledger.schema, stage(of))
                    statements.apply(connection, name, promise.target)
                    self._ledger.ended(connection, row, committed=True, needed_by=permit.epoch.epoch.n)
            self._ledger.forget(connection, promise.life, permit.epoch)
        return there

    def staged(self, ctx: JobContext) -> Sequence[Staged]:
        """Open and prepared staging tables, and transactions."""
        with mapped(Retryable, f"look into {self._scope}"), self._connections.one() as connection:
            entries = self._entries(connection, ctx.job)
        return [Staged(of.term, self._entry(of), of.detail, of.age, of.identity) for of in entries]

    def abort_orphans(self, ctx: JobContext) -> Sequence[str]:
        """Drop this life's staging tables, and end its transactions, of older terms; also those that are open still."""
        return self._end(ctx.job, lambda of: ctx.owns(of.identity) and of.term < ctx.term)

    def _end(self, job: str, whose: Callable[[Entry], bool]) -> list[str]:
        with mapped(Retryable, f"clean up {self._scope}"), self._connections.one() as connection:
            old = [entry for entry in self._entries(connection, job) if whose(entry)]
        return [self._entry(entry) for entry in old if self._dropped(Life(job, entry.identity), entry)]

    def _dropped(self, life: Life, entry: Entry) -> bool:
        """Whether there was something to drop: somebody who had the right to commit may have been faster.

        A transaction that is prepared just now keeps its row locked: then the next call finds it.
        """
        with (
            mapped(Retryable, f"drop {self._entry(entry)}"),
            self._thawing(life),
            self._connections.one() as connection,
        ):
            if entry.strategy is Strategy.PREPARE:
                prepared.roll_back(connection, entry.id)
            with connection.transaction():
                taken = self._ledger.take(connection, entry.id)
                if taken is not None:
                    self._ledger.ended(connection, taken, committed=False, needed_by=int(taken[4]))
            return taken is not None

    def _entries(self, connection: Connection, job: str) -> Sequence[Entry]:
        return self._ledger.staged(connection, job) if self._ledger.is_there(connection) else ()

    # ------------------------------------------------------------ lives of one name

    def lives(self, ctx: JobContext) -> Sequence[Sign]:
        """By marks, and by what is staged."""
        with mapped(Retryable, f"look into {self._scope}"), self._connections.one() as connection:
            if not self._ledger.is_there(connection):
                return []
            marks = self._ledger.marks(connection, ctx.job)
            entries = self._ledger.staged(connection, ctx.job)
        return signs(self._scope, marks, [Open(of.identity, self._entry(of), of.term, of.age) for of in entries])

    def lacks(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        """See ``abc.Remembers``."""
        life, promises = Life(ctx.job, ctx.identity), [Promise.read(each.payload) for each in committables]
        with mapped(Retryable, f"look into {self._scope}"), self._connections.one() as connection:
            if not self._ledger.is_there(connection):
                return lacking(self._scope, None, newest, [Standing.UNKNOWN for _ in promises], None)
            marks = {mark.identity: mark for mark in self._ledger.marks(connection, ctx.job)}
            found = [self._ledger.standing(connection, promise) for promise in promises]
            last = self._ledger.newest(connection, life)
        standings = [standing for standing in found if standing is not None]
        if len(standings) < len(found):
            raise Retryable(f"the server of {self._scope} follows another one, and may be behind it")
        return lacking(self._scope, marks.get(ctx.identity), newest, standings, last)

    def hold(self, ctx: JobContext) -> None:
        """The mark is a row, which also says the newest term: writers of older ones can begin nothing any more."""
        with (
            mapped(Retryable, f"look for the mark of job {ctx.job!r} in {self._scope}"),
            self._thawing(Life(ctx.job, ctx.identity)),
            self._connections.one() as connection,
        ):
            if not self._ledger.is_there(connection):
                self._ledger.make(connection)
            mark = self._ledger.hold(connection, Life(ctx.job, ctx.identity), ctx.term)
        expect_held(ctx, self._scope, mark)

    def succeed(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """Without its mark a life prepares nothing any more; what it has prepared is found after that."""
        life = Life(ctx.job, identity)
        with (
            mapped(Retryable, f"take the mark of life {identity} in {self._scope}"),
            self._thawing(life),
            self._connections.one() as connection,
        ):
            if not self._ledger.is_there(connection):
                return []
            self._ledger.take_mark(connection, life)
        return self._end(ctx.job, lambda of: of.identity == identity)

    def close(self) -> None:
        self._connections.close()

    @contextmanager
    def _thawing(self, life: Life) -> Iterator[None]:
        """If a lock is held by a process of this job that stands still in a transaction, end its connection."""
        try:
            yield
        except psycopg.errors.LockNotAvailable:
            with self._connections.one() as connection:
                connection.execute(_FROZEN, ([life.application(WRITER), application(COMMITTER, life.job)],))
            raise

    def _entry(self, entry: Entry) -> str:
        return self._ledger.name(entry.id, entry.strategy)

    def _name(self, promise: Promise) -> str:
        return self._ledger.name(promise.id, promise.strategy)

    def _detail(self, promise: Promise, standing: Standing) -> str:
        life = promise.life
        remedy = (
            f": INSERT INTO {self._ledger.schema}.ledger VALUES ('{promise.id}', '{life.job}', '{life.text}', "
            f"{promise.epoch.term}, {promise.epoch.epoch}, 0, '', true, {promise.epoch.epoch}); if it does not, the "
            "same with false"
        )
        lost = f"{_GONE[promise.strategy]}: aborted, or by hand"
        return detail(promise, standing, self._name(promise), self._scope, lost, remedy)
