"""The writer of a database table: the rows of one subtask, one epoch at a time, staged by a ``RowStaging``.

Rule: a row that the table would reject is found while its input record is known.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.sink import PreCommit, Writer
from kafka_eos.connectors._shared.row_errors import encode_or_reject, map_rows
from kafka_eos.connectors._staged_tables.stage_names import Incarnation, Strategy, TableCommittable, TargetTable
from kafka_eos.core.errors import EnvironmentFailed, KafkaEosError
from kafka_eos.core.ids import Epoch, EpochId
from kafka_eos.core.records import Batch


class StagedEpoch(Protocol):
    """The staged rows of one writer and epoch.

    ``add`` is called by the writing thread, then ``prepare`` or ``drop`` once by another thread.
    """

    stage: TableCommittable
    rows: int

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add all rows or none. Raise BadRows with the rows that the table would reject."""

    def prepare(self, stage: TableCommittable) -> None:
        """Make the rows durable, but invisible, for any process to commit. Raise Fenced if another process
        ended them."""

    def drop(self) -> None:
        """Drop the stage: it has no rows, and no committable names it."""


def find_bad_rows(
    rows: Sequence[Any],
    stage_alone: Callable[[Any], None],
    kinds: tuple[type[Exception], ...],
    find_row_error: Callable[[Exception], ValueError | None],
    error: Exception,
) -> dict[int, Exception]:
    """Return the errors of rejected rows, by index. Re-raise ``error``, which all of them raised, if no row is the
    cause.

    ``stage_alone``: stages one row, to be rolled back. ``find_row_error``: describes one of ``kinds``; None if it is
    not about a row.
    """
    errors: dict[int, Exception] = {}
    if find_row_error(error) is None:
        raise error
    for index, row in enumerate(rows):
        try:
            stage_alone(row)
        except kinds as alone:
            wrong = find_row_error(alone)
            if wrong is None:
                raise
            errors[index] = wrong
    if not errors:
        raise error
    return errors


class RowStaging(Protocol):
    """The staging of one database writer's rows, one epoch at a time."""

    strategy: Strategy

    def map_errors(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        """Map database errors: ``kind`` if a retry may help, otherwise ConfigError."""

    def open(self, stage: TableCommittable, subtask: int, operator: str) -> StagedEpoch: ...

    def close(self) -> None:
        """Close the connection without waiting for a working thread, whose calls then fail."""


class TableWriter(Writer[Any]):
    """The writer that stages the rows of one subtask of a sink."""

    def __init__(
        self,
        ctx: TaskContext,
        scope: str,
        holder: RowStaging,
        target: TargetTable,
        row: Callable[[Any], tuple[Any, ...]],
    ) -> None:
        self._ctx = ctx
        self._scope = scope
        self._holder = holder
        self._target = target
        self._row = row
        self._incarnation, self._epoch = Incarnation(ctx.job.job, ctx.job.identity), ctx.first_epoch
        self._held: StagedEpoch | None = None
        self._sealed: tuple[tuple[Epoch, uuid.UUID], ...] = ()

    def write(self, batch: Batch[Any]) -> None:
        with self._holder.map_errors(EnvironmentFailed, f"stage rows for {self._target}"):
            encode_or_reject(self._added, batch, self._ctx.operator, self._ctx.services.reject_row)

    def seal(self, epoch: EpochId) -> PreCommit:
        self._epoch = epoch.epoch.next()
        held, self._held = self._held, None
        if held is None:
            return lambda: ()
        if not held.rows:
            return partial(self._drop, held)
        after: tuple[uuid.UUID, ...] = ()
        if self._holder.strategy is Strategy.STAGE:
            after = tuple(of for _, of in self._sealed)
            self._sealed += ((epoch.epoch, held.stage.id),)
        return partial(self._prepare, held, self._build_committable(held.stage.id, epoch, after))

    def notify_committed(self, epoch: EpochId) -> None:
        """Forget stages of committed epochs: later stages need not be committed after them."""
        self._sealed = tuple(each for each in self._sealed if each[0] > epoch.epoch)

    def discard(self) -> None:
        self._held = None
        self._holder.close()

    def _added(self, batch: Batch[Any]) -> None:
        rows = map_rows(self._row, batch.values)
        if not rows:
            return
        if self._held is None:
            stage = self._build_committable(uuid.uuid4(), EpochId(self._epoch, self._ctx.job.term))
            self._held = self._holder.open(stage, self._ctx.subtask, self._ctx.operator)
        self._held.add(rows)
        self._held.rows += len(rows)

    def _build_committable(self, of: uuid.UUID, epoch: EpochId, after: tuple[uuid.UUID, ...] = ()) -> TableCommittable:
        return TableCommittable(of, self._incarnation, epoch, self._target, after, self._holder.strategy)

    def _drop(self, held: StagedEpoch) -> Sequence[Committable]:
        with self._holder.map_errors(EnvironmentFailed, f"discard an empty stage for {self._target}"):
            held.drop()
        return ()

    def _prepare(self, held: StagedEpoch, stage: TableCommittable) -> Sequence[Committable]:
        with self._holder.map_errors(EnvironmentFailed, f"prepare rows for {self._target}"):
            held.prepare(stage)
        by_sink = {self._ctx.operator: held.rows}
        return (Committable(self._scope, stage.to_payload(), held.rows, by_sink),)
