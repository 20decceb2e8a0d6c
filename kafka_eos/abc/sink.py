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
        """Stage rows for the current epoch. Invisible to readers until committed.

        Raises PoisonRecord for a row that cannot be encoded, RestartFromCheckpoint if staging failed.
        """

    def seal(self, epoch: EpochId) -> PreCommit:
        """The barrier. Everything written so far belongs to ``epoch``; what comes next to a later one.

        Returns the part that may block (flush, fsync …). It is called once, on another thread, while
        ``write`` may already be called for the next epoch. When it returns, each committable must be
        committable from any other process, any number of times. It returns nothing for an empty epoch.
        The trap: order. Rows of the next epoch must not overtake the rows of this one.
        """

    def committed(self, epoch: EpochId) -> None:
        """Called after the epoch's receipt: what ``seal`` kept for it, and for older epochs, may be reused.

        The trap: later epochs may be prepared already. It may come late, again, or never.
        """

    def discard(self) -> None:
        """Let go of everything, undo nothing: recovery decides about what is already prepared."""


@runtime_checkable
class Attended(Protocol):
    """A writer whose client must be heard although nothing is written: it keeps what it has to say until then."""

    def attend(self) -> None:
        """Called now and then from the thread that writes. Raises RestartFromCheckpoint if staging has failed."""


@runtime_checkable
class HasClock(Protocol):
    """A sink whose system tells what time it is there."""

    def clock(self, ctx: JobContext) -> tuple[float, float] | None:
        """Seconds by which its clock is ahead of this machine's, and how far that may be wrong; None if it is not told.

        Raises Retryable if it does not answer.
        """


class Sink(Protocol[T]):
    """An output with two-phase commit (writer prepares, committer finishes)."""

    @property
    def guarantee(self) -> Guarantee: ...

    def describe(self) -> Mapping[str, Json]: ...

    def scope(self, ctx: JobContext) -> str:
        """Sinks with the same scope share one committer, and may share one committable an epoch."""

    def check(self, ctx: JobContext) -> Sequence[str]:
        """At start: raise ConfigError if the guarantee cannot be kept; return notices worth showing."""

    def writer(self, ctx: TaskContext) -> Writer[T]: ...

    def committer(self, ctx: JobContext) -> Committer: ...


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What to do with a record that cannot be processed: write it aside, in the same epoch."""

    sink: Sink[Any]
