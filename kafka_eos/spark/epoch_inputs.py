"""The positions between which an epoch reads, and the time at which the next epoch begins.

An epoch begins in one of these cases:

- there is something to read, and the interval is over;
- the last epoch did not read everything that was available: the next one begins at once;
- the interval is over, and a processing-time timer is due.

Splits that are paused for slower ones do not count as unread: a slow split may take its time. Exceptions are a bounded
run and a run that has just begun, which continue at once.

Rule: positions move exactly when an epoch is decided, and the next epoch begins there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from kafka_eos.coordination.coordinator import DISCOVERY_INTERVAL
from kafka_eos.coordination.sources import SourceCoordinator
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import TimestampsNode
from kafka_eos.plan.watermarks import WatermarkAlignment
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.runtime.state.ttl_clock import wall_clock
from kafka_eos.spark.watermark_alignment import SparkWatermarkAlignment

if TYPE_CHECKING:
    from kafka_eos.spark.epoch_job import EpochResult


class EpochInputs:
    """Positions, ends and timing of the epochs of one term. ``goal``: where each source may stop in a bounded run."""

    def __init__(
        self,
        sources: SourceCoordinator,
        positions: Mapping[str, Positions],
        cadence: Cadence,
        goal: Mapping[str, Positions] | None,
        aligned: Sequence[tuple[TimestampsNode, WatermarkAlignment]],
        meets: Mapping[str, Collection[str]],
        following: Collection[str],
        observe: Callable[..., None],
    ) -> None:
        """``aligned``, ``meets``, ``following``: see ``plan.Graph``."""
        self._sources = sources
        self._cadence = cadence
        self._goal = goal
        self._observe = observe
        self.positions: dict[str, Positions] = {name: dict(splits) for name, splits in positions.items()}
        self._drift = SparkWatermarkAlignment(aligned)
        self._meets = meets
        self._following = following
        self._awaited: Mapping[str, Sequence[str]] = {}
        """Tables that sources wait for, as last reported."""
        self._read_up_to: Mapping[str, Positions] | None = None
        self._more = False
        """Is the epoch at hand to be followed by one at once, because splits wait in it?"""
        self._wake: int | None = None
        self._asked = float("-inf")
        self._discovered = time.monotonic()

    @property
    def has_reached_goal(self) -> bool:
        """Return whether a bounded run has read everything."""
        return self._goal is not None and self._read_up_to is not None

    @property
    def holding(self) -> bool:
        """Return whether splits with unread input are paused for slower ones in the current epoch."""
        return self._drift.is_holding_back

    def is_due(self, at_once: bool) -> bool:
        """Return whether it is time to ask for new ends. ``at_once``: do not wait for the interval."""
        behind = self._read_up_to is None
        return at_once or behind or time.monotonic() >= self._cadence.next_trigger(self._asked, self._asked)

    def ends(self, *, timers: bool) -> Mapping[str, Positions] | None:
        """Return the ends of the next epoch, or None if it would be empty.

        It is empty if there is nothing to read and, with ``timers``, no timer is due.
        """
        self._asked = time.monotonic()
        if self._goal is not None:
            return None if self.has_reached_goal else self._together(self._goal)
        self._discover()
        ends = self._known(self._sources.end_positions(self.positions))
        due = timers and self._wake is not None and wall_clock() >= self._wake
        return None if ends == self._read_up_to and not due else self._together(ends)

    def _together(self, ends: Mapping[str, Positions]) -> Mapping[str, Positions]:
        """Return ``ends`` without paused splits and without sources that wait for tables."""
        held = bootstrap.WaitingSources.at_start(self._meets, self._following, self.positions)
        waiting, filling = (
            self._drift.find_paused_splits(_plain(self.positions), ends, held.ignored_by_watermarks),
            held.waiting_sources,
        )
        self._tell_who_waits()
        self._more = bool(filling) or (self.holding and (self._goal is not None or not self._drift.is_initialized))
        return {
            source: self._stopped(source, splits, splits.keys() if source in filling else waiting.get(source, ()))
            for source, splits in ends.items()
        }

    def _tell_who_waits(self) -> None:
        missing = bootstrap.awaited_sources(self._meets, self.positions)
        if missing != self._awaited:
            self._awaited = missing
            self._observe("tables", waiting=missing)

    def _stopped(self, source: str, ends: Positions, waiting: Collection[SplitId]) -> Positions:
        at = self.positions[source]
        return {**ends, **{split: at[split] for split in waiting if split in at}}

    def _known(self, ends: Mapping[str, Positions]) -> Mapping[str, Positions]:
        """Return ``ends`` without splits that are not discovered yet: they are not read."""
        return {
            source: {split: end for split, end in splits.items() if split in self.positions[source]}
            for source, splits in ends.items()
        }

    def record_epoch(self, result: EpochResult, ends: Mapping[str, Positions]) -> None:
        """Move the positions to the end of a decided epoch."""
        self._drift.record_epoch(_plain(self.positions), result, _plain(ends))
        read = result.acked.positions
        self.positions = {name: {**known, **read.get(name, {})} for name, known in self.positions.items()}
        self._read_up_to = None if self._more or any(result.unread.values()) else ends
        self._wake = result.wake

    def _discover(self) -> None:
        if time.monotonic() < self._discovered + DISCOVERY_INTERVAL:
            return
        self._discovered = time.monotonic()
        for source, positions in self._sources.discover_splits(self.positions).items():
            self.positions = {**self.positions, source: {**self.positions[source], **positions}}
            self._observe("splits", source=source, splits=sorted(positions))


def _plain(positions: Mapping[str, Positions]) -> Mapping[str, Positions]:
    """Return positions in the connectors' form, without the notes about waiting sources, to compare them."""
    return {source: bootstrap.connector_positions(splits) for source, splits in positions.items()}
