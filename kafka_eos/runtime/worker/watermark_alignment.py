"""Watermark alignment in one worker: splits that are too far ahead are paused.

``protocol.watermark_alignment`` decides. Each worker knows the event time of its own splits. The supervisor forwards
that of the others when it changes; no worker waits for it.

Rule: splits are paused and resumed between two reads, so one is ahead by at most the allowed drift and one read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from kafka_eos.abc.source import Reader
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import MIN_EVENT_TIME
from kafka_eos.plan import Plan
from kafka_eos.plan.watermarks import WatermarkAlignment
from kafka_eos.protocol.watermark_alignment import NO_SPLIT, SplitProgress, find_slowest, find_splits_ahead
from kafka_eos.runtime.operators.watermark_generation import TimestampsOperator
from kafka_eos.runtime.worker.task_stats import AlignmentStatus


class _AlignedSource(Struct):
    """One source of an alignment group, with its reader and watermark operator.

    ``ends``: where it may stop in a bounded run.
    """

    source: str
    reader: Reader[Any]
    making: TimestampsOperator
    alignment: WatermarkAlignment
    waits_for_idle: bool
    """Whether the strategy detects idle splits. Otherwise a split is ignored when it was read to its current end."""
    ends: Positions
    paused: frozenset[str] = frozenset()

    def slowest(self, progress: Mapping[str, SplitProgress]) -> int:
        return find_slowest(progress, self.done)

    @property
    def done(self) -> set[str]:
        """Return the splits that have been read completely."""
        done: set[str] = set() if self.waits_for_idle else set(self.reader.list_splits_at_end())
        return done | {split for split, end in self.ends.items() if self.reader.has_reached({split: end})}

    def pause(self, splits: frozenset[str]) -> None:
        if splits != self.paused:
            self.paused = splits
            self.reader.pause([SplitId(split) for split in splits])
            self.making.pause(splits)


class WatermarkAligner(Struct):
    """Pauses this worker's splits that are ahead of their alignment group.

    ``local_slowest``: its slowest split of each group at the last update.
    """

    _aligned: list[_AlignedSource]
    local_slowest: Mapping[str, int]
    _elsewhere: Mapping[str, int]
    _last_reported: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plan: Plan,
        readers: Mapping[str, Reader[Any]],
        making: Callable[[str], TimestampsOperator],
        ends: Mapping[str, Positions],
        alone: bool,
    ) -> WatermarkAligner:
        """Create it from a plan.

        ``making`` returns the watermark operator of a name; ``alone``: no other worker reads.
        """
        found = [
            _AlignedSource(
                node.source,
                readers[node.source],
                making(node.name),
                alignment,
                node.strategy.idle_after is not None,
                ends.get(node.source, {}),
            )
            for node, alignment in plan.watermark_alignments
        ]
        groups = {aligned.alignment.group for aligned in found}
        return cls(found, dict.fromkeys(groups, NO_SPLIT), dict.fromkeys(groups, NO_SPLIT if alone else MIN_EVENT_TIME))

    def set_remote_slowest(self, elsewhere: Mapping[str, int]) -> None:
        """Take the slowest splits of all other workers."""
        self._elsewhere = elsewhere

    def update_pauses(self) -> None:
        """Pause splits that are too far ahead and resume the others; called before each read."""
        if not self._aligned:
            return
        progress = [aligned.making.get_split_progress() for aligned in self._aligned]
        here = dict.fromkeys(self.local_slowest, NO_SPLIT)
        for aligned, each in zip(self._aligned, progress, strict=True):
            group = aligned.alignment.group
            here[group] = min(here[group], aligned.slowest(each))
        self.local_slowest = here
        for aligned, each in zip(self._aligned, progress, strict=True):
            group = aligned.alignment.group
            aligned.pause(
                find_splits_ahead(each, min(here[group], self._elsewhere[group]), aligned.alignment.max_drift)
            )

    def describe_groups(self) -> dict[str, AlignmentStatus]:
        """Return the AlignmentStatus of each group."""
        slowest: dict[str, list[tuple[int, str, str]]] = {}
        waiting: dict[str, dict[str, list[str]]] = {}
        for aligned in self._aligned:
            group, done = aligned.alignment.group, aligned.done
            slowest.setdefault(group, []).extend(
                (each.time, aligned.source, split)
                for split, each in aligned.making.get_split_progress().items()
                if not each.idle and split not in done
            )
            waiting.setdefault(group, {})
            if aligned.paused:
                waiting[group][aligned.source] = sorted(aligned.paused)
        found = {group: min(each, default=(NO_SPLIT, "", "")) for group, each in slowest.items()}
        return {
            group: AlignmentStatus((source, split) if source else None, time, waiting[group])
            for group, (time, source, split) in found.items()
        }

    def take_changes(self) -> Mapping[str, int] | None:
        """Return the local slowest splits if they changed since the last call, else None."""
        if self._last_reported == self.local_slowest:
            return None
        self._last_reported = self.local_slowest
        return self.local_slowest
