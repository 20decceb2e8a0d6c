"""Watermarks of a source, from the rows of its splits, and of an operator, from the watermarks of its inputs.

Pure: the clock is an argument, in seconds of any monotonic clock. Rules:
- A watermark never goes back.
- It is the least of all inputs that are not idle. An input without a watermark holds it back until the input sends one
  or becomes idle.
- If all inputs are idle, none waits for another, and the watermark is the greatest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from kafka_eos.core.records import MIN_EVENT_TIME, Watermark
from kafka_eos.protocol.watermark_alignment import SplitProgress

STEP = 1.0
"""Most seconds between two checks that count as idle time: while nothing is read, no split can become idle."""


class InputWatermarks(Struct, frozen=True):
    """The watermarks of several inputs, and the combined watermark."""

    by_input: Mapping[Hashable, Watermark]
    """The newest watermark of each input."""
    time: int = MIN_EVENT_TIME

    @classmethod
    def of(cls, inputs: Iterable[Hashable]) -> InputWatermarks:
        """Return the watermarks of inputs that have not sent one yet."""
        return cls(dict.fromkeys(inputs, Watermark()))

    def update(self, which: Hashable, watermark: Watermark) -> InputWatermarks:
        """Record the watermark of one input. A watermark older than the last one changes only the input's idleness."""
        known = self.by_input[which]
        newer = replace(watermark, time=max(known.time, watermark.time))
        updated = {**self.by_input, which: newer}
        awake = [each.time for each in updated.values() if not each.idle]
        together = min(awake) if awake else max(each.time for each in updated.values())
        return InputWatermarks(updated, max(self.time, together))

    @property
    def watermark(self) -> Watermark:
        """Return the combined watermark of all inputs."""
        return Watermark(self.time, all(each.idle for each in self.by_input.values()))


class SplitWatermarks(Struct, frozen=True):
    """The watermarks of the splits of one source in one subtask.

    ``delay``: how much older a row may be than the newest row before it in its split, in milliseconds.
    ``idle_after``: seconds without a row after which a split is idle; None if it never is.
    ``clock_after``: seconds without a row after which a split's event time advances with the clock, from its newest
    row.
    A split without rows is idle then. None if event time never advances with the clock.
    """

    delay: int
    idle_after: float | None = None
    clock_after: float | None = None
    highest: Mapping[str, int] = field(default_factory=dict)
    """The newest event time of each split that has delivered a row. It is stored in checkpoints."""
    silent_for: Mapping[str, float] = field(default_factory=dict)
    """Seconds since each split last delivered a row."""
    checked_at: float | None = None
    time: int = MIN_EVENT_TIME
    paused: frozenset[str] = frozenset()
    """Splits that are not read now, so they are not idle although they have no rows."""
    ignored: frozenset[str] = frozenset()
    """Splits that do not hold back the watermark."""
    clock_times: Mapping[str, int] = field(default_factory=dict)
    """The event time to which the clock had advanced a split when it was paused or resumed."""

    def add_splits(self, splits: Iterable[str]) -> SplitWatermarks:
        """Add splits that are read here from now on."""
        return replace(self, silent_for={**dict.fromkeys(splits, 0.0), **self.silent_for})

    def record_rows(self, newest: Mapping[str, int]) -> SplitWatermarks:
        """Record the newest event time of each split that delivered rows."""
        highest = {split: max(time, self.highest.get(split, time)) for split, time in newest.items()}
        return replace(
            self,
            highest={**self.highest, **highest},
            silent_for={**self.silent_for, **dict.fromkeys(newest, 0.0)},
            clock_times={split: time for split, time in self.clock_times.items() if split not in newest},
        )

    def pause(self, splits: Iterable[str]) -> SplitWatermarks:
        """Pause exactly these splits.

        The idle time of a split that is paused, or resumed just now, restarts from zero, because it may have rows.
        Otherwise the watermark would pass them before they can be read.
        """
        changed = self.paused ^ (paused := frozenset(splits))
        return replace(
            self,
            paused=paused,
            silent_for={**self.silent_for, **dict.fromkeys(changed, 0.0)},
            clock_times={**self.clock_times, **{split: self._newest(split) for split in changed}},
        )

    def ignore(self, splits: Iterable[str]) -> SplitWatermarks:
        """Exclude exactly these splits from the watermark.

        The idle time of a split that is no longer excluded starts from zero.
        """
        waived = frozenset(splits)
        if waived == self.ignored:
            return self
        back = (self.ignored - waived) & self.silent_for.keys()
        return replace(self, ignored=waived, silent_for={**self.silent_for, **dict.fromkeys(back, 0.0)})

    def advance_to(self, now: float) -> SplitWatermarks:
        """Advance the clock after a read, and recompute idleness and the watermark."""
        since = 0.0 if self.checked_at is None else min(max(now - self.checked_at, 0.0), STEP)
        unread = self.paused | self.ignored
        quiet = {split: passed + since * (split not in unread) for split, passed in self.silent_for.items()}
        return replace(self, checked_at=now, silent_for=quiet).advance()

    def advance(self) -> SplitWatermarks:
        """Advance the watermark as far as is known. The result does not imply that nothing more could be read."""
        waited_for = [split for split in self.silent_for if not self._is_idle(split)]
        come_to = [self._newest(split) for split in waited_for or self.silent_for]
        together = (min if waited_for else max)(come_to, default=MIN_EVENT_TIME)
        return replace(self, time=max(self.time, together - self.delay - 1))

    @property
    def by_split(self) -> Mapping[str, int]:
        """Return the watermark of each split that has delivered a row."""
        return {split: each.time for split, each in self.progress.items() if each.time != MIN_EVENT_TIME}

    @property
    def progress(self) -> Mapping[str, SplitProgress]:
        """Return the watermark and idleness of each split."""
        return {split: SplitProgress(self._time(split), self._is_idle(split)) for split in self.silent_for}

    @property
    def watermark(self) -> Watermark:
        """Return the combined watermark as of the last check."""
        return Watermark(self.time, all(map(self._is_idle, self.silent_for)))

    def _is_idle(self, split: str) -> bool:
        if split in self.ignored:
            return True
        quiet, has_none = self.silent_for[split], self.highest.get(split, MIN_EVENT_TIME) == MIN_EVENT_TIME
        return _passed(quiet, self.idle_after) or (has_none and _passed(quiet, self.clock_after))

    def _time(self, split: str) -> int:
        newest = self._newest(split)
        return MIN_EVENT_TIME if newest == MIN_EVENT_TIME else newest - self.delay - 1

    def _newest(self, split: str) -> int:
        """Return the newest event time of a split, or the time to which the clock has advanced it."""
        newest, quiet = self.clock_times.get(split, self.highest.get(split, MIN_EVENT_TIME)), self.silent_for[split]
        by_the_clock = newest != MIN_EVENT_TIME and _passed(quiet, self.clock_after)
        return newest + int(quiet * 1000) if by_the_clock else newest


def _passed(quiet: float, limit: float | None) -> bool:
    return limit is not None and quiet >= limit
