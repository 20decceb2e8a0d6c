"""How many dead letters are too many: the books of one run, and the limit that a job has set itself.

Pure. A limit is a number of dead letters of one source in a run, or a share of the newest records of a source.
Rule: the books are asked with the epoch that is to be decided next; if it is too many, that epoch is not decided, so
nothing of it is lost and nothing of it is sent aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kafka_eos.core.records import Refusal, Tally


@dataclass(frozen=True, slots=True)
class Limit:
    """``most``: dead letters of a source in one run. ``share``: of the newest ``window`` records or more, 0 to 1."""

    most: int | None = None
    share: float | None = None
    window: int = 1

    @staticmethod
    def parse(text: str, window: int) -> Limit:
        """What the setting says: a number, a share such as ``50%``, or ``none``."""
        if text == "none":
            return Limit()
        return Limit(share=float(text[:-1]) / 100, window=window) if text.endswith("%") else Limit(most=int(text))


@dataclass(frozen=True, slots=True)
class Excess:
    """Too many: ``refused`` of ``read`` records of a source, with operators and the first few."""

    source: str
    refused: int
    read: int
    by: dict[str, int]
    first: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """Records of one source that were read, and dead letters by operator."""

    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def plus(self, other: Count) -> Count:
        return Count(self.read + other.read, self.refused + other.refused)

    def minus(self, other: Count) -> Count:
        return Count(self.read - other.read, self.refused - other.refused)


@dataclass(frozen=True, slots=True)
class Window:
    """The newest epochs of one source, oldest first, as many as have enough records together; and their sum."""

    epochs: tuple[Count, ...] = ()
    """Each but the first has read something, so there are never more of them than records that are enough."""
    sum: Count = field(default_factory=Count)

    def after(self, epoch: Count, enough: int) -> Window:
        """With one more epoch, without those that are not needed any longer."""
        if epoch.read or not self.epochs:
            epochs = (*self.epochs, epoch)
        else:  # records that were read before: they are no epoch of their own, so that what is kept has a bound
            epochs = (*self.epochs[:-1], self.epochs[-1].plus(epoch))
        total, gone = self.sum.plus(epoch), 0
        while total.read - epochs[gone].read >= enough:
            total, gone = total.minus(epochs[gone]), gone + 1
        return Window(epochs[gone:], total)


@dataclass(frozen=True, slots=True)
class Books:
    """What the decided epochs of one run have counted."""

    total: Tally = field(default_factory=Tally)
    newest: Mapping[str, Window] = field(default_factory=dict)
    """By source, if the limit is a share."""

    def after(self, epoch: Tally, limit: Limit) -> Books:
        """With one more decided epoch."""
        newest = dict(self.newest)
        if limit.share is not None:
            for source, count in _counts(epoch):
                newest[source] = newest.get(source, Window()).after(count, limit.window)
        return Books(self.total.plus(epoch), newest)

    def excess(self, epoch: Tally, limit: Limit) -> Excess | None:
        """The source of which there are too many, if ``epoch`` is decided as well."""
        seen = self.after(epoch, limit)
        return next((found for source in sorted(epoch.refused) if (found := seen._excess(source, limit))), None)

    def _excess(self, source: str, limit: Limit) -> Excess | None:
        first = tuple(self.total.first.get(source, ()))
        if limit.most is not None and self.total.letters(source) > limit.most:
            by = self.total.refused[source]
            return Excess(source, sum(by.values()), self.total.read.get(source, 0), by, first)
        if limit.share is None:
            return None
        window = self.newest.get(source, Window()).sum
        if window.read >= limit.window and window.refused.total() > limit.share * window.read:
            by = dict(sorted(window.refused.items()))
            return Excess(source, window.refused.total(), window.read, by, first)
        return None


def _counts(epoch: Tally) -> Iterator[tuple[str, Count]]:
    """Of each source of which something was read or refused."""
    for source in sorted(epoch.read.keys() | epoch.refused.keys()):
        yield source, Count(epoch.read.get(source, 0), Counter(epoch.refused.get(source, {})))


def described(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Counts by source and operator in words: ``12 dead letters (payments: 10 by checked, 2 by total)``."""
    total = _total(counts)
    return f"{total:,} dead letter{'' if total == 1 else 's'} {_parts(counts)}"


def in_figures(counts: Mapping[str, Mapping[str, int]]) -> str:
    """The same where it is said already what is counted: ``12 (payments: 10 by checked, 2 by total)``."""
    return f"{_total(counts):,} {_parts(counts)}"


def _total(counts: Mapping[str, Mapping[str, int]]) -> int:
    return sum(sum(by.values()) for by in counts.values())


def _parts(counts: Mapping[str, Mapping[str, int]]) -> str:
    parts = (
        f"{name}: {', '.join(f'{n:,} by {operator}' for operator, n in by.items())}" for name, by in counts.items()
    )
    return f"({'; '.join(parts)})"
