"""Reads the records of an epoch from its sources: those between the positions of two epochs.

The source's own reader is used, one record at a time, so that nothing behind the end of the epoch is taken.

Rule: which record of one partition came first is known; how those of several partitions met is not. Such records are
merged by their timestamps, and sources that others wait for come first.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, TypeAlias

from kafka_eos.abc.auditable import AuditableSource
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.abc.source import Reader
from kafka_eos.core.errors import ConfigError, InputLost
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Position, Positions
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.plan import Plan, SourceNode
from kafka_eos.protocol.source_dependencies import connector_positions, remaining_end
from kafka_eos.testing.epoch_replay import InputRecord

_Timed: TypeAlias = tuple[tuple[int, int], InputRecord]
"""A record with its rank and its time: records of all partitions are processed in this order."""
_POLL: Final = 0.1
"""Seconds that one poll waits."""
_PATIENCE: Final = 30.0
"""Seconds without progress after which a source is taken to have no more records."""


def read_epochs(
    plan: Plan, ctx: JobContext, begin: Mapping[str, Positions], ends: Sequence[Mapping[str, Positions]]
) -> Iterator[list[InputRecord]]:
    """Yield the records of successive epochs, each in the order of processing.

    ``ends``: the positions at the end of each epoch. Raises ConfigError or InputLost if a source cannot be read from
    there any more.
    """
    nodes = {node.name: node for node in plan.sources}
    if unknown := sorted({source for end in ends for source in end} - nodes.keys()):
        raise ConfigError(
            f"the epoch read the source {unknown[0]!r}, which the pipeline does not have any more; it has "
            f"{', '.join(nodes)}. Replay it with the code of that time"
        )
    with ExitStack() as opened:
        inputs = {
            name: opened.enter_context(closing(_SourceInput(node, ctx, connector_positions(begin.get(name, {})))))
            for name, node in nodes.items()
        }
        at = begin
        for end in ends:
            parts: list[list[_Timed]] = []
            for name, positions in end.items():
                rank = 0 if _is_read_first(plan, name, at.get(name, {})) else 1
                for records in inputs[name].read(connector_positions(positions)):
                    parts.append([((rank, record.raw.timestamp), record) for record in records])
            yield [record for _, record in heapq.merge(*map(_in_order, parts), key=lambda part: part[0])]
            at = end


def find_ends(plan: Plan, ctx: JobContext, begin: Mapping[str, Positions]) -> dict[str, Positions]:
    """Return the present ends of all sources, for an epoch that was not decided."""
    ends: dict[str, Positions] = {}
    for node in plan.sources:
        known = connector_positions(begin.get(node.name, {}))
        found = node.source.get_end_positions(ctx)
        ends[node.name] = {**known, **{split: {**known.get(split, {}), **at} for split, at in found.items()}}
    return ends


def _is_read_first(plan: Plan, source: str, at: Positions) -> bool:
    """Return whether other sources waited for this one when the epoch began."""
    return source in plan.awaited_sources and any(remaining_end(position) is not None for position in at.values())


def _in_order(part: list[_Timed]) -> Iterator[_Timed]:
    """Yield the records of one partition with times that never decrease, so that a merge keeps their order."""
    latest = -1
    for (rank, timestamp), record in part:
        latest = max(latest, timestamp)
        yield (rank, latest), record


class _SourceInput:
    """The records of one source, epoch by epoch."""

    def __init__(self, node: SourceNode, ctx: JobContext, at: Positions) -> None:
        self._node = node
        self._ctx = ctx
        self._at = dict(at)
        self._keeps_rows = not isinstance(node.source, AuditableSource)
        self._rejected: list[tuple[RawRecord, Exception]] = []
        self._services = Services(lambda source, raw, error: self._rejected.append((raw, error)))
        self._reader: Reader[Any] | None = None
        self._ahead: list[InputRecord] = []
        """Records that were read behind the end of their epoch, where a topic has gaps."""

    def read(self, ends: Positions) -> list[list[InputRecord]]:
        """Return the records up to these positions, by split."""
        if not [split for split, end in ends.items() if self._at.get(split) != end]:
            return []
        reader = self._prepare(ends)
        found: dict[str, list[InputRecord]] = {split: [] for split in sorted(ends)}
        ahead, self._ahead = self._ahead, []
        for record in ahead:
            self._add(found, record, ends, reader.positions())
        since, before = time.monotonic(), reader.positions()
        while left := [split for split, end in ends.items() if not reader.has_reached({split: end})]:
            reader.pause(before.keys() - set(left))
            self._rejected.clear()
            batch = reader.poll(1, _POLL)
            if (at := reader.positions()) != before or batch is not None:
                since, before = time.monotonic(), at
            elif time.monotonic() - since > _PATIENCE:
                raise ConfigError(
                    f"source {self._node.name!r} returns no more records of {left[0]}: it is at {at[left[0]]}, and the "
                    f"epoch read up to {ends[left[0]]}. Records were removed, or cannot be read now"
                )
            for record in self._list_taken(batch):
                self._add(found, record, ends, at)
        self._at.update(ends)
        return list(found.values())

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _prepare(self, ends: Positions) -> Reader[Any]:
        """Return the reader with all splits assigned. Raises InputLost if one cannot be read from its position."""
        starts: dict[SplitId, Position] = {}
        if self._reader is None or ends.keys() - self._at.keys():
            found = self._node.source.discover(self._ctx, self._at)
            starts = {
                split: self._find_start(split, end, found) for split, end in ends.items() if split not in self._at
            }
        if self._reader is None:
            context = TaskContext(self._ctx, 0, 1, self._node.name, self._services)
            self._reader = self._node.source.reader(context, {**self._at, **starts})
        elif starts:
            self._reader.assign(starts)
        self._at.update(starts)
        return self._reader

    def _find_start(self, split: SplitId, end: Position, found: Positions) -> Position:
        """Return where a split that an epoch has found begins."""
        if isinstance(begin := end.get("begin"), int):
            return {**end, "offset": begin}
        if split not in found:
            raise InputLost(f"source {self._node.name!r} has no split {split} any more, which the epoch read")
        return found[split]

    def _list_taken(self, batch: Batch[Any] | None) -> Iterator[InputRecord]:
        for raw, error in self._rejected:
            yield InputRecord(self._node.name, raw, error=error if self._keeps_rows else None)
        if batch is not None and len(batch):
            raw = batch.origin.raw(batch.origin_rows[0])
            yield InputRecord(self._node.name, raw, batch if self._keeps_rows else None)

    def _add(self, found: Mapping[str, list[InputRecord]], record: InputRecord, ends: Positions, at: Positions) -> None:
        """Add a record to its split, or keep it if it belongs to a later epoch."""
        split = SplitId(f"{record.raw.topic}/{record.raw.partition}")
        end = ends.get(split, {})
        limit = end.get("offset")
        is_behind = record.raw.offset >= limit if isinstance(limit, int) else self._is_past(split, end, at)
        if is_behind:
            self._ahead.append(record)
        else:
            found[split].append(record)

    def _is_past(self, split: SplitId, end: Position, at: Positions) -> bool:
        """Return whether the reader is behind the end of a split, by positions that are not offsets."""
        assert self._reader is not None
        return not end or (self._reader.has_reached({split: end}) and at[split] != end)
