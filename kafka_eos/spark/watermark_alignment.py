"""Watermark alignment on Spark: splits that are too far ahead are left out of the next epoch.

``protocol.watermark_alignment`` decides. Nobody watches splits between epochs: one that has nothing to read is not
waited for, nor one of which the last epoch has read all there was without its time going on.

Rule: how far splits are is known from the epoch before. So the first one of a term reads nothing of them: what was
restored of their times has to be told first, or each recovery would let the fast ones go one epoch further.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import BEGINNING
from kafka_eos.plan import Timestamps
from kafka_eos.plan.watermarks import Alignment
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.protocol.watermark_alignment import NOBODY, Standing, ahead, slowest

if TYPE_CHECKING:
    from kafka_eos.spark.epoch_job import EpochResult


class Drift:
    """Of one term."""

    def __init__(self, aligned: Sequence[tuple[Timestamps, Alignment]]) -> None:
        self._aligned = aligned
        self._times: Mapping[str, Mapping[str, int]] | None = None
        """How far each split is, by the operator that makes its watermarks; None before the first epoch."""
        self._read_up_to: dict[str, dict[SplitId, object]] = {node.source: {} for node, _ in aligned}
        self._still: dict[str, set[SplitId]] = {node.source: set() for node, _ in aligned}
        """Splits whose rows, when some were read last, were all there were, and took their times no further."""
        self.holding = False
        """Do splits that wait have something to be read?"""

    @property
    def knows(self) -> bool:
        """Has it been told how far splits are?"""
        return self._times is not None

    def waiting(
        self, positions: Mapping[str, Positions], ends: Mapping[str, Positions], silent: Collection[str] = ()
    ) -> Mapping[str, Collection[SplitId]]:
        """By source, splits that the next epoch, which is to read up to ``ends``, must not read.

        ``silent``: sources that are not read before others are, so nobody waits for them.
        """
        waiting = self._ahead(positions, ends, silent)
        self.holding = any(
            not self._is_read(source, split, positions, ends) for source, splits in waiting.items() for split in splits
        )
        return waiting

    def _ahead(
        self, positions: Mapping[str, Positions], ends: Mapping[str, Positions], silent: Collection[str]
    ) -> Mapping[str, Collection[SplitId]]:
        if self._times is None:
            return {node.source: positions[node.source].keys() & ends[node.source].keys() for node, _ in self._aligned}
        slow: dict[str, int] = {}
        standings: dict[str, Mapping[str, Standing]] = {}
        for node, alignment in self._aligned:
            known, splits = self._times.get(node.name, {}), positions[node.source]
            found: dict[str, Standing] = {split: Standing(known.get(split, BEGINNING), idle=False) for split in splits}
            read = {split for split in splits if self._is_read(node.source, split, positions, ends)}
            done = {*splits} if node.source in silent else read | self._still[node.source]
            standings[node.source] = found
            slow[alignment.group] = min(slow.get(alignment.group, NOBODY), slowest(found, done))
        return {
            node.source: [
                SplitId(split)
                for split in ahead(standings[node.source], slow[alignment.group], alignment.max_drift)
                if split in ends[node.source]
            ]
            for node, alignment in self._aligned
        }

    def decided(self, before: Mapping[str, Positions], result: EpochResult, ends: Mapping[str, Positions]) -> None:
        """An epoch that was to read from ``before`` up to ``ends`` has happened."""
        times, self._times = self._times or {}, result.acked.watermarks
        for node, _ in self._aligned:
            source = node.source
            was, unread = before[source], result.unread.get(source, ())
            at = bootstrap.plain(result.acked.positions[source])
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
        """Has the split nothing more to be read? A new end says that it has."""
        end = ends[source].get(split)
        return end is None or end in (positions[source][split], self._read_up_to[source].get(split))


def _time(times: Mapping[str, Mapping[str, int]], node: Timestamps, split: SplitId) -> int | None:
    return times.get(node.name, {}).get(split)
