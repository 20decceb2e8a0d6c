"""Watermark alignment on Spark: splits that are too far ahead are left out of the next epoch.

``protocol.drift`` decides. Nobody watches splits between epochs: one that has nothing to read is not waited for.

Rule: how far splits are is known from the epoch before. So the first one of a term reads nothing of them: what was
restored of their times has to be told first, or each recovery would let the fast ones go one epoch further.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from kafka_eos.ids import SplitId
from kafka_eos.interfaces import Alignment, Positions
from kafka_eos.plan import Timestamps
from kafka_eos.protocol.drift import NOBODY, Standing, ahead, slowest
from kafka_eos.records import BEGINNING

if TYPE_CHECKING:
    from kafka_eos.spark.epochs import EpochResult


class Drift:
    """Of one term."""

    def __init__(self, aligned: Sequence[tuple[Timestamps, Alignment]]) -> None:
        self._aligned = aligned
        self._times: Mapping[str, Mapping[str, int]] | None = None
        """How far each split is, by the operator that makes its watermarks; None before the first epoch."""
        self._read_up_to: dict[str, dict[SplitId, object]] = {node.source: {} for node, _ in aligned}

    def waiting(
        self, positions: Mapping[str, Positions], ends: Mapping[str, Positions]
    ) -> Mapping[str, Collection[SplitId]]:
        """By source, splits that the next epoch, which is to read up to ``ends``, must not read."""
        if self._times is None:
            return {node.source: positions[node.source].keys() & ends[node.source].keys() for node, _ in self._aligned}
        slow: dict[str, int] = {}
        standings: dict[str, Mapping[str, Standing]] = {}
        for node, alignment in self._aligned:
            known, read = self._times.get(node.name, {}), self._read_up_to[node.source]
            found: dict[str, Standing] = {}
            for split in positions[node.source]:
                found[split] = Standing(known.get(split, BEGINNING), idle=False)
            done = [split for split in found if split not in ends[node.source] or _is_read(read, ends, node, split)]
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

    def decided(self, result: EpochResult, ends: Mapping[str, Positions]) -> None:
        """An epoch that was to read up to ``ends`` has happened."""
        self._times = result.acked.watermarks
        for source, read in self._read_up_to.items():
            unread = result.unread.get(source, frozenset())
            read.update({split: end for split, end in ends[source].items() if split not in unread})


def _is_read(read: Mapping[SplitId, object], ends: Mapping[str, Positions], node: Timestamps, split: str) -> bool:
    """Has the split nothing more to be read? A new end says that it has."""
    return read.get(SplitId(split)) == ends[node.source][SplitId(split)]
