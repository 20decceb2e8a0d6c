"""Watermark alignment on Spark: splits that are too far ahead are left out of the next epoch.

``protocol.watermark_alignment`` decides. Splits are not observed between epochs. So two kinds of split hold back no
other: a split that has nothing to read, and a split whose time did not advance although the last epoch read all of it.

Rule: the watermarks of splits are known from the epoch before. So the first epoch of a term reads no split that takes
part: it only reports the restored watermarks. Otherwise each recovery would let the fast splits advance one epoch
further.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import MIN_EVENT_TIME
from kafka_eos.plan import TimestampsNode
from kafka_eos.plan.watermarks import WatermarkAlignment
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.protocol.watermark_alignment import NO_SPLIT, SplitProgress, find_slowest, find_splits_ahead

if TYPE_CHECKING:
    from kafka_eos.spark.epoch_job import EpochResult


class SparkWatermarkAlignment:
    """Decides which splits the next epoch leaves out because they are too far ahead."""

    def __init__(self, aligned: Sequence[tuple[TimestampsNode, WatermarkAlignment]]) -> None:
        self._aligned = aligned
        self._times: Mapping[str, Mapping[str, int]] | None = None
        """How far each split is, by the operator that makes its watermarks; None before the first epoch."""
        self._read_up_to: dict[str, dict[SplitId, object]] = {node.source: {} for node, _ in aligned}
        self._still: dict[str, set[SplitId]] = {node.source: set() for node, _ in aligned}
        """Splits whose rows, when some were read last, were all there were, and took their times no further."""
        self.is_holding_back = False
        """Do splits that wait have something to be read?"""

    @property
    def is_initialized(self) -> bool:
        """Return whether event times are known, from an epoch of this term."""
        return self._times is not None

    def find_paused_splits(
        self, positions: Mapping[str, Positions], ends: Mapping[str, Positions], silent: Collection[str] = ()
    ) -> Mapping[str, Collection[SplitId]]:
        """Return, by source, the splits that the next epoch must not read.

        ``silent``: sources that wait for others, and are therefore excluded from the alignment.
        """
        waiting = self._ahead(positions, ends, silent)
        self.is_holding_back = any(
            not self._is_read(source, split, positions, ends) for source, splits in waiting.items() for split in splits
        )
        return waiting

    def _ahead(
        self, positions: Mapping[str, Positions], ends: Mapping[str, Positions], silent: Collection[str]
    ) -> Mapping[str, Collection[SplitId]]:
        if self._times is None:
            return {node.source: positions[node.source].keys() & ends[node.source].keys() for node, _ in self._aligned}
        slow: dict[str, int] = {}
        standings: dict[str, Mapping[str, SplitProgress]] = {}
        for node, alignment in self._aligned:
            known, splits = self._times.get(node.name, {}), positions[node.source]
            found: dict[str, SplitProgress] = {
                split: SplitProgress(known.get(split, MIN_EVENT_TIME), idle=False) for split in splits
            }
            read = {split for split in splits if self._is_read(node.source, split, positions, ends)}
            done = {*splits} if node.source in silent else read | self._still[node.source]
            standings[node.source] = found
            slow[alignment.group] = min(slow.get(alignment.group, NO_SPLIT), find_slowest(found, done))
        return {
            node.source: [
                SplitId(split)
                for split in find_splits_ahead(standings[node.source], slow[alignment.group], alignment.max_drift)
                if split in ends[node.source]
            ]
            for node, alignment in self._aligned
        }

    def record_epoch(self, before: Mapping[str, Positions], result: EpochResult, ends: Mapping[str, Positions]) -> None:
        """Take in the result of a decided epoch."""
        times, self._times = self._times or {}, result.acked.watermarks
        for node, _ in self._aligned:
            source = node.source
            was, unread = before[source], result.unread.get(source, ())
            at = bootstrap.connector_positions(result.acked.positions[source])
            for split in was.keys() & ends[source].keys():
                end, at_end = ends[source][split], split not in unread
                if at[split] != was[split]:
                    stood = _time(times, node, split) == _time(self._times, node, split)
                    (self._still[source].add if at_end and stood else self._still[source].discard)(split)
                # One that waited was to be read up to where it was: that says nothing of its end.
                if at_end and end != was[split]:
                    self._read_up_to[source][split] = end

    def _is_read(
        self, source: str, split: SplitId, positions: Mapping[str, Positions], ends: Mapping[str, Positions]
    ) -> bool:
        """Return whether the split has been read up to its end. A new end means that it has more to read."""
        end = ends[source].get(split)
        return end is None or end in (positions[source][split], self._read_up_to[source].get(split))


def _time(times: Mapping[str, Mapping[str, int]], node: TimestampsNode, split: SplitId) -> int | None:
    return times.get(node.name, {}).get(split)
