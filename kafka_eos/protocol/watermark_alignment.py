"""Watermark alignment: which splits pause for slower ones. (``protocol.barrier_alignment`` aligns barriers.)

Pure. The splits of one group wait for the slowest of them: a split that is too far ahead is not read.
Rules:
- The slowest split is never ahead, so one of the splits that are waited for can always be read.
- No split waits for a split that is idle or finished.
- While a split that is waited for has no event time yet, only such splits are read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from heapq import nsmallest
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from kafka_eos.core.records import MIN_EVENT_TIME

ROUND: Final = 0.05
"""Least seconds between two rounds in which subtasks receive each other's watermarks."""
NO_SPLIT: Final = 2**63 - 1
"""The watermark that means "no split to wait for"."""


class SplitProgress(Struct, frozen=True):
    """The watermark of one split, and whether it is idle."""

    time: int
    idle: bool


def find_slowest(progress: Mapping[str, SplitProgress], done: Collection[str]) -> int:
    """Return the watermark of the slowest split that is waited for.

    ``done``: splits that have nothing more to read.
    """
    return min((each.time for split, each in progress.items() if not each.idle and split not in done), default=NO_SPLIT)


def find_splits_ahead(progress: Mapping[str, SplitProgress], slowest: int, max_drift: int) -> frozenset[str]:
    """Return the splits that must pause because they are too far ahead.

    ``max_drift``: how far a split may be ahead of ``find_slowest``, in milliseconds.
    """
    limit = MIN_EVENT_TIME if slowest == MIN_EVENT_TIME else slowest + max_drift
    return frozenset(split for split, each in progress.items() if each.time > limit)


class SlowestSplits(Struct, frozen=True):
    """The watermark of the slowest split of each subtask, by alignment group."""

    by_subtask: Mapping[int, Mapping[str, int] | None]

    @classmethod
    def of(cls, subtasks: Iterable[int]) -> SlowestSplits:
        """Return a state in which no subtask has reported yet."""
        return cls(dict.fromkeys(subtasks))

    def update(self, subtask: int, by_group: Mapping[str, int]) -> SlowestSplits:
        return replace(self, by_subtask={**self.by_subtask, subtask: by_group})

    def of_others(self) -> Mapping[int, Mapping[str, int]]:
        """Return, for each subtask, the slowest watermark of all other subtasks."""
        known = {subtask: by_group for subtask, by_group in self.by_subtask.items() if by_group is not None}
        silent = self.by_subtask.keys() - known.keys()
        knowing = self.by_subtask.keys() if not silent else silent if len(silent) == 1 else ()
        found: dict[int, dict[str, int]] = {subtask: {} for subtask in knowing if len(known) > (subtask in known)}
        for group in next(iter(known.values()), ()):
            # For the subtask that has the slowest of all, the slowest of the others is the second slowest.
            (least, where), (second, _) = nsmallest(
                2, [*((by_group[group], n) for n, by_group in known.items()), (NO_SPLIT, -1)]
            )
            for subtask, words in found.items():
                words[group] = second if subtask == where else least
        return found


class AlignmentRounds(Struct, frozen=True):
    """The rounds in which subtasks receive the slowest watermarks of the others.

    Rounds keep the number of messages from growing with the square of the subtasks. The clock is an argument, in
    seconds.
    """

    find_slowest: SlowestSplits
    sent: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    last: float = -math.inf
    due: float = math.inf
    """The time of the next round; infinite while no subtask has reported anything new."""

    def on(self, subtask: int, by_group: Mapping[str, int], now: float) -> AlignmentRounds:
        due = min(self.due, max(now, self.last + ROUND))
        return replace(self, find_slowest=self.find_slowest.update(subtask, by_group), due=due)

    def take_updates(self, now: float) -> tuple[AlignmentRounds, Mapping[int, Mapping[str, int]]]:
        """Return the changed watermarks to send, by subtask."""
        if now < self.due:
            return self, {}
        elsewhere = self.find_slowest.of_others()
        news = {subtask: each for subtask, each in elsewhere.items() if self.sent.get(subtask) != each}
        return replace(self, sent=elsewhere, last=now, due=math.inf), news
