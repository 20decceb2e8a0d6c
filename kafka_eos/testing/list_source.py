"""ListSource: values in memory, read like a topic, with splits, positions and replay.

A position is the index of the next value in its split. Rule: the values are never changed, so that every
position stays readable.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.source import Reader, Source
from kafka_eos.core.errors import InputLost
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Json, Position, Positions
from kafka_eos.core.records import Batch, Headers, Origin, RawRecord

_INDEX: Final = "index"


class ListSource(Source[Any]):
    """A source of ``values``; with several ``splits`` they are distributed in turn, as by a partitioner.

    ``name`` is used in place of a topic's name.
    """

    def __init__(self, values: Sequence[Any], *, splits: int = 1, name: str = "list") -> None:
        if splits < 1:
            raise ValueError(f"splits must be at least 1, not {splits}")
        self.name = name
        self.splits: dict[SplitId, list[Any]] = {SplitId(f"{name}/{n}"): list(values[n::splits]) for n in range(splits)}

    def describe(self) -> Mapping[str, Json]:
        return {"list": self.name, "splits": len(self.splits), "values": sum(map(len, self.splits.values()))}

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        known = known or {}
        for split, position in known.items():
            if split not in self.splits or not 0 <= _index(position) <= len(self.splits[split]):
                raise InputLost(f"{split} cannot be read at {position}: it is not in this ListSource")
        return {split: known.get(split, {_INDEX: 0}) for split in self.splits}

    def get_end_positions(self, ctx: JobContext) -> Positions:
        return {split: {_INDEX: len(values)} for split, values in self.splits.items()}

    def reader(self, ctx: TaskContext, positions: Positions) -> ListReader:
        return ListReader(self, ctx.operator, positions)


class ListReader(Reader[Any]):
    """Reads the assigned splits one after the other; a batch never mixes splits."""

    def __init__(self, source: ListSource, operator: str, positions: Positions) -> None:
        self._source, self._operator = source, operator
        self._next: dict[SplitId, int] = {}
        self._paused: frozenset[SplitId] = frozenset()
        self.assign(positions)

    def poll(self, max_records: int, timeout: float) -> Batch[Any] | None:
        """Return the next batch without waiting: a list does not grow."""
        for split, start in self._next.items():
            values = self._source.splits[split][start : start + max_records]
            if values and split not in self._paused:
                self._next[split] = start + len(values)
                origin = ListOrigin(self._operator, self._source.name, int(split.rpartition("/")[2]), start, values)
                return Batch(values=values, origin_rows=range(len(values)), origin=origin)
        return None

    def positions(self) -> Positions:
        return {split: {_INDEX: index} for split, index in self._next.items()}

    def assign(self, positions: Positions) -> None:
        self._next.update({split: _index(position) for split, position in positions.items()})

    def pause(self, splits: Collection[SplitId]) -> None:
        self._paused = frozenset(splits)

    def list_splits_at_end(self) -> Collection[SplitId]:
        return [split for split, index in self._next.items() if index == len(self._source.splits[split])]

    def lag(self) -> int:
        return sum(len(self._source.splits[split]) - index for split, index in self._next.items())

    def has_reached(self, ends: Positions) -> bool:
        return all(split in self._next and self._next[split] >= _index(end) for split, end in ends.items())


class ListOrigin(Origin):
    """Rows that were never encoded; ``raw`` shows them as JSON where JSON can, else as Python shows them."""

    def __init__(
        self,
        source: str,
        topic: str,
        partition: int,
        start: int,
        values: Sequence[Any],
        timestamps: Sequence[int] | None = None,
    ) -> None:
        """``timestamps``: milliseconds since the Unix epoch, -1 for none; without them no row has one."""
        self.source = source
        self.topic = topic
        self._partition = partition
        self._values = values
        self._timestamps = [-1] * len(values) if timestamps is None else timestamps
        self.partitions: Sequence[int] = [partition] * len(values)
        self.offsets: Sequence[int] = range(start, start + len(values))

    def timestamps(self) -> Sequence[int]:
        return self._timestamps

    def headers(self) -> Sequence[Headers]:
        return [()] * len(self._values)

    def raw(self, row: int) -> RawRecord:
        return RawRecord(
            topic=self.topic,
            partition=self._partition,
            offset=self.offsets[row],
            timestamp=self._timestamps[row],
            key=None,
            value=json.dumps(self._values[row], default=repr).encode(),
            headers=(),
        )


def _index(position: Position) -> int:
    index = position.get(_INDEX)
    if not isinstance(index, int):
        raise InputLost(f"{position} is not a position of a ListSource")
    return index
