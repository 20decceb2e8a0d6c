"""The committer of staged rows in any database.

The commit is one transaction: it sets the staging table's state to "committed" and copies its rows into the user's
table. Rule: a process that ends a stage first changes its state, which only one transaction can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from kafka_eos.abc.context import JobContext
from kafka_eos.connectors._staged_tables.committer import StagedTableCommitter, StagingEntry
from kafka_eos.connectors._staged_tables.stage_names import Incarnation, TableCommittable
from kafka_eos.connectors.dbapi import statements
from kafka_eos.connectors.dbapi.database import Database
from kafka_eos.connectors.dbapi.staging_catalog import ABORTED, COMMITTED, STAGES, DbApiStagingCatalog, name_stage
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import EpochId, JobIdentity, Term


class DbApiCommitter(StagedTableCommitter[Connection]):
    """The committer of one database. Thread-safe, and usable by any process that has the manifest."""

    _catalog: DbApiStagingCatalog

    def __init__(self, database: Database, scope: str) -> None:
        super().__init__(DbApiStagingCatalog(database), scope)
        self._database = database

    def _apply(self, stage: TableCommittable, permit: EpochId, what: str) -> bool:
        """See the base class. Staging tables of a commit are dropped after it."""
        stages = (*stage.predecessors, stage.id)
        with self._session(what) as connection:
            changed = [of for of in stages if self._catalog.mark_committed(connection, of, stage.incarnation, permit)]
            if done := stage.id in changed:
                for of in changed:
                    connection.execute(statements.apply(self._database, name_stage(of), stage.target))
            else:
                connection.rollback()
        with self._session(what) as connection:
            committed = [
                of for of in stages if self._catalog.read_state(connection, of, stage.incarnation) == COMMITTED
            ]
            for of in committed:
                self._catalog.drop(connection, of)
            if stage.id in committed:
                self._catalog.prune_markers(connection, stage.incarnation, permit)
        return done

    def register(self, ctx: JobContext) -> None:
        self._ensure_registered(Incarnation(ctx.job, ctx.identity), ctx.term)
        super().register(ctx)

    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        self._ensure_registered(Incarnation(ctx.job, identity), ctx.term)
        return super().retire(ctx, identity)

    def _ensure_registered(self, incarnation: Incarnation, term: Term) -> None:
        what = f"look up the registration of job {incarnation.job!r} in {self._scope}"
        with self._database.mapped(Retryable, what), self._database.connected() as connection:
            self._catalog.create_tables(connection)
            self._catalog.ensure_registered(connection, incarnation, term)

    def _abort(self, incarnation: Incarnation, entry: StagingEntry) -> bool:
        with self._session(f"clean up {self._scope}") as connection:
            return self._catalog.abort(connection, entry.id)

    def _abort_matching(self, job: str, matches: Callable[[StagingEntry], bool]) -> list[str]:
        """Abort the staging tables that match, and drop tables that a dead process left behind."""
        ended = super()._abort_matching(job, matches)
        with self._session(f"clean up {self._scope}") as connection:
            for of in self._catalog.list_undropped(connection, job):
                self._catalog.drop(connection, of)
        return ended

    @contextmanager
    def _session(self, what: str, incarnation: Incarnation | None = None) -> Iterator[Connection]:
        with self._database.mapped(Retryable, what), self._database.connected() as connection:
            self._catalog.create_tables(connection)
            with connection.begin():
                yield connection

    def _describe_loss(self, stage: TableCommittable) -> str:
        return f"aborted, or an older copy of {self._database.name} was restored"

    def _describe_remedy(self, stage: TableCommittable) -> str:
        return (
            f" in {STAGES}: a row with id '{stage.id.hex}', job '{stage.incarnation.job}', incarnation "
            f"'{stage.incarnation.identity_text}' and "
            f"state '{COMMITTED}'; if it does not, the same with '{ABORTED}'"
        )
