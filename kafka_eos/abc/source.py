"""Inputs: a source, which the coordinator calls, and its readers, which run in workers.

Rule: records that were read once can be read again, from any position that the source has returned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.core.ids import EpochId, SplitId
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.core.records import Batch

if TYPE_CHECKING:
    from kafka_eos.core.errors import Retryable

T = TypeVar("T")


class Source(Protocol[T]):
    """An input that can be read again from any position it has returned."""

    @property
    def guarantee(self) -> Guarantee: ...

    def describe(self) -> Mapping[str, Json]:
        """Describe what is read, with secrets masked, for ``explain``."""

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """Return the start positions of every split that exists now.

        ``known`` is None only on the very first start of the job: then the user's start rule applies (earliest, latest
        …). Otherwise every known split is verified and returned unchanged, and a split that is not in ``known`` starts
        at its beginning. Raises InputLost, with its cause, if a known position cannot be read any more, ConfigError if
        the input does not exist.
        """

    def get_end_positions(self, ctx: JobContext) -> Positions:
        """Return the positions after the last record that is readable now (Kafka: end offsets)."""

    def reader(self, ctx: TaskContext, positions: Positions) -> Reader[T]: ...

    def notify_committed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Handle that an epoch's receipt is written; for lag tools only.

        An exception becomes a notice: nothing depends on this call.
        """


PositionsOrRetry: TypeAlias = "Positions | Retryable"
"""Positions of one source, or why they are not available now."""


@runtime_checkable
class SupportsBulkDiscovery(Protocol):
    """A source whose server answers for many sources in one request."""

    def scope(self, ctx: JobContext) -> str:
        """Return the scope. Sources of one class with the same scope are queried together."""

    def discover_all(
        self, ctx: JobContext, asked: Sequence[tuple[Source[Any], Positions | None]]
    ) -> Sequence[PositionsOrRetry]:
        """Call ``Source.discover`` for each source, with its known positions; return the results in this order."""

    def get_all_end_positions(self, ctx: JobContext, asked: Sequence[Source[Any]]) -> Sequence[PositionsOrRetry]:
        """Call ``Source.get_end_positions`` for each source; return the results in this order."""


@runtime_checkable
class SupportsIdentityCheck(Protocol):
    """A source whose input may be replaced by another one of the same name while it is read."""

    def scope(self, ctx: JobContext) -> str:
        """Return the scope. Sources of one class with the same scope are checked together."""

    def ensure_same_input(self, ctx: JobContext, read: Sequence[tuple[Source[Any], Positions]]) -> None:
        """Check that the names of these splits still mean the input that was read.

        It is called before each epoch is decided, after its records were read, with all sources of this scope. Raises
        InputLost if an input was replaced or is missing, Retryable if that is not known now.
        """


@runtime_checkable
class SupportsSourceCheck(Protocol):
    """A source that checks more of its environment at startup than its splits."""

    def check(self, ctx: JobContext, known: Positions | None) -> Sequence[str]:
        """Check the environment at startup; return notices.

        Raise ConfigError if the source cannot be read, and Retryable if that cannot be determined now, which refuses no
        start. ``known`` are the positions in the newest checkpoint of the job; None if it has none.
        """


@runtime_checkable
class SupportsTableCheck(Protocol):
    """A source that can tell whether it keeps the newest row of each key, as a table needs."""

    def check_table(self, ctx: JobContext) -> Sequence[str]:
        """Return notices on rows that disappear without a newer one.

        Called at startup if a table reads it. Raises as ``check``.
        """


@runtime_checkable
class BoundedSource(Protocol):
    """A source that may have an end.

    A job whose sources are all bounded stops by itself when it has reached all their ends.
    """

    def bounds(self, positions: Positions) -> Positions | None:
        """Return where each of these splits ends for good; None if the source has no end.

        ``positions`` are any positions of this source. The end must follow from them alone, so that each restart
        computes the same one. No reader returns a record behind it.
        """


@runtime_checkable
class SequencedSource(Protocol):
    """A source that knows which of its splits are excluded from its watermark."""

    def list_excluded_splits(self, positions: Positions) -> Collection[SplitId]:
        """Return the splits that are excluded from the watermark. Pure.

        These are splits that are read to their end for good, and splits whose rows are later than those of another
        split that is read first. The result follows from the positions alone, without a request.
        """


@runtime_checkable
class SupportsFeedbackCheck(Protocol):
    """A source that can tell whether it would read what its own pipeline writes."""

    def find_feedback(self, sink: object, *, refused: bool) -> str | None:
        """Return why the pipeline would read its own output; None if it would not.

        Rows of this source may reach ``sink``. ``refused``: the sink receives the dead letters of this source.
        """


class Reader(Protocol[T]):
    """Reads the splits assigned to one subtask."""

    def poll(self, max_records: int, timeout: float) -> Batch[T] | None:
        """Return the next rows, decoded, or None if none arrive within ``timeout`` seconds."""

    def positions(self) -> Positions:
        """Return the next position to read of each split, after all rows that ``poll`` has returned: the source's
        barrier."""

    def assign(self, positions: Positions) -> None:
        """Add splits while running."""

    def pause(self, splits: Collection[SplitId]) -> None:
        """Pause these splits, and resume all others. Their positions stay.

        ``poll`` must return no row of a paused split, also none that was fetched before. Splits that are assigned later
        are not paused.
        """

    def list_splits_at_end(self) -> Collection[SplitId]:
        """Return splits that were read up to the end last seen. Never sends a request."""

    def lag(self) -> int | None:
        """Return how many readable records were not returned yet; None while the server has not reported it.

        Paused splits do not report it either. Never sends a request: it is called between batches.
        """

    def has_reached(self, ends: Positions) -> bool:
        """Return whether every split of ``ends`` was read up to its end."""

    def close(self) -> None: ...


@runtime_checkable
class SupportsSplitLag(Protocol):
    """A reader that knows its lag split by split."""

    def get_lag_by_split(self) -> Mapping[SplitId, int | None]:
        """Return the lag of each assigned split; None if unknown."""


def total_lag(lags: Iterable[int | None]) -> int | None:
    """Return the sum, or None if a lag is unknown: an unknown lag must not look like zero."""
    known = list(lags)
    return None if None in known else sum(lag for lag in known if lag is not None)
