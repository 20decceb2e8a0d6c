"""The committer of staged rows: commit them, and abort what no manifest names. I/O around ``staging_catalog``.

The commit is one transaction: it sets the staging table's state to "committed" and copies its rows into the user's
table.
So its outcome is never guessed: if the response is lost, the staging catalog is read.
Rule: a process that ends a stage first changes its state, which only one transaction can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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
from kafka_eos.connectors._staged_tables.stage_names import Incarnation, TableCommittable, describe_missing_commits
from kafka_eos.connectors.dbapi import statements
from kafka_eos.connectors.dbapi.database import Connection, Database, DbTransaction
from kafka_eos.connectors.dbapi.staging_catalog import (
    ABORTED,
    COMMITTED,
    STAGES,
    DbApiStagingEntry,
    StagingCatalog,
    stage,
)
from kafka_eos.core.errors import Bug, CommittableLost, KafkaEosError, Retryable
from kafka_eos.core.ids import EpochId, JobIdentity


class DbApiCommitter(SupportsRegistration, SupportsLossCheck, Committer):
    """The committer of one database. Thread-safe, and usable by any process that has the manifest."""

    def __init__(self, database: Database, scope: str) -> None:
        self._database = database
        self._books = StagingCatalog(database)
        self._scope = scope

    def probe(self, committable: Committable) -> Probe:
        promise = TableCommittable.from_payload(committable.payload)
        with self._asking(f"look for {stage(promise.id)}") as session:
            standing = self._books.read_status(session, promise)
        return Probe(standing, self._detail(promise, standing))

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        promise = TableCommittable.from_payload(committable.payload)
        if permit.epoch < promise.epoch:  # an older epoch may have been aborted; its output is part of this one
            raise Bug(f"a permit for epoch {permit.epoch} cannot commit {stage(promise.id)}")
        with self._connection(Retryable, f"commit {stage(promise.id)} into {promise.target}") as connection:
            done = self._apply_staged_rows(connection, promise, permit)
            with self._database.transaction(connection) as session:
                standing = self._books.read_status(session, promise)
            if standing is CommitStatus.COMMITTED:
                self._dropped(connection, promise)
                with self._database.transaction(connection) as session:
                    self._books.prune_markers(session, promise.life, permit.epoch)
        if done:
            return CommitOutcome.COMMITTED
        if standing is CommitStatus.COMMITTED:
            return CommitOutcome.ALREADY
        raise CommittableLost(f"epoch {permit.epoch}: {self._detail(promise, standing)}")

    def _apply_staged_rows(self, connection: Connection, promise: TableCommittable, permit: CommitPermit) -> bool:
        """Copy staged rows into the target in one transaction. Return False, without changes, if they are not prepared.

        A writer's stages of one manifest are committed in any order, and concurrently. Its older rows must not
        overwrite its newer ones, so remaining predecessors are applied first. All processes apply them in the same
        order, the oldest first.
        """
        try:
            with self._database.transaction(connection) as session:
                for of in (*promise.predecessors, promise.id):
                    if self._books.mark_committed(session, of, permit.epoch):
                        name = self._database.quoted(stage(of))
                        for statement in statements.apply(self._database, name, promise.target):
                            session.run(statement)
                    elif of == promise.id:
                        raise _NotPrepared
        except _NotPrepared:
            return False
        return True

    def _dropped(self, connection: Connection, promise: TableCommittable) -> None:
        """Drop the staging tables of a commit."""
        for of in (*promise.predecessors, promise.id):
            with self._database.transaction(connection) as session:
                if self._books.state(session, of) == COMMITTED:
                    self._books.drop(session, of)

    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        """List open and prepared staging tables."""
        with self._asking(f"look into {self._scope}") as session:
            entries = self._books.staged(session, ctx.job)
        return [StagedOutput(of.term, stage(of.id), of.detail, of.age, of.identity) for of in entries]

    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        """Drop this incarnation's staging tables of older terms, including open ones."""
        return self._abort_matching(ctx.job, lambda of: ctx.owns(of.identity) and of.term < ctx.term)

    def _abort_matching(self, job: str, whose: Callable[[DbApiStagingEntry], bool]) -> list[str]:
        """Abort the staging tables that match, and drop tables that a dead process left behind."""
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
                    for of in self._books.undropped(session, Incarnation(job, identity))
                ]
            for of in left:
                with self._database.transaction(connection) as session:
                    self._books.drop(session, of)
        return ended

    # ------------------------------------------------------------ incarnations

    def list_incarnations(self, ctx: JobContext) -> Sequence[Sign]:
        """List incarnations by registrations and staged tables."""
        with self._asking(f"look into {self._scope}") as session:
            marks, entries = self._books.marks(session, ctx.job), self._books.staged(session, ctx.job)
            lives = [Incarnation(ctx.job, mark.identity) for mark in marks]
            committed = {life.identity: self._books.newest(session, life) for life in lives}
        open_ = [OpenStage(of.identity, stage(of.id), of.term, of.age) for of in entries]
        return list_signs(self._scope, marks, open_, committed)

    def find_missing_commits(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        """Return which committed output the database lacks, or None."""
        life, promises = (
            Incarnation(ctx.job, ctx.identity),
            [TableCommittable.from_payload(each.payload) for each in committables],
        )
        with self._asking(f"look into {self._scope}") as session:
            mark = self._books.read_registration(session, life)
            standings = [self._books.read_status(session, promise) for promise in promises]
            last = self._books.newest(session, life)
        return describe_missing_commits(self._scope, mark, newest, standings, last)

    def register(self, ctx: JobContext) -> None:
        """Register the incarnation in a row with its newest term: writers of older terms can begin nothing any more."""
        life = Incarnation(ctx.job, ctx.identity)
        with self._connection(Retryable, f"look for the mark of job {ctx.job!r} in {self._scope}") as connection:
            self._books.ensure_registered(connection, life, ctx.term)
            with self._database.transaction(connection) as session:
                self._books.raise_term(session, life, ctx.term)
                mark = self._books.read_registration(session, life)
        if mark is None:
            raise Retryable(f"another process has just removed the registration of job {ctx.job!r} from {self._scope}")
        ensure_registered(ctx, self._scope, mark)

    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """End an incarnation. Without its registration it prepares nothing any more; then its stages are aborted."""
        life = Incarnation(ctx.job, identity)
        with self._connection(Retryable, f"take the mark of life {identity} in {self._scope}") as connection:
            self._books.ensure_registered(connection, life, ctx.term)
            with self._database.transaction(connection) as session:
                self._books.set_taken_over(session, life)
        return self._abort_matching(ctx.job, lambda of: of.identity == identity)

    @contextmanager
    def _connection(self, kind: type[KafkaEosError], what: str) -> Iterator[Connection]:
        with self._database.mapped(kind, what), self._database.connected() as connection:
            self._books.create_tables(connection)
            yield connection

    @contextmanager
    def _asking(self, what: str) -> Iterator[DbTransaction]:
        with self._connection(Retryable, what) as connection, self._database.transaction(connection) as session:
            yield session

    def _detail(self, promise: TableCommittable, standing: CommitStatus) -> str:
        remedy = (
            f" in {STAGES}: a row with id '{promise.id.hex}', job '{promise.life.job}', life "
            f"'{promise.life.identity_text}' and "
            f"state '{COMMITTED}'; if it does not, the same with '{ABORTED}'"
        )
        lost = f"aborted, or {self._database.name} was put back to an older copy"
        return describe_status(promise, standing, stage(promise.id), self._scope, lost, remedy)


class _NotPrepared(Exception):
    """The staging table is no longer prepared. Never leaves this module."""
