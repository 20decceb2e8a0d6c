"""Inputs: a source, which the coordinator calls, and its readers, which run in workers.

Rule: records that were read once can be read again, from any position that the source has returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar

from kafka_eos.abc.codec import SchemaChecks
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.incarnation import IncarnationSign
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import EpochId, SplitId
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.core.records import Batch

if TYPE_CHECKING:
    from kafka_eos.abc.sink import Sink

T = TypeVar("T")


PositionsOrRetry: TypeAlias = Positions | Retryable
"""Positions of one source, or why they are not available now."""


class Source(ABC, Generic[T]):
    """An input that can be read again from any position it has returned.

    Implement the abstract methods. The others have a default, which their docstring states.
    """

    value_type: Any = None
    """The type of the values, if set: several workers use its codec to send rows to each other."""

    @property
    def guarantee(self) -> Guarantee:
        """Return the guarantee; default exactly-once."""
        return Guarantee.EXACTLY_ONCE

    @property
    def default_name(self) -> str | None:
        """Return the source's name in a pipeline where the user gives none: its topic or table. Default: None."""
        return None

    @abstractmethod
    def describe(self) -> Mapping[str, Json]:
        """Describe what is read, with secrets masked, for ``explain``."""

    def codecs(self) -> Mapping[str, SchemaChecks]:
        """Return the codecs by purpose, in words: ``value``, or ``value of orders-eu`` where each topic has its own.

        Default: none are known.
        """
        return {}

    def check(self, ctx: JobContext, known: Positions | None) -> Sequence[str]:
        """Check more of the environment at startup than the splits; return notices. Default: nothing is checked.

        Raise ConfigError if the source cannot be read, and Retryable if that cannot be determined now, which does not
        refuse the start. ``known`` are the positions in the newest checkpoint of the job; None if it has none.
        """
        return ()

    def describe_client(self) -> str | None:
        """Describe the client that reads the records on this machine, in one line, for ``explain`` and ``doctor``.

        Default: None, there is only one.
        """
        return None

    @abstractmethod
    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """Return the start positions of every split that exists now.

        ``known`` is None only on the very first start of the job: then the user's start rule applies (earliest, latest
        …). Otherwise every known split is verified and returned unchanged, and a split that is not in ``known`` starts
        at its beginning. Raises InputLost, with its cause, if a known position cannot be read any more, ConfigError if
        the input does not exist.
        """

    @abstractmethod
    def get_end_positions(self, ctx: JobContext) -> Positions:
        """Return the positions after the last record that is readable now (Kafka: end offsets)."""

    @abstractmethod
    def reader(self, ctx: TaskContext, positions: Positions) -> Reader[T]:
        """Open a reader of these splits in a worker."""

    def bounds(self, positions: Positions) -> Positions | None:
        """Return where each of these splits ends for good; None, the default, if the source has no end.

        ``positions`` are any positions of this source. The end must follow from them alone, so that each restart
        computes the same one. No reader returns a record after it. A job whose sources are all bounded stops by itself
        when it has reached all their ends.
        """
        return None

    def list_excluded_splits(self, positions: Positions) -> Collection[SplitId]:
        """Return the splits that are excluded from the watermark. Pure. Default: none.

        These are splits that are read to their end for good, and splits whose rows are later than those of another
        split that is read first. The result follows from the positions alone, without a request.
        """
        return ()

    def find_feedback(self, sink: Sink[Any], *, refused: bool, ctx: JobContext | None) -> str | None:
        """Return why the pipeline would read its own output; None, the default, if it would not.

        Rows of this source may reach ``sink``. ``refused``: the sink receives the dead letters of this source.
        ``ctx``: None for the plan, which is made without a request; at a start the context, so that systems can say
        whether two addresses lead to the same one.
        """
        return None

    def find_table_obstacle(self) -> str | None:
        """Return why no table can be built from this source; None, the default, if one can.

        The text continues "table 'name' would ".
        """
        return None

    def check_table(self, ctx: JobContext) -> Sequence[str]:
        """Return notices on rows that disappear without a newer one, which a table needs. Default: none.

        Called at startup if a table reads the source. Raises the same errors as ``check``.
        """
        return ()

    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        """List the signs that incarnations of the job, this one included, have left in the input. Default: none.

        Raises Retryable if they cannot be listed now.
        """
        return ()

    def scope(self, ctx: JobContext) -> str:
        """Return the scope: sources of one class with the same scope are queried together. Default: its own."""
        return str(id(self))

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return what is read, as data catalogs name it. Default: none; the catalog shows the source's name."""
        return ()

    def server(self, ctx: JobContext) -> str | None:
        """Return the name of the server, for status and metrics: the scope that a sink on it has. Default: None."""
        return None

    def discover_all(
        self, ctx: JobContext, asked: Sequence[tuple[Self, Positions | None]]
    ) -> Sequence[PositionsOrRetry]:
        """Call ``discover`` for each source of this scope, with its known positions; return the results in this order.

        Override it if the server answers for many sources in one request.
        """
        return [get_or_retry(partial(source.discover, ctx, known)) for source, known in asked]

    def get_all_end_positions(self, ctx: JobContext, asked: Sequence[Self]) -> Sequence[PositionsOrRetry]:
        """Call ``get_end_positions`` for each source of this scope; return the results in this order."""
        return [get_or_retry(partial(source.get_end_positions, ctx)) for source in asked]

    def notify_committed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Handle that an epoch's receipt is written; for lag tools only. Default: nothing.

        An exception becomes a notice: nothing depends on this call.
        """
        return


def get_or_retry(ask: Callable[[], Positions]) -> PositionsOrRetry:
    """Return the positions, or the Retryable that the call raised."""
    try:
        return ask()
    except Retryable as error:
        return error


class SupportsIdentityCheck(ABC):
    """An ability that a source inherits if its input may be replaced by another one of the same name."""

    @abstractmethod
    def ensure_same_input(self, ctx: JobContext, read: Sequence[tuple[Any, Positions]]) -> None:
        """Check that the names of these splits still mean the input that was read.

        It is called before each epoch is decided, after its records were read, with all sources of this scope. Raises
        InputLost if an input was replaced or is missing, Retryable if that is not known now.
        """


class Reader(ABC, Generic[T]):
    """Reads the splits assigned to one subtask."""

    @abstractmethod
    def poll(self, max_records: int, timeout: float) -> Batch[T] | None:
        """Return the next rows, decoded, or None if none arrive within ``timeout`` seconds."""

    @abstractmethod
    def positions(self) -> Positions:
        """Return the next position to read of each split, after all rows that ``poll`` has returned: the source's
        barrier."""

    @abstractmethod
    def assign(self, positions: Positions) -> None:
        """Add splits while running."""

    @abstractmethod
    def pause(self, splits: Collection[SplitId]) -> None:
        """Pause these splits, and resume all others. Their positions stay.

        ``poll`` must return no row of a paused split, also none that was fetched before. Splits that are assigned later
        are not paused.
        """

    @abstractmethod
    def list_splits_at_end(self) -> Collection[SplitId]:
        """Return splits that were read up to the end last seen. Never sends a request."""

    @abstractmethod
    def lag(self) -> int | None:
        """Return how many readable records were not returned yet; None while the server has not reported it.

        Paused splits do not report it either. Never sends a request: it is called between batches.
        """

    def get_lag_by_split(self) -> Mapping[SplitId, int | None]:
        """Return the lag of each assigned split, None if unknown. Default: none, only ``lag`` is known."""
        return {}

    @abstractmethod
    def has_reached(self, ends: Positions) -> bool:
        """Return whether every split of ``ends`` was read up to its end."""

    def close(self) -> None:
        """Release what the reader holds open. Default: nothing."""
        return


def total_lag(lags: Iterable[int | None]) -> int | None:
    """Return the sum, or None if a lag is unknown: an unknown lag must not look like zero."""
    known = list(lags)
    return None if None in known else sum(lag for lag in known if lag is not None)
