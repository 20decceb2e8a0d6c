"""Watermark alignment in one worker: splits that are too far ahead are not read for a while.

``protocol.watermark_alignment`` decides. Each worker knows how far its own splits are; of those of the others it hears
from the supervisor, which nobody waits for: it is told what has changed, and tells it on.

Rule: splits are paused and go on between two reads, so one is ahead by no more than it may and one read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_eos.abc.source import Reader
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import BEGINNING
from kafka_eos.plan import Plan
from kafka_eos.plan.watermarks import Alignment
from kafka_eos.protocol.watermark_alignment import NOBODY, Standing, ahead, slowest
from kafka_eos.runtime.operators.operator import Generating
from kafka_eos.runtime.worker.task_stats import Held


@dataclass(slots=True)
class _Aligned:
    """One source of a group. ``ends``: where it may stop in a bounded run."""

    source: str
    reader: Reader[Any]
    making: Generating
    alignment: Alignment
    waits_for_idle: bool
    """Is it the strategy that says when a split is not waited for? Else it is not when all that is there is read."""
    ends: Positions
    paused: frozenset[str] = frozenset()

    def slowest(self, standings: Mapping[str, Standing]) -> int:
        return slowest(standings, self.done)

    @property
    def done(self) -> set[str]:
        """Splits that have nothing more to be read."""
        done: set[str] = set() if self.waits_for_idle else set(self.reader.at_end())
        return done | {split for split, end in self.ends.items() if self.reader.reached({split: end})}

    def pause(self, splits: frozenset[str]) -> None:
        if splits != self.paused:
            self.paused = splits
            self.reader.pause([SplitId(split) for split in splits])
            self.making.pause(splits)


@dataclass(slots=True)
class Drift:
    """Of one worker. ``here``: its slowest split of each group, when it looked last."""

    _aligned: list[_Aligned]
    here: Mapping[str, int]
    _elsewhere: Mapping[str, int]
    _told: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plan: Plan,
        readers: Mapping[str, Reader[Any]],
        making: Callable[[str], Generating],
        ends: Mapping[str, Positions],
        alone: bool,
    ) -> Drift:
        """``making`` gives an operator that makes watermarks by its name; ``alone``: no other worker reads anything."""
        found = [
            _Aligned(
                node.source,
                readers[node.source],
                making(node.name),
                alignment,
                node.strategy.idle_after is not None,
                ends.get(node.source, {}),
            )
            for node, alignment in plan.aligned
        ]
        groups = {aligned.alignment.group for aligned in found}
        return cls(found, dict.fromkeys(groups, NOBODY), dict.fromkeys(groups, NOBODY if alone else BEGINNING))

    def hear(self, elsewhere: Mapping[str, int]) -> None:
        """How far the slowest splits of all other workers are, by group."""
        self._elsewhere = elsewhere

    def look(self) -> None:
        """Pause splits that are too far ahead, and let others go on. To be called before each read."""
        if not self._aligned:
            return
        standings = [aligned.making.standings() for aligned in self._aligned]
        here = dict.fromkeys(self.here, NOBODY)
        for aligned, each in zip(self._aligned, standings, strict=True):
            group = aligned.alignment.group
            here[group] = min(here[group], aligned.slowest(each))
        self.here = here
        for aligned, each in zip(self._aligned, standings, strict=True):
            group = aligned.alignment.group
            aligned.pause(ahead(each, min(here[group], self._elsewhere[group]), aligned.alignment.max_drift))

    def held(self) -> dict[str, Held]:
        """Who waits, and for whom it would be if nobody elsewhere was slower, by group."""
        slowest: dict[str, list[tuple[int, str, str]]] = {}
        waiting: dict[str, dict[str, list[str]]] = {}
        for aligned in self._aligned:
            group, done = aligned.alignment.group, aligned.done
            slowest.setdefault(group, []).extend(
                (each.time, aligned.source, split)
                for split, each in aligned.making.standings().items()
                if not each.idle and split not in done
            )
            waiting.setdefault(group, {})
            if aligned.paused:
                waiting[group][aligned.source] = sorted(aligned.paused)
        found = {group: min(each, default=(NOBODY, "", "")) for group, each in slowest.items()}
        return {
            group: Held((source, split) if source else None, time, waiting[group])
            for group, (time, source, split) in found.items()
        }

    def news(self) -> Mapping[str, int] | None:
        """``here``, if the others have not been told."""
        if self._told == self.here:
            return None
        self._told = self.here
        return self.here
