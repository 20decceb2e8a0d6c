"""How far event time has come: at a source from what its splits have brought, behind channels from their watermarks.

Pure: the clock is an argument, in seconds of any monotonic clock. Rules: the result never goes back; it is the least of
all inputs that are not idle, so what has said nothing yet holds it back until it speaks or is idle; where all are idle
none waits for another, and it is the greatest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kafka_eos.core.records import BEGINNING, Watermark
from kafka_eos.protocol.watermark_alignment import Standing

STEP = 1.0
"""Seconds between two looks that count at most: while nobody reads, no split can bring anything, and none is idle."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs that meet: the channels of an exchange, or the streams of a union."""

    heard: Mapping[Hashable, Watermark]
    """The newest watermark of each."""
    time: int = BEGINNING

    @classmethod
    def of(cls, inputs: Iterable[Hashable]) -> Inputs:
        """Inputs that have said nothing yet."""
        return cls(dict.fromkeys(inputs, Watermark()))

    def on(self, which: Hashable, watermark: Watermark) -> Inputs:
        """An input has come to ``watermark``. An older one than before changes its idleness only."""
        known = self.heard[which]
        newer = replace(watermark, time=max(known.time, watermark.time))
        heard = {**self.heard, which: newer}
        awake = [each.time for each in heard.values() if not each.idle]
        together = min(awake) if awake else max(each.time for each in heard.values())
        return Inputs(heard, max(self.time, together))

    @property
    def watermark(self) -> Watermark:
        """What all of them together have come to."""
        return Watermark(self.time, all(each.idle for each in self.heard.values()))


@dataclass(frozen=True, slots=True)
class Splits:
    """The splits of one source in one subtask, at the place where rows get their event times.

    ``delay``: by how much a row of a split may be older than the newest one before it, in milliseconds.
    ``idle_after``: seconds without a row after which a split is not waited for; None if it always is.
    ``clock_after``: seconds without a row after which time goes on in a split with the clock, from its newest row on.
    One that has none is not waited for then. None if time does not.
    """

    delay: int
    idle_after: float | None = None
    clock_after: float | None = None
    highest: Mapping[str, int] = field(default_factory=dict)
    """The newest event time of each split that has brought a row. What a checkpoint keeps."""
    quiet: Mapping[str, float] = field(default_factory=dict)
    """For how long each split that is read here has brought nothing."""
    looked: float | None = None
    time: int = BEGINNING
    paused: frozenset[str] = frozenset()
    """These are not read: what they bring then says nothing about their silence."""
    waived: frozenset[str] = frozenset()
    """These are not waited for, whatever they have brought: nothing that they bring now can be late."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Where the clock had taken a split when it was paused or went on, until it brings a row."""

    def assigned(self, splits: Iterable[str]) -> Splits:
        """These are read here from now on, too."""
        return replace(self, quiet={**dict.fromkeys(splits, 0.0), **self.quiet})

    def seen(self, newest: Mapping[str, int]) -> Splits:
        """Rows have come: the newest event time by split."""
        highest = {split: max(time, self.highest.get(split, time)) for split, time in newest.items()}
        return replace(
            self,
            highest={**self.highest, **highest},
            quiet={**self.quiet, **dict.fromkeys(newest, 0.0)},
            held={split: time for split, time in self.held.items() if split not in newest},
        )

    def pause(self, splits: Iterable[str]) -> Splits:
        """These, and no others, are not read from now on.

        Nobody knows whether one that waits, or has only just gone on, has rows: its silence begins anew, or event time
        would go on past them before they can be read.
        """
        changed = self.paused ^ (paused := frozenset(splits))
        return replace(
            self,
            paused=paused,
            quiet={**self.quiet, **dict.fromkeys(changed, 0.0)},
            held={**self.held, **{split: self._newest(split) for split in changed}},
        )

    def waive(self, splits: Iterable[str]) -> Splits:
        """These, and no others, are not waited for from now on: they are over, or their turn has not come.

        One whose turn comes now has been silent for no time at all.
        """
        waived = frozenset(splits)
        if waived == self.waived:
            return self
        back = (self.waived - waived) & self.quiet.keys()
        return replace(self, waived=waived, quiet={**self.quiet, **dict.fromkeys(back, 0.0)})

    def at(self, now: float) -> Splits:
        """It is ``now``, and somebody has just read: all that there was to be read has been told."""
        since = 0.0 if self.looked is None else min(max(now - self.looked, 0.0), STEP)
        unread = self.paused | self.waived
        quiet = {split: passed + since * (split not in unread) for split, passed in self.quiet.items()}
        return replace(self, looked=now, quiet=quiet).on()

    def on(self) -> Splits:
        """Event time goes on as far as is known. That does not say that nothing more could be read."""
        waited_for = [split for split in self.quiet if not self._is_idle(split)]
        come_to = [self._newest(split) for split in waited_for or self.quiet]
        together = (min if waited_for else max)(come_to, default=BEGINNING)
        return replace(self, time=max(self.time, together - self.delay - 1))

    @property
    def by_split(self) -> Mapping[str, int]:
        """How far each has come by itself, of those that have brought something."""
        return {split: each.time for split, each in self.standings.items() if each.time != BEGINNING}

    @property
    def standings(self) -> Mapping[str, Standing]:
        """Of each split that is read here."""
        return {split: Standing(self._time(split), self._is_idle(split)) for split in self.quiet}

    @property
    def watermark(self) -> Watermark:
        """As of the last look."""
        return Watermark(self.time, all(map(self._is_idle, self.quiet)))

    def _is_idle(self, split: str) -> bool:
        if split in self.waived:
            return True
        quiet, has_none = self.quiet[split], self.highest.get(split, BEGINNING) == BEGINNING
        return _passed(quiet, self.idle_after) or (has_none and _passed(quiet, self.clock_after))

    def _time(self, split: str) -> int:
        newest = self._newest(split)
        return BEGINNING if newest == BEGINNING else newest - self.delay - 1

    def _newest(self, split: str) -> int:
        """The newest event time of a split, or where the clock has taken it from there."""
        newest, quiet = self.held.get(split, self.highest.get(split, BEGINNING)), self.quiet[split]
        by_the_clock = newest != BEGINNING and _passed(quiet, self.clock_after)
        return newest + int(quiet * 1000) if by_the_clock else newest


def _passed(quiet: float, limit: float | None) -> bool:
    return limit is not None and quiet >= limit
