"""What an epoch reads: from where, up to where, and when it is time for one.

An epoch begins when there is something to read and the interval is over, or at once while the last one could not read
all there was; and when the interval is over and the clock has come to a timer. What waits for slower splits is not
behind: a slow one may take its time. But a bounded run goes on at once, and so does one that has just begun.

Rule: positions move when an epoch is decided, not before and not later: the next one begins there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from kafka_eos.coordination.coordinator import DISCOVERY_INTERVAL, Coordinator
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import Timestamps
from kafka_eos.plan.watermarks import Alignment
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.runtime.state.ttl_clock import wall_clock
from kafka_eos.spark.watermark_alignment import Drift

if TYPE_CHECKING:
    from kafka_eos.spark.epoch_job import EpochResult


class Inputs:
    """Of one term. ``goal``: where each source may stop in a bounded run."""

    def __init__(
        self,
        coordinator: Coordinator,
        positions: Mapping[str, Positions],
        cadence: Cadence,
        goal: Mapping[str, Positions] | None,
        aligned: Sequence[tuple[Timestamps, Alignment]],
        meets: Mapping[str, Collection[str]],
        following: Collection[str],
        observe: Callable[..., None],
    ) -> None:
        """``aligned``, ``meets``, ``following``: see ``plan.Graph``."""
        self._coordinator, self._cadence, self._goal, self._observe = coordinator, cadence, goal, observe
        self.positions: dict[str, Positions] = {name: dict(splits) for name, splits in positions.items()}
        self._drift, self._meets, self._following = Drift(aligned), meets, following
        self._awaited: Mapping[str, Sequence[str]] = {}
        """Tables that sources wait for, as it was told."""
        self._read_up_to: Mapping[str, Positions] | None = None
        self._more = False
        """Is the epoch at hand to be followed by one at once, because splits wait in it?"""
        self._wake: int | None = None
        self._asked = float("-inf")
        self._discovered = time.monotonic()

    @property
    def at_goal(self) -> bool:
        """Is everything read that a bounded run is to read?"""
        return self._goal is not None and self._read_up_to is not None

    @property
    def holding(self) -> bool:
        """Do splits wait for slower ones, in the epoch at hand, that have something to be read?"""
        return self._drift.holding

    def due(self, at_once: bool) -> bool:
        """Is it time to ask for the ends? ``at_once``: do not wait for the interval."""
        behind = self._read_up_to is None
        return at_once or behind or time.monotonic() >= self._cadence.next_trigger(self._asked, self._asked)

    def ends(self, *, timers: bool) -> Mapping[str, Positions] | None:
        """Up to where the next epoch reads; None if nothing is new. ``timers``: and none of the clock is due."""
        self._asked = time.monotonic()
        if self._goal is not None:
            return None if self.at_goal else self._together(self._goal)
        self._discover()
        ends = self._known(self._coordinator.ends(self.positions))
        due = timers and self._wake is not None and wall_clock() >= self._wake
        return None if ends == self._read_up_to and not due else self._together(ends)

    def _together(self, ends: Mapping[str, Positions]) -> Mapping[str, Positions]:
        """Without splits that wait for slower ones, and sources that wait for tables: they stay where they are."""
        held = bootstrap.Held.at_start(self._meets, self._following, self.positions)
        waiting, filling = self._drift.waiting(_plain(self.positions), ends, held.silent), held.waiting
        self._tell_who_waits()
        self._more = bool(filling) or (self.holding and (self._goal is not None or not self._drift.knows))
        return {
            source: self._stopped(source, splits, splits.keys() if source in filling else waiting.get(source, ()))
            for source, splits in ends.items()
        }

    def _tell_who_waits(self) -> None:
        missing = bootstrap.missing(self._meets, self.positions)
        if missing != self._awaited:
            self._awaited = missing
            self._observe("tables", waiting=missing)

    def _stopped(self, source: str, ends: Positions, waiting: Collection[SplitId]) -> Positions:
        at = self.positions[source]
        return {**ends, **{split: at[split] for split in waiting if split in at}}

    def _known(self, ends: Mapping[str, Positions]) -> Mapping[str, Positions]:
        """Without splits that were not discovered yet: nothing is read of them, so nothing is read up to their ends."""
        return {
            source: {split: end for split, end in splits.items() if split in self.positions[source]}
            for source, splits in ends.items()
        }

    def decided(self, result: EpochResult, ends: Mapping[str, Positions]) -> None:
        """An epoch that was to read up to ``ends`` has happened."""
        self._drift.decided(_plain(self.positions), result, _plain(ends))
        read = result.acked.positions
        self.positions = {name: {**known, **read.get(name, {})} for name, known in self.positions.items()}
        self._read_up_to = None if self._more or any(result.unread.values()) else ends
        self._wake = result.wake

    def _discover(self) -> None:
        if time.monotonic() < self._discovered + DISCOVERY_INTERVAL:
            return
        self._discovered = time.monotonic()
        for source, positions in self._coordinator.discover(self.positions).items():
            self.positions = {**self.positions, source: {**self.positions[source], **positions}}
            self._observe("splits", source=source, splits=sorted(positions))


def _plain(positions: Mapping[str, Positions]) -> Mapping[str, Positions]:
    """As the connectors know them: what is noted for others that wait is no difference."""
    return {source: bootstrap.plain(splits) for source, splits in positions.items()}
