"""Outputs: a sink, and its writers, which live in workers.

Rule: what is written is invisible until its epoch is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from kafka_eos.abc.committer import Committable, Committer
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch

T = TypeVar("T")

PreCommit: TypeAlias = Callable[[], Sequence[Committable]]


class Writer(Protocol[T]):
    """Writes one subtask's output of a sink. Called from one thread, except what ``seal`` returns."""

    def write(self, batch: Batch[T]) -> None:
        """Stage rows for the current epoch. They are invisible to readers until committed.

        Raises PoisonRecord for a row that cannot be encoded, RestartFromCheckpoint if staging failed.
        """

    def seal(self, epoch: EpochId) -> PreCommit:
        """Handle the barrier: everything written so far belongs to ``epoch``, later rows to a later one.

        Returns the part that may block (flush, fsync …). It is called once, on another thread, while ``write`` may
        already be called for the next epoch. When it returns, each committable must be committable from any other
        process, any number of times. It returns nothing for an empty epoch.

        Note: rows of the next epoch must not overtake the rows of this one.
        """

    def notify_committed(self, epoch: EpochId) -> None:
        """Handle that the epoch's receipt is written: what ``seal`` kept for it may be reused.

        Note: later epochs may be prepared already. The call may come late, again, or never.
        """

    def discard(self) -> None:
        """Release all resources; undo nothing: recovery decides about what is already prepared."""


@runtime_checkable
class SupportsPoll(Protocol):
    """A writer whose client must be polled even when nothing is written, to surface errors."""

    def poll(self) -> None:
        """Poll the client. The writing thread calls it regularly. Raises RestartFromCheckpoint if staging failed."""


@runtime_checkable
class HasClock(Protocol):
    """A sink whose system exposes its clock."""

    def clock(self, ctx: JobContext) -> tuple[float, float] | None:
        """Return by how many seconds its clock is ahead of this machine's, and the error bound; None if it is unknown.

        Raises Retryable if the system does not respond.
        """


class Sink(Protocol[T]):
    """An output with two-phase commit (writer prepares, committer finishes)."""

    @property
    def guarantee(self) -> Guarantee: ...

    def describe(self) -> Mapping[str, Json]: ...

    def scope(self, ctx: JobContext) -> str:
        """Return the scope. Sinks with the same scope share one committer, and may share one committable per epoch."""

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Check the environment at startup; return notices. Raise ConfigError if the guarantee cannot be kept."""

    def writer(self, ctx: TaskContext) -> Writer[T]: ...

    def committer(self, ctx: JobContext) -> Committer: ...


@runtime_checkable
class TypedSink(Protocol):
    """A sink that encodes values by their type."""

    def for_stream_type(self, tp: Any) -> Sink[Any]:
        """Return the sink for a stream of values of type ``tp``; None if the type is unknown.

        A sink without a type of its own takes that of the stream. Raise PlanError or ConfigError if it needs one and
        ``tp`` is unknown, or if values of ``tp`` cannot be of its own type.
        """


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The policy that writes a record that cannot be processed to a dead-letter sink, in the same epoch."""

    sink: Sink[Any]
