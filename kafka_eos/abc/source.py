"""Inputs: a source, which the coordinator asks, and its readers, which live in workers.

Rule: what was read once can be read again, from any position that was given out.
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
    """An input that can be read again from any position it has given out."""

    @property
    def guarantee(self) -> Guarantee: ...

    def describe(self) -> Mapping[str, Json]:
        """For ``explain``: what is read, with secrets masked."""

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """Start positions of every split that exists now.

        ``known`` is None only on the very first start of the job: then the user's start rule applies
        (earliest, latest …). Otherwise every known split is verified and returned unchanged, and a split
        that is not in ``known`` starts at its beginning. Raises InputLost if a known position cannot be
        read any more, ConfigError if the input does not exist.
        """

    def ends(self, ctx: JobContext) -> Positions:
        """Positions just after the last record that is readable now (for ``--until-caught-up``)."""

    def reader(self, ctx: TaskContext, positions: Positions) -> Reader[T]: ...

    def completed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Told after an epoch's receipt; for lag tools only. What it raises becomes a notice: nothing depends on it."""


Answer: TypeAlias = "Positions | Retryable"
"""What a source says when several are asked at once; Retryable if it cannot be told now, of this source alone."""


@runtime_checkable
class AskedTogether(Protocol):
    """A source whose server answers for many sources with one request: the engine asks them all through one of them."""

    def scope(self, ctx: JobContext) -> str:
        """Sources of one class with the same scope are asked together."""

    def discover_all(self, ctx: JobContext, asked: Sequence[tuple[Source[Any], Positions | None]]) -> Sequence[Answer]:
        """As ``Source.discover`` of each, with its known positions, in this order."""

    def ends_all(self, ctx: JobContext, asked: Sequence[Source[Any]]) -> Sequence[Answer]:
        """As ``Source.ends`` of each, in this order."""


@runtime_checkable
class CheckedSource(Protocol):
    """A source that needs more of its environment than its splits."""

    def check(self, ctx: JobContext, known: Positions | None) -> Sequence[str]:
        """At start: raise ConfigError if it cannot be read; Retryable if nobody can tell now, which refuses no start.

        ``known``: the positions in the newest checkpoint of the job; None if it has none. Returns notices.
        """


@runtime_checkable
class LastingSource(Protocol):
    """A source that can tell whether the newest row of each key stays, which a table needs."""

    def check_table(self, ctx: JobContext) -> Sequence[str]:
        """At start, where a table is made of it: notices on rows that go away without another. Raises as ``check``."""


@runtime_checkable
class Bounded(Protocol):
    """A source that may have an end. A job whose sources all have one ends by itself when it has come there."""

    def bounds(self, positions: Positions) -> Positions | None:
        """Where each of these splits ends for good; None if the source has no end.

        ``positions`` are of this source, whatever has been read. The end must follow from them alone, so that each
        restart comes to the same one; and no reader returns a record that lies behind it.
        """


@runtime_checkable
class Sequenced(Protocol):
    """A source that knows which of its splits event time need not wait for."""

    def not_waited_for(self, positions: Positions) -> Collection[SplitId]:
        """Of the splits that one subtask has read up to ``positions``, and no others.

        These are splits that are read to their end for good, and splits whose rows are later than those of another
        split that is read first. The answer follows from the positions alone: nobody is asked.
        """


@runtime_checkable
class ReadsBack(Protocol):
    """A source that can tell whether it reads what its own pipeline writes."""

    def reads_back(self, sink: object, *, refused: bool) -> str | None:
        """Why the pipeline is refused, with what to do; None if the sink writes elsewhere, or if it is meant.

        Rows of this source may reach ``sink``. ``refused``: it takes the records that are refused behind the source.
        """


class Reader(Protocol[T]):
    """Reads the splits assigned to one subtask."""

    def poll(self, max_records: int, timeout: float) -> Batch[T] | None:
        """Next rows, decoded, or None if there are none within ``timeout`` seconds."""

    def positions(self) -> Positions:
        """Where to read next, for all that ``poll`` has returned. This is the barrier of the source."""

    def assign(self, positions: Positions) -> None:
        """Add splits while running."""

    def pause(self, splits: Collection[SplitId]) -> None:
        """These splits, and no others, bring nothing until told otherwise. Their positions stay.

        ``poll`` must return no row of a split that is paused, also none that has been fetched before. Splits that are
        assigned later are not paused.
        """

    def at_end(self) -> Collection[SplitId]:
        """Splits of which all that was readable when it was last looked at has been returned. It never asks."""

    def lag(self) -> int | None:
        """Records that are readable and not yet returned; None while no answer of the server has told, and of
        splits that are paused none tells.

        It never asks: it is called between batches.
        """

    def reached(self, ends: Positions) -> bool:
        """True once every split of ``ends`` is read up to there."""

    def close(self) -> None: ...


@runtime_checkable
class LagOfEach(Protocol):
    """A reader that knows its lag split by split."""

    def lags(self) -> Mapping[SplitId, int | None]:
        """As ``Reader.lag``, of each split that is assigned."""


def total_lag(lags: Iterable[int | None]) -> int | None:
    """The sum, or None if one is unknown: what is not known must not look like nothing."""
    known = list(lags)
    return None if None in known else sum(lag for lag in known if lag is not None)
