"""A source in four methods: ``PollingSource``, for inputs whose records are read by number.

    class Orders(PollingSource[Order]):
        def describe(self): …             a description of the input
        def splits(self): …               the splits, and the readable offsets of each
        def read(self, split, first, most): …
        def decode(self, data): …

Rule: the offsets of a split are consecutive. So a missing offset means lost input, and a position is one number: the
offset to read next.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kafka_eos._util.bulk_calls import map_rows
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.source import Reader, Source
from kafka_eos.core.error_messages import show_value
from kafka_eos.core.errors import ConfigError, InputLost, LossCause
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Json, Position, Positions
from kafka_eos.core.records import Batch, RawOrigin, RawRecord

T = TypeVar("T")


class PollingSource(Source[T]):
    """A source that returns the records of a split from an offset on. Positions and readers are provided."""

    @abstractmethod
    def describe(self) -> Mapping[str, Json]:
        """Return a description of the input for ``explain``, without secrets."""

    @abstractmethod
    def splits(self) -> Mapping[str, range]:
        """Return each split, as ``topic/partition``, with the offsets that can be read now.

        Raise Retryable if that is unknown now, ConfigError if the source cannot be read as configured.
        """

    @abstractmethod
    def read(self, split: str, first: int, most: int) -> Sequence[tuple[int, bytes]]:
        """Return at most ``most`` records from ``first`` on, with their offsets; none if there are none yet.

        Records must be the same whenever they are read. Raise RestartFromCheckpoint if they cannot be read now.
        """

    @abstractmethod
    def decode(self, data: bytes) -> T:
        """Return the value of a record. An error that it raises rejects the record."""

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """Return the splits with their positions. See ``Source.discover``."""
        there = _checked_splits(self)
        for split, position in (known or {}).items():
            if split not in there:
                raise ConfigError(
                    f"the checkpoint contains {split}, which does not exist any more: restore the "
                    "input, or give the source a new name to start over"
                )
            first, end = there[split].start, there[split].stop
            if not first <= _offset(position) <= end:
                has = f"{first} to {end - 1}" if first < end else "nothing"
                cause = LossCause.EXPIRED if _offset(position) < first else LossCause.ALTERED
                raise InputLost(
                    f"{split} was read up to offset {_offset(position)} but now has {has}: records were "
                    "removed, or the input was recreated. Restore the input, or give the source a new "
                    "name to start over",
                    cause,
                )
        return {split: (known or {}).get(split, _position(offsets.start)) for split, offsets in there.items()}

    def get_end_positions(self, ctx: JobContext) -> Positions:
        """Return the present end of each split. See ``Source.get_end_positions``."""
        return {split: _position(offsets.stop) for split, offsets in _checked_splits(self).items()}

    def reader(self, ctx: TaskContext, positions: Positions) -> PollingReader[T]:
        return PollingReader(self, ctx, positions)


class PollingReader(Reader[T]):
    """The reader of a polling source's splits, in turn."""

    def __init__(self, source: PollingSource[T], ctx: TaskContext, positions: Positions) -> None:
        self._source, self._operator = source, ctx.operator
        self._reject = partial(ctx.services.reject_record, ctx.operator)
        self._next: dict[SplitId, int] = {}
        self._paused: frozenset[SplitId] = frozenset()
        self._empty: set[SplitId] = set()
        """Splits that returned no records at their last read."""
        self.assign(positions)

    def poll(self, max_records: int, timeout: float) -> Batch[T] | None:
        for split in [split for split in self._next if split not in self._paused]:
            raws = self._read(split, max_records)
            batch = self._decoded(raws) if raws else None
            self._next[split] = self._next.pop(split) + len(raws)  # move the split behind the others
            (self._empty.discard if raws else self._empty.add)(split)
            if batch is not None and batch.values:
                return batch
        time.sleep(timeout)
        return None

    def _read(self, split: SplitId, most: int) -> Sequence[RawRecord]:
        topic, _, partition = split.rpartition("/")
        expected = self._next[split]
        found = _checked_records(self._source, split, expected, most)
        for offset, _ in found:
            if offset != expected:
                raise InputLost(f"{split}: offset {expected} is missing and was not read; the next one is {offset}")
            expected += 1
        return [RawRecord(topic, int(partition), offset, -1, None, data, ()) for offset, data in found]

    def _decoded(self, raws: Sequence[RawRecord]) -> Batch[T]:
        values, refused = map_rows(
            lambda raw: self._source.decode(raw.value),
            raws,
            refuse=lambda row, error: self._reject(raws[row], error),
        )
        bad = frozenset(refused)
        return Batch(values, [row for row in range(len(raws)) if row not in bad], RawOrigin(self._operator, raws))

    def positions(self) -> Positions:
        return {split: _position(offset) for split, offset in self._next.items()}

    def assign(self, positions: Positions) -> None:
        self._next |= {split: _offset(position) for split, position in positions.items()}

    def pause(self, splits: Collection[SplitId]) -> None:
        self._paused = frozenset(splits)

    def list_splits_at_end(self) -> Collection[SplitId]:
        return [*self._empty]

    def lag(self) -> int | None:
        """Return 0 if no split has more records; None if that is unknown."""
        return 0 if self._empty == self._next.keys() else None

    def has_reached(self, ends: Positions) -> bool:
        return all(split in self._next and self._next[split] >= _offset(end) for split, end in ends.items())

    def close(self) -> None:
        """Do nothing: no resource is held open."""


def _checked_splits(source: PollingSource[Any]) -> Mapping[SplitId, range]:
    """Return the result of ``splits``. Raise ConfigError with the required form if it is not valid."""
    called = f"{type(source).__name__}.splits()"
    found: Mapping[str, Any] = source.splits()
    for split, offsets in found.items():
        topic, _, partition = split.rpartition("/")
        if not topic or not (partition.isascii() and partition.isdigit()):
            raise ConfigError(
                f"{called} has {split!r}, which is not a split name: use TOPIC/PARTITION, as in 'orders/0'"
            )
        if not isinstance(offsets, range) or offsets.step != 1 or not 0 <= offsets.start <= offsets.stop:
            raise ConfigError(
                f"{called} has {offsets!r} for {split}: return range(first, end), the offsets that can be read now; "
                "end is one more than the last"
            )
    return {SplitId(split): offsets for split, offsets in found.items()}


def _checked_records(source: PollingSource[Any], split: SplitId, first: int, most: int) -> Sequence[tuple[int, bytes]]:
    """Return the result of ``read``. Raise ConfigError with the required form if it is not valid."""
    called = f"{type(source).__name__}.read({split!r}, {first}, {most})"
    found: Any = source.read(split, first, most)
    if not isinstance(found, Sequence):
        raise ConfigError(
            f"{called} returned {show_value(found)}: return a list of (offset, bytes), which is "
            "empty if there are no records yet"
        )
    if len(found) > most:
        raise ConfigError(f"{called} returned {len(found)} records: return at most {most}, its last argument")
    for record in found:
        match record:
            case (int(), bytes()):
                continue
        raise ConfigError(
            f"{called} returned a record {show_value(record)}: return pairs of an int, the offset, and bytes"
        )
    return found


def _position(offset: int) -> Position:
    return {"offset": offset}


def _offset(position: Position) -> int:
    offset = position.get("offset")
    if not isinstance(offset, int):
        raise ConfigError(f"the checkpoint has the position {position}, which is not a position of this source")
    return offset
