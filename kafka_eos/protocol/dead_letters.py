"""How many dead letters are too many: the books of one run, and the limit that a job has set itself.

Pure. A limit is a number of dead letters of one source in a run, or a share of the newest records of a source.
Rule: the books are asked with the epoch that is to be decided next; if it is too many, that epoch is not decided, so
nothing of it is lost and nothing of it is sent aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kafka_eos.records import Refusal, Tally


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
class Books:
    """What the decided epochs of one run have counted."""

    total: Tally = field(default_factory=Tally)
    newest: tuple[Tally, ...] = ()
    """Of single epochs, oldest first: as many as the window of a share needs."""

    def after(self, epoch: Tally, limit: Limit) -> Books:
        """With one more decided epoch."""
        total, newest = self.total.plus(epoch), (*self.newest, epoch)
        while len(newest) > 1 and all(_read(newest[1:], source) >= limit.window for source in total.read):
            newest = newest[1:]
        return Books(total, newest)

    def excess(self, epoch: Tally, limit: Limit) -> Excess | None:
        """The source of which there are too many, if ``epoch`` is decided as well."""
        seen = replace(self, total=self.total.plus(epoch), newest=(*self.newest, epoch))
        return next((found for source in sorted(epoch.refused) if (found := seen._excess(source, limit))), None)

    def _excess(self, source: str, limit: Limit) -> Excess | None:
        first = tuple(self.total.first.get(source, ()))
        if limit.most is not None and self.total.letters(source) > limit.most:
            by = self.total.refused[source]
            return Excess(source, sum(by.values()), self.total.read.get(source, 0), by, first)
        if limit.share is None:
            return None
        window = self._window(source, limit.window)
        read, letters = window.read.get(source, 0), window.letters(source)
        if read >= limit.window and letters > limit.share * read:
            return Excess(source, letters, read, window.refused[source], first)
        return None

    def _window(self, source: str, records: int) -> Tally:
        """The newest epochs that have at least so many records of the source; all, if there are fewer."""
        window = Tally()
        for epoch in reversed(self.newest):
            if window.read.get(source, 0) >= records:
                break
            window = window.plus(epoch)
        return window


def _read(epochs: tuple[Tally, ...], source: str) -> int:
    return sum(epoch.read.get(source, 0) for epoch in epochs)


def described(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Counts by source and operator in words: ``12 dead letters (payments: 10 by checked, 2 by total)``."""
    total = sum(sum(by.values()) for by in counts.values())
    parts = (
        f"{name}: {', '.join(f'{n:,} by {operator}' for operator, n in by.items())}" for name, by in counts.items()
    )
    return f"{total:,} dead letter{'' if total == 1 else 's'} ({'; '.join(parts)})"
