"""The writer: rows go into a staging table beside the target, one a writer and epoch, by COPY.

Each batch is a transaction of its own, which waits for no disk; the pre-commit does, and with it everything before it.
So no transaction lasts longer than a batch, and vacuum never waits for an epoch.

Rule: a row that the table would refuse is found while its input record is known.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from kafka_eos import failpoints
from kafka_eos.connectors.postgres import statements
from kafka_eos.connectors.postgres.client import ROW_ERRORS, Connection, Link, mapped
from kafka_eos.connectors.postgres.ledger import Ledger
from kafka_eos.connectors.postgres.names import Life, Promise, Target
from kafka_eos.connectors.postgres.staging import refused
from kafka_eos.connectors.postgres.tables import Table
from kafka_eos.connectors.rejecting import BadRows, each_row, encoded
from kafka_eos.errors import RestartFromCheckpoint
from kafka_eos.ids import Epoch, EpochId
from kafka_eos.interfaces import Committable, PreCommit, TaskContext
from kafka_eos.records import Batch


class _Stage:
    """The staging table of one epoch."""

    def __init__(self, promise: Promise, name: sql.Identifier) -> None:
        self.promise, self.name, self.rows = promise, name, 0


class PostgresWriter:
    """Stages the rows of one subtask of a sink."""

    def __init__(
        self,
        ctx: TaskContext,
        scope: str,
        link: Link,
        ledger: Ledger,
        table: Table,
        target: Target,
        row: Callable[[Any], tuple[Any, ...]],
    ) -> None:
        self._ctx, self._scope, self._link, self._ledger = ctx, scope, link, ledger
        self._table, self._target, self._row = table, target, row
        self._life, self._epoch = Life(ctx.job.job, ctx.job.identity), ctx.first_epoch
        self._stage: _Stage | None = None
        self._sealed: tuple[tuple[Epoch, uuid.UUID], ...] = ()

    def write(self, batch: Batch[Any]) -> None:
        with mapped(RestartFromCheckpoint, f"stage rows for {self._target}"):
            encoded(self._staged, batch, self._ctx.operator, self._ctx.services.reject_row)

    def seal(self, epoch: EpochId) -> PreCommit:
        self._epoch = epoch.epoch.next()
        if self._stage is None or not self._stage.rows:
            return lambda: ()
        stage, self._stage = self._stage, None
        after = tuple(of for _, of in self._sealed)
        self._sealed += ((epoch.epoch, stage.promise.id),)
        return partial(self._prepare, stage, epoch, after)

    def committed(self, epoch: EpochId) -> None:
        """What comes later need not be committed after what is."""
        self._sealed = tuple(each for each in self._sealed if each[0] > epoch.epoch)

    def discard(self) -> None:
        self._stage = None
        self._link.close()

    def _staged(self, batch: Batch[Any]) -> None:
        """Stage all rows of a batch. Raises BadRows, and stages none, if the table would refuse some of them."""
        rows = each_row(self._row, batch.values)
        if not rows:
            return
        with self._link.alone() as connection:
            stage = self._stage = self._stage or self._opened(connection)
            numbered = [(stage.rows + n, *row) for n, row in enumerate(rows)]
            try:
                statements.copy_into(connection, stage.name, self._target.columns, numbered)
            except psycopg.errors.UndefinedTable:
                self._ledger.expect_staged(connection, stage.promise)
                raise
            except ROW_ERRORS as error:
                bad = refused(connection, stage.name, self._target, numbered, error)
            else:
                stage.rows += len(rows)
                return
        raise BadRows(bad)

    def _opened(self, connection: Connection) -> _Stage:
        epoch = EpochId(self._epoch, self._ctx.job.term)
        promise = Promise(uuid.uuid4(), self._life, epoch, self._target)
        name = sql.Identifier(self._ledger.schema, promise.stage)
        with connection.transaction():
            self._ledger.open(connection, promise, self._ctx.owner, self._ctx.operator)
            connection.execute(statements.create_stage(name, self._table, self._target))
            if (index := statements.create_index(name, self._table, self._target)) is not None:
                connection.execute(index)
        return _Stage(promise, name)

    def _prepare(self, stage: _Stage, epoch: EpochId, after: tuple[uuid.UUID, ...]) -> Sequence[Committable]:
        promise = Promise(stage.promise.id, self._life, epoch, self._target, after)
        with mapped(RestartFromCheckpoint, f"prepare {self._ledger.schema}.{promise.stage}"):
            failpoints.hit("sink.flush.before")
            with self._link.durable() as connection:
                failpoints.hit("sink.flush.after")
                failpoints.hit("sink.prepare.before")
                self._ledger.prepare(connection, promise, stage.rows)
            failpoints.hit("sink.prepare.after")
        by_sink = {self._ctx.operator: stage.rows}
        return (Committable(self._scope, promise.payload(), stage.rows, by_sink),)
