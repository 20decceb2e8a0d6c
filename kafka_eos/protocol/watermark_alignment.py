"""Which splits wait for slower ones: watermark alignment. (``protocol.barrier_alignment`` is that of barriers.)

Pure. The splits of one group wait for the slowest of them: one that is further ahead than it may be is not read.
Rules: the slowest itself is never ahead, so one of those that are waited for can always be read; nobody waits for a
split that is idle, or done; while a split that is waited for has told no time, only such splits are read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Final

from kafka_eos.core.records import BEGINNING

ROUND: Final = 0.05
"""Seconds between two rounds in which subtasks hear of each other, at least."""
NOBODY: Final = 2**63 - 1
"""In place of the time of the slowest: there is nobody to wait for."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a split has come by itself: its watermark, ``BEGINNING`` if nothing is known; and whether it is idle."""

    time: int
    idle: bool


def slowest(standings: Mapping[str, Standing], done: Collection[str]) -> int:
    """The time of the slowest split that is waited for. ``done``: splits that have nothing more to be read."""
    return min((each.time for split, each in standings.items() if not each.idle and split not in done), default=NOBODY)


def ahead(standings: Mapping[str, Standing], slowest: int, max_drift: int) -> frozenset[str]:
    """Splits that must wait. ``max_drift``: by how much one may be ahead of ``slowest``, in milliseconds."""
    limit = BEGINNING if slowest == BEGINNING else slowest + max_drift
    return frozenset(split for split, each in standings.items() if each.time > limit)


@dataclass(frozen=True, slots=True)
class Slowest:
    """What all subtasks have said of their slowest splits, by group."""

    heard: Mapping[int, Mapping[str, int] | None]

    @classmethod
    def of(cls, subtasks: Iterable[int]) -> Slowest:
        """Nobody has said anything yet."""
        return cls(dict.fromkeys(subtasks))

    def on(self, subtask: int, said: Mapping[str, int]) -> Slowest:
        return replace(self, heard={**self.heard, subtask: said})

    def elsewhere(self) -> Mapping[int, Mapping[str, int]]:
        """For each subtask the slowest of all others, by group; without those of which another one has said nothing."""
        known = {subtask: said for subtask, said in self.heard.items() if said is not None}
        silent = self.heard.keys() - known.keys()
        knowing = self.heard.keys() if not silent else silent if len(silent) == 1 else ()
        found: dict[int, dict[str, int]] = {subtask: {} for subtask in knowing if len(known) > (subtask in known)}
        for group in next(iter(known.values()), ()):
            # The slowest of all others is the slowest of all, or behind that one itself the next.
            (least, where), (second, _) = nsmallest(2, [*((said[group], n) for n, said in known.items()), (NOBODY, -1)])
            for subtask, words in found.items():
                words[group] = second if subtask == where else least
        return found


@dataclass(frozen=True, slots=True)
class Rounds:
    """When subtasks are told of the slowest splits elsewhere: in rounds, one for all that was said since the last.

    So words do not grow with the square of the subtasks. The clock is an argument, in seconds.
    """

    slowest: Slowest
    told: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    last: float = -math.inf
    due: float = math.inf
    """When the next round is; never while nobody has said anything new."""

    def on(self, subtask: int, said: Mapping[str, int], now: float) -> Rounds:
        due = min(self.due, max(now, self.last + ROUND))
        return replace(self, slowest=self.slowest.on(subtask, said), due=due)

    def words(self, now: float) -> tuple[Rounds, Mapping[int, Mapping[str, int]]]:
        """What to tell whom: those for whom the slowest split elsewhere is another one now."""
        if now < self.due:
            return self, {}
        elsewhere = self.slowest.elsewhere()
        news = {subtask: each for subtask, each in elsewhere.items() if self.told.get(subtask) != each}
        return replace(self, told=elsewhere, last=now, due=math.inf), news
