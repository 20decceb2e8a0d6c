"""Ends what writers have staged: commit, and abort what no manifest knows. I/O around ``books``.

The commit is one transaction: the state of the staging table says "committed", and its rows go into the user's table.
Whether it happened is therefore never a guess: if the answer is lost, the books are asked.

Rule: who ends something changes its state first, which one transaction can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kafka_eos.abc.committer import CommitPermit, Committable, Outcome, Probe, Staged, Standing
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import Life as Sign
from kafka_eos.connectors._staged_tables.incarnation_markers import Open, expect_held, signs
from kafka_eos.connectors._staged_tables.probe_details import detail
from kafka_eos.connectors._staged_tables.stage_names import Life, Promise, lacking
from kafka_eos.connectors.dbapi import statements
from kafka_eos.connectors.dbapi.database import Connection, Database, Session
from kafka_eos.connectors.dbapi.staging_catalog import ABORTED, COMMITTED, STAGES, Books, Entry, stage
from kafka_eos.core.errors import Bug, CommittableLost, KafkaEosError, Retryable
from kafka_eos.core.ids import EpochId, JobIdentity


class DbApiCommitter:
    """The committer of one database. May be used from threads, and by any process that has the manifest."""

    def __init__(self, database: Database, scope: str) -> None:
        self._database, self._books, self._scope = database, Books(database), scope

    def probe(self, committable: Committable) -> Probe:
        promise = Promise.read(committable.payload)
        with self._asking(f"look for {stage(promise.id)}") as session:
            standing = self._books.standing(session, promise)
        return Probe(standing, self._detail(promise, standing))

    def commit(self, permit: CommitPermit, committable: Committable) -> Outcome:
        promise = Promise.read(committable.payload)
        if permit.epoch < promise.epoch:  # an older one was given up; its output is part of this epoch
            raise Bug(f"a permit for epoch {permit.epoch} cannot commit {stage(promise.id)}")
        with self._connection(Retryable, f"commit {stage(promise.id)} into {promise.target}") as connection:
            done = self._moved(connection, promise, permit)
            with self._database.transaction(connection) as session:
                standing = self._books.standing(session, promise)
            if standing is Standing.COMMITTED:
                self._dropped(connection, promise)
                with self._database.transaction(connection) as session:
                    self._books.forget(session, promise.life, permit.epoch)
        if done:
            return Outcome.COMMITTED
        if standing is Standing.COMMITTED:
            return Outcome.ALREADY
        raise CommittableLost(f"epoch {permit.epoch}: {self._detail(promise, standing)}")

    def _moved(self, connection: Connection, promise: Promise, permit: CommitPermit) -> bool:
        """One transaction. Whether it was there to be committed; if not, nothing has changed.

        A writer's stages of one manifest are committed in any order, and at once. Its older rows must not overwrite
        its newer ones, so those that are left go first. Everyone takes them in the same order, the oldest first.
        """
        try:
            with self._database.transaction(connection) as session:
                for of in (*promise.after, promise.id):
                    if self._books.take(session, of, permit.epoch):
                        name = self._database.quoted(stage(of))
                        for statement in statements.apply(self._database, name, promise.target):
                            session.run(statement)
                    elif of == promise.id:
                        raise _NotThere
        except _NotThere:
            return False
        return True

    def _dropped(self, connection: Connection, promise: Promise) -> None:
        """Drop the staging tables of a commit."""
        for of in (*promise.after, promise.id):
            with self._database.transaction(connection) as session:
                if self._books.state(session, of) == COMMITTED:
                    self._books.drop(session, of)

    def staged(self, ctx: JobContext) -> Sequence[Staged]:
        """Open and prepared staging tables."""
        with self._asking(f"look into {self._scope}") as session:
            entries = self._books.staged(session, ctx.job)
        return [Staged(of.term, stage(of.id), of.detail, of.age, of.identity) for of in entries]

    def abort_orphans(self, ctx: JobContext) -> Sequence[str]:
        """Drop this life's staging tables of older terms, also those that are open still."""
        return self._end(ctx.job, lambda of: ctx.owns(of.identity) and of.term < ctx.term)

    def _end(self, job: str, whose: Callable[[Entry], bool]) -> list[str]:
        """Their names; also drops what a process that died has ended and left."""
        ended = []
        with self._connection(Retryable, f"clean up {self._scope}") as connection:
            with self._database.transaction(connection) as session:
                old = [entry for entry in self._books.staged(session, job) if whose(entry)]
            for entry in old:
                with self._database.transaction(connection) as session:
                    if self._books.abort(session, entry.id):
                        ended.append(stage(entry.id))
            with self._database.transaction(connection) as session:
                left = [
                    of
                    for identity in {mark.identity for mark in self._books.marks(session, job)}
                    for of in self._books.undropped(session, Life(job, identity))
                ]
            for of in left:
                with self._database.transaction(connection) as session:
                    self._books.drop(session, of)
        return ended

    # ------------------------------------------------------------ lives of one name

    def lives(self, ctx: JobContext) -> Sequence[Sign]:
        """By marks, and by what is staged."""
        with self._asking(f"look into {self._scope}") as session:
            marks, entries = self._books.marks(session, ctx.job), self._books.staged(session, ctx.job)
        return signs(self._scope, marks, [Open(of.identity, stage(of.id), of.term, of.age) for of in entries])

    def lacks(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        """See ``abc.Remembers``."""
        life, promises = Life(ctx.job, ctx.identity), [Promise.read(each.payload) for each in committables]
        with self._asking(f"look into {self._scope}") as session:
            mark = self._books.mark(session, life)
            standings = [self._books.standing(session, promise) for promise in promises]
            last = self._books.newest(session, life)
        return lacking(self._scope, mark, newest, standings, last)

    def hold(self, ctx: JobContext) -> None:
        """The mark is a row, which also says the newest term: writers of older ones can begin nothing any more."""
        life = Life(ctx.job, ctx.identity)
        with self._connection(Retryable, f"look for the mark of job {ctx.job!r} in {self._scope}") as connection:
            self._books.expect_mark(connection, life, ctx.term)
            with self._database.transaction(connection) as session:
                self._books.raise_term(session, life, ctx.term)
                mark = self._books.mark(session, life)
        if mark is None:
            raise Retryable(f"somebody has just removed the mark of job {ctx.job!r} from {self._scope}")
        expect_held(ctx, self._scope, mark)

    def succeed(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """Without its mark a life prepares nothing any more; what it has prepared is found after that."""
        life = Life(ctx.job, identity)
        with self._connection(Retryable, f"take the mark of life {identity} in {self._scope}") as connection:
            self._books.expect_mark(connection, life, ctx.term)
            with self._database.transaction(connection) as session:
                self._books.take_mark(session, life)
        return self._end(ctx.job, lambda of: of.identity == identity)

    def close(self) -> None:
        """Each call has had a connection of its own."""

    @contextmanager
    def _connection(self, kind: type[KafkaEosError], what: str) -> Iterator[Connection]:
        with self._database.mapped(kind, what), self._database.connected() as connection:
            self._books.make(connection)
            yield connection

    @contextmanager
    def _asking(self, what: str) -> Iterator[Session]:
        with self._connection(Retryable, what) as connection, self._database.transaction(connection) as session:
            yield session

    def _detail(self, promise: Promise, standing: Standing) -> str:
        remedy = (
            f" in {STAGES}: a row with id '{promise.id.hex}', job '{promise.life.job}', life '{promise.life.text}' and "
            f"state '{COMMITTED}'; if it does not, the same with '{ABORTED}'"
        )
        lost = f"aborted, or {self._database.name} was put back to an older copy"
        return detail(promise, standing, stage(promise.id), self._scope, lost, remedy)


class _NotThere(Exception):
    """Never leaves this module."""
