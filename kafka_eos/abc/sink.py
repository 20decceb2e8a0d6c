"""Outputs: a sink, and its writers, which live in workers.

Rule: what is written is invisible until its epoch is committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from kafka_eos.abc.codec import SchemaChecks
from kafka_eos.abc.committer import Committable, Committer
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch

T = TypeVar("T")

PreCommit: TypeAlias = Callable[[], Sequence[Committable]]


class Writer(ABC, Generic[T]):
    """Writes one subtask's output of a sink. Called from one thread, except what ``seal`` returns."""

    @abstractmethod
    def write(self, batch: Batch[T]) -> None:
        """Stage rows for the current epoch. They are invisible to readers until committed.

        Raises PoisonRecord for a row that cannot be encoded, RestartFromCheckpoint if staging failed.
        """

    @abstractmethod
    def seal(self, epoch: EpochId) -> PreCommit:
        """Handle the barrier: everything written so far belongs to ``epoch``, later rows to a later one.

        Returns the part that may block (flush, fsync …). It is called once, on another thread, while ``write`` may
        already be called for the next epoch. When it returns, each committable must be committable from any other
        process, any number of times. It returns nothing for an empty epoch.

        Note: rows of the next epoch must not overtake the rows of this one.
        """

    def poll(self) -> None:
        """Poll the client to surface its errors, even when nothing is written. Default: nothing.

        The writing thread calls it regularly. Raises RestartFromCheckpoint if staging failed.
        """
        return

    def notify_committed(self, epoch: EpochId) -> None:
        """Handle that the epoch's receipt is written: what ``seal`` kept for it may be reused. Default: nothing.

        Note: later epochs may be prepared already. The call may come late, again, or never.
        """
        return

    def discard(self) -> None:
        """Release all resources; undo nothing: recovery decides about what is already prepared. Default: nothing."""
        return


class Sink(ABC, Generic[T]):
    """An output with two-phase commit (writer prepares, committer finishes).

    Implement the abstract methods. The others have a default, which their docstring states.
    """

    @property
    def guarantee(self) -> Guarantee:
        """Return the guarantee; default exactly-once."""
        return Guarantee.EXACTLY_ONCE

    @property
    def guarantee_reason(self) -> str | None:
        """Return why the sink is at-least-once by nature; None, the default, if its user asked for it."""
        return None

    @property
    def default_name(self) -> str | None:
        """Return the sink's name in a pipeline where the user gives none: its topic or table. Default: None."""
        return None

    def find_location(self, ctx: JobContext | None) -> str | None:
        """Return the directory or the address in a bucket where it writes files; None, the default, if it writes none.

        ``FileSource`` reads no files that its own pipeline writes. ``ctx``: None before a start, when no server is
        asked.
        """
        return None

    @property
    def exclusive_resource(self) -> str | None:
        """Return a resource that only this sink may use; two sinks with the same one are refused. Default: None."""
        return None

    @property
    def not_audited(self) -> str:
        """Return why the audit cannot check the output; for a sink that is not an ``AuditableSink``."""
        return f"{type(self).__name__} offers no audit"

    @abstractmethod
    def describe(self) -> Mapping[str, Json]:
        """Describe where rows are written, with secrets masked, for ``explain``."""

    def trade_offs(self) -> Sequence[str]:
        """Return the trade-offs of the guarantee as plain sentences, for ``explain``. Default: none."""
        return ()

    def codecs(self) -> Mapping[str, SchemaChecks]:
        """Return the codecs by purpose, in words, such as ``value``. Default: none are known."""
        return {}

    def describe_client(self) -> str | None:
        """Describe the client that writes the records on this machine, in one line, for ``explain`` and ``doctor``.

        Default: None, there is only one.
        """
        return None

    def for_stream_type(self, tp: Any) -> Sink[Any]:
        """Return the sink for a stream of values of type ``tp``; None if the type is unknown. Default: this sink.

        A sink without a type of its own takes that of the stream. Raise PlanError or ConfigError if it needs one and
        ``tp`` is unknown, or if values of ``tp`` cannot be of its own type.
        """
        return self

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return what is written, as data catalogs name it. Default: none; the catalog shows the sink's name."""
        return ()

    @abstractmethod
    def scope(self, ctx: JobContext) -> str:
        """Return the scope. Sinks with the same scope share one committer, and may share one committable per epoch."""

    def get_target_identity(self) -> str | None:
        """Return an identity of the target that does not depend on the name used for it. Default: None.

        A target that may have several names must have one scope per job: two sinks of a job with the same identity and
        different scopes are refused. Raises Retryable, ConfigError.
        """
        return None

    def get_committable_target(self, ctx: JobContext) -> str | None:
        """Return the target that its committables may name, see ``OutputOwner``. Default: None, they name none.

        Raises Retryable, ConfigError.
        """
        return None

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Check the environment at startup; return notices. Raise ConfigError if the guarantee cannot be kept.

        Default: nothing is checked.
        """
        return ()

    def advice(self, ctx: JobContext) -> str:
        """Return what to check when the system does not answer at startup: one sentence without a full stop.

        It states where the address and the login are configured. Default: general advice.
        """
        return "Check that the system runs there and accepts the job's credentials"

    @abstractmethod
    def writer(self, ctx: TaskContext) -> Writer[T]:
        """Open a writer in a worker."""

    @abstractmethod
    def committer(self, ctx: JobContext) -> Committer:
        """Open the committer of this scope."""


class HasClock(ABC):
    """An ability that a sink inherits if its system exposes its clock, which ``doctor`` then checks."""

    @abstractmethod
    def clock(self, ctx: JobContext) -> tuple[float, float] | None:
        """Return by how many seconds its clock is ahead of this machine's, and the error bound; None if it is unknown.

        Raises Retryable if the system does not respond.
        """


class DeadLetters(Struct, frozen=True):
    """The policy that writes a record that cannot be processed to a dead-letter sink, in the same epoch."""

    sink: Sink[Any]
