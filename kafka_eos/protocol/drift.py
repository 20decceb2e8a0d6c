"""Which splits wait for slower ones: watermark alignment. (``protocol.alignment`` is that of barriers.)

Pure. The splits of one group wait for the slowest of them: one that is further ahead than it may be is not read.
Rules: the slowest itself is never ahead, so one of those that are waited for can always be read; nobody waits for a
split that is idle, or done; while a split that is waited for has told no time, only such splits are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kafka_eos.records import BEGINNING

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

    def elsewhere(self, subtask: int) -> Mapping[str, int] | None:
        """The slowest of all others, by group; None while one of them has said nothing."""
        others = [said for other, said in self.heard.items() if other != subtask]
        if None in others:
            return None
        known = [said for said in others if said is not None]
        return {group: min(said[group] for said in known) for said in known[:1] for group in said}
