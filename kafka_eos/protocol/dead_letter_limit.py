"""The limit on dead letters of a job, and the counts of one run that it is compared with.

Pure. A limit is a number of dead letters of one source in a run, or a share of the newest records of a source. An
operator with timers is a source, too, and its timers are the records.
Rule: the limit is checked with the epoch that is to be decided next. If the limit is exceeded, that epoch is not
decided: none of its records are lost, and none become dead letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from kafka_eos.core.records import RecordCounts, Rejection


class DeadLetterLimit(Struct, frozen=True):
    """The most dead letters that a source may have: a number per run, or a share of recent records.

    ``share``: from 0 to 1, of the newest ``window`` records or more.
    """

    most: int | None = None
    share: float | None = None
    window: int = 1

    @staticmethod
    def parse(text: str, window: int) -> DeadLetterLimit:
        """Parse the setting: a number, a share such as ``50%``, or ``none``."""
        if text == "none":
            return DeadLetterLimit()
        return (
            DeadLetterLimit(share=float(text[:-1]) / 100, window=window)
            if text.endswith("%")
            else DeadLetterLimit(most=int(text))
        )


class Excess(Struct, frozen=True):
    """A source with too many dead letters: ``refused`` of ``read`` records, with operators and the first few."""

    source: str
    refused: int
    read: int
    by: dict[str, int]
    first: tuple[Rejection, ...]


class DeadLetterCount(Struct, frozen=True):
    """The number of records of one source that were read, and of dead letters by operator."""

    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def plus(self, other: DeadLetterCount) -> DeadLetterCount:
        return DeadLetterCount(self.read + other.read, self.refused + other.refused)

    def minus(self, other: DeadLetterCount) -> DeadLetterCount:
        return DeadLetterCount(self.read - other.read, self.refused - other.refused)


class DeadLetterWindow(Struct, frozen=True):
    """The most recent epochs of a source that together hold enough records, and their sum."""

    epochs: tuple[DeadLetterCount, ...] = ()
    """The counts of the epochs in the window. Each epoch but the first has read records, which bounds their number."""
    sum: DeadLetterCount = field(default_factory=DeadLetterCount)

    def with_epoch(self, epoch: DeadLetterCount, enough: int) -> DeadLetterWindow:
        """Return the window with one more epoch, without epochs that are no longer needed."""
        if epoch.read or not self.epochs:
            epochs = (*self.epochs, epoch)
        else:  # dead letters of records read before: added to the newest epoch, so that the number of epochs is bounded
            epochs = (*self.epochs[:-1], self.epochs[-1].plus(epoch))
        total, gone = self.sum.plus(epoch), 0
        while total.read - epochs[gone].read >= enough:
            total, gone = total.minus(epochs[gone]), gone + 1
        return DeadLetterWindow(epochs[gone:], total)


class DeadLetterTotals(Struct, frozen=True):
    """Totals of all decided epochs of one run."""

    total: RecordCounts = field(default_factory=RecordCounts)
    newest: Mapping[str, DeadLetterWindow] = field(default_factory=dict)
    """The window of each source, if the limit is a share."""

    def with_epoch(self, epoch: RecordCounts, limit: DeadLetterLimit) -> DeadLetterTotals:
        """Return the totals with one more decided epoch."""
        newest = dict(self.newest)
        if limit.share is not None:
            for source, count in _counts(epoch):
                newest[source] = newest.get(source, DeadLetterWindow()).with_epoch(count, limit.window)
        return DeadLetterTotals(self.total.plus(epoch), newest)

    def find_excess(self, epoch: RecordCounts, limit: DeadLetterLimit) -> Excess | None:
        """Return the first source that would exceed the limit if the epoch were decided, or None."""
        seen = self.with_epoch(epoch, limit)
        return next((found for source in sorted(epoch.refused) if (found := seen._excess(source, limit))), None)

    def _excess(self, source: str, limit: DeadLetterLimit) -> Excess | None:
        first = tuple(self.total.first.get(source, ()))
        if limit.most is not None and self.total.count_dead_letters(source) > limit.most:
            by = self.total.refused[source]
            read = self.total.read.get(source, 0) + self.total.fired.get(source, 0)
            return Excess(source, sum(by.values()), read, by, first)
        if limit.share is None:
            return None
        window = self.newest.get(source, DeadLetterWindow()).sum
        if window.read >= limit.window and window.refused.total() > limit.share * window.read:
            by = dict(sorted(window.refused.items()))
            return Excess(source, window.refused.total(), window.read, by, first)
        return None


def _counts(epoch: RecordCounts) -> Iterator[tuple[str, DeadLetterCount]]:
    """Yield the counts of each source that has records read, or timers fired, or dead letters."""
    read = {**epoch.read, **epoch.fired}
    for source in sorted(read.keys() | epoch.refused.keys()):
        yield source, DeadLetterCount(read.get(source, 0), Counter(epoch.refused.get(source, {})))


def describe_counts(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Format counts by source and operator, with the words "dead letters"."""
    total = _total(counts)
    return f"{total:,} dead letter{'' if total == 1 else 's'} {_parts(counts)}"


def format_counts(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Format counts by source and operator as numbers alone."""
    return f"{_total(counts):,} {_parts(counts)}"


def _total(counts: Mapping[str, Mapping[str, int]]) -> int:
    return sum(sum(by.values()) for by in counts.values())


def _parts(counts: Mapping[str, Mapping[str, int]]) -> str:
    parts = (
        f"{name}: {', '.join(f'{n:,} by {operator}' for operator, n in by.items())}" for name, by in counts.items()
    )
    return f"({'; '.join(parts)})"
