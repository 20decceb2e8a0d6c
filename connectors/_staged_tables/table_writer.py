"""The writer of a database's table: the rows of one subtask, an epoch at a time, where a ``Holder`` keeps them.

Rule: a row that the table would refuse is found while its input record is known.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.sink import PreCommit
from kafka_eos.connectors._shared.row_errors import each_row, encoded
from kafka_eos.connectors._staged_tables.stage_names import Life, Promise, Strategy, Target
from kafka_eos.core.errors import KafkaEosError, RestartFromCheckpoint
from kafka_eos.core.ids import Epoch, EpochId
from kafka_eos.core.records import Batch


class Held(Protocol):
    """The rows of one epoch. ``add`` is called by the thread that writes, then one of the others by another one."""

    promise: Promise
    rows: int

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """All rows or none, as ``Rows.row`` makes them. Raises BadRows, with those that the table would refuse."""

    def prepare(self, promise: Promise) -> None:
        """They are whole: durable, invisible, to be committed by anybody. Raises Fenced if somebody has ended them."""

    def drop(self) -> None:
        """There are none: nobody was promised anything."""


class Holder(Protocol):
    """Keeps the rows of one writer."""

    strategy: Strategy

    def mapped(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        """Within, an error of the database's client becomes ``kind`` if it may pass by itself, else ConfigError."""

    def open(self, promise: Promise, subtask: int, operator: str) -> Held: ...

    def close(self) -> None:
        """Without waiting for a thread that works: what that one does then fails."""


class TableWriter:
    """Stages the rows of one subtask of a sink."""

    def __init__(
        self,
        ctx: TaskContext,
        scope: str,
        holder: Holder,
        target: Target,
        row: Callable[[Any], tuple[Any, ...]],
    ) -> None:
        self._ctx, self._scope, self._holder, self._target, self._row = ctx, scope, holder, target, row
        self._life, self._epoch = Life(ctx.job.job, ctx.job.identity), ctx.first_epoch
        self._held: Held | None = None
        self._sealed: tuple[tuple[Epoch, uuid.UUID], ...] = ()

    def write(self, batch: Batch[Any]) -> None:
        with self._holder.mapped(RestartFromCheckpoint, f"stage rows for {self._target}"):
            encoded(self._added, batch, self._ctx.operator, self._ctx.services.reject_row)

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
            self._sealed += ((epoch.epoch, held.promise.id),)
        return partial(self._prepare, held, self._promised(held.promise.id, epoch, after))

    def committed(self, epoch: EpochId) -> None:
        """What comes later need not be committed after what is."""
        self._sealed = tuple(each for each in self._sealed if each[0] > epoch.epoch)

    def discard(self) -> None:
        self._held = None
        self._holder.close()

    def _added(self, batch: Batch[Any]) -> None:
        rows = each_row(self._row, batch.values)
        if not rows:
            return
        if self._held is None:
            promise = self._promised(uuid.uuid4(), EpochId(self._epoch, self._ctx.job.term))
            self._held = self._holder.open(promise, self._ctx.owner, self._ctx.operator)
        self._held.add(rows)
        self._held.rows += len(rows)

    def _promised(self, of: uuid.UUID, epoch: EpochId, after: tuple[uuid.UUID, ...] = ()) -> Promise:
        return Promise(of, self._life, epoch, self._target, after, self._holder.strategy)

    def _drop(self, held: Held) -> Sequence[Committable]:
        with self._holder.mapped(RestartFromCheckpoint, f"let go of what has no rows for {self._target}"):
            held.drop()
        return ()

    def _prepare(self, held: Held, promise: Promise) -> Sequence[Committable]:
        with self._holder.mapped(RestartFromCheckpoint, f"prepare rows for {self._target}"):
            held.prepare(promise)
        by_sink = {self._ctx.operator: held.rows}
        return (Committable(self._scope, promise.payload(), held.rows, by_sink),)
