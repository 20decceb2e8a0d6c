"""The data that flows between operators: batches of rows in columns with their origin, and watermarks.

Rule: an operator never loses the origin of a row. ``origin_rows[i]`` is the row of ``origin`` from which ``values[i]``
was made. One origin row may produce none, one or many values, and values keep the order of their rows. To drop, repeat
or split rows, call the batch's methods, which apply the change to all columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, compress, repeat, starmap
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from kafka_eos.core.record_preview import RecordExcerpt

T = TypeVar("T")

Headers = Sequence[tuple[str, bytes | None]]


K = TypeVar("K")
V = TypeVar("V")


class Record(Struct, Generic[K, V], frozen=True):
    """Key, value, headers and timestamp of one record, decoded: for tables, and for streams that need more than the
    value.

    ``value`` None is a tombstone. ``timestamp`` is in milliseconds since the Unix epoch; None lets the sink choose (the
    sink's ``timestamp`` rule), and a source gives None for a record without one.
    """

    key: K | None
    value: V | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None


class RawRecord(Struct, frozen=True):
    """An input record as it arrived, before decoding."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the Unix epoch; -1 if the record has none."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def location(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class RejectedRecord(Struct, frozen=True):
    """A record that an operator rejected, on its way to the dead letter sink."""

    raw: RawRecord
    operator: str
    """Name of the operator that rejected it."""
    error_type: str
    message: str
    is_result: bool = False
    """Whether it is no record, but a result of several: its value is JSON, and ``raw`` names a timer, or the last of
    the records."""


_SHOWN: Final = 3


class Rejection(Struct, frozen=True):
    """One rejected record for display: location, operator, reason, excerpt."""

    where: str
    operator: str
    reason: str
    inside: RecordExcerpt


class RecordCounts(Struct):
    """Counts per source: records read, rejected and filtered; late rows and timers per operator.

    An operator with timers is the source of its rejected results.
    """

    read: dict[str, int] = field(default_factory=dict)
    refused: dict[str, dict[str, int]] = field(default_factory=dict)
    first: dict[str, list[Rejection]] = field(default_factory=dict)
    """The first few dead letters of each source."""
    late: dict[str, int] = field(default_factory=dict)
    filtered: dict[str, int] = field(default_factory=dict)
    """Records per source that its own filter dropped; not counted as read."""
    fired: dict[str, int] = field(default_factory=dict)
    """Timers per operator that emitted something or were rejected."""

    def add_filtered(self, source: str, records: int) -> None:
        self.filtered[source] = self.filtered.get(source, 0) + records

    def add_fired(self, operator: str, timers: int) -> None:
        self.fired[operator] = self.fired.get(operator, 0) + timers

    def add_late(self, operator: str, rows: int) -> None:
        self.late[operator] = self.late.get(operator, 0) + rows

    def add_read(self, source: str, records: int) -> None:
        self.read[source] = self.read.get(source, 0) + records

    def add_rejection(self, source: str, refusal: Rejection) -> None:
        by = self.refused.setdefault(source, {})
        by[refusal.operator] = by.get(refusal.operator, 0) + 1
        shown = self.first.setdefault(source, [])
        if len(shown) < _SHOWN:
            shown.append(refusal)

    def count_dead_letters(self, source: str) -> int:
        """Count the dead letters of one source."""
        return sum(self.refused.get(source, {}).values())

    def plus(self, other: RecordCounts) -> RecordCounts:
        """Return the sum of both; neither is changed."""
        sources = self.first.keys() | other.first.keys()
        shown = {name: [*self.first.get(name, ()), *other.first.get(name, ())] for name in sources}
        return self._with(other, 1, {name: list(dict.fromkeys(found))[:_SHOWN] for name, found in shown.items()})

    def since(self, earlier: RecordCounts) -> RecordCounts:
        """Return the counts since ``earlier``; the first few dead letters are those of all."""
        return self._with(earlier, -1, self.first)

    def _with(self, other: RecordCounts, sign: int, first: dict[str, list[Rejection]]) -> RecordCounts:
        sources = self.refused.keys() | other.refused.keys()
        return RecordCounts(
            _summed(self.read, other.read, sign),
            {source: _summed(self.refused.get(source, {}), other.refused.get(source, {}), sign) for source in sources},
            first,
            _summed(self.late, other.late, sign),
            _summed(self.filtered, other.filtered, sign),
            _summed(self.fired, other.fired, sign),
        )


def _summed(mine: dict[str, int], other: dict[str, int], sign: int) -> dict[str, int]:
    sums = {name: mine.get(name, 0) + sign * other.get(name, 0) for name in mine.keys() | other.keys()}
    return {name: count for name, count in sorted(sums.items()) if count}


class Origin(ABC):
    """The rows of one read, kept as columns for as long as batches made from them live."""

    __slots__ = ()

    source: str
    """Name of the source operator."""
    topic: str
    """Topic (or its counterpart) of every row."""
    partitions: Sequence[int]
    offsets: Sequence[int]

    @abstractmethod
    def timestamps(self) -> Sequence[int]:
        """Return one time per row, in milliseconds since the Unix epoch. May be computed on the first call."""

    @abstractmethod
    def raw(self, row: int) -> RawRecord:
        """Return the undecoded record of a row, for error messages and dead letters."""


class RawOrigin(Origin):
    """An origin of raw records in memory, all of one topic; at least one."""

    def __init__(self, source: str, raws: Sequence[RawRecord]) -> None:
        self.source, self._raws = source, raws
        self.topic = raws[0].topic
        self.partitions: Sequence[int] = [raw.partition for raw in raws]
        self.offsets: Sequence[int] = [raw.offset for raw in raws]

    def timestamps(self) -> Sequence[int]:
        return [raw.timestamp for raw in self._raws]

    def raw(self, row: int) -> RawRecord:
        return self._raws[row]


MIN_EVENT_TIME: Final = -(2**63)
"""The initial watermark: earlier than every event time."""
EVENT_TIMES: Final = range(1 - 10**18, 10**18)
"""Allowed times of rows and timers, in milliseconds since the Unix epoch: the range that provenance can encode."""


class Watermark(Struct, frozen=True):
    """A watermark between two rows of a channel: rows behind it have later times than ``time``, unless they are late.

    ``idle``: no rows are expected for now, so the channel does not hold back the combined watermark.
    """

    time: int = MIN_EVENT_TIME
    idle: bool = False


_OF_THE_BATCH: Final = frozenset({"origin", "lane"})
"""Fields of a batch that are not columns: they apply to all its rows."""


class Batch(Struct, Generic[T]):
    """Rows in columns. All columns that are not None have the same length; all fields but origin and lane are columns.

    ``origin_rows``  index into ``origin`` for each value, ascending
    ``keys``         set after ``key_by``
    ``lane``         number of the path from the source; two paths that meet in a union differ
    ``updates``      set by folds with lasting state: how many outputs this key has had, this one included
    ``branch``       set by exchanges: the number of each value among the outputs of its row; see ``provenance``
    ``event_times``  set by ``with_timestamps``: the event time of each value
    """

    values: list[T]
    origin_rows: Sequence[int]
    origin: Origin
    keys: list[Any] | None = None
    lane: int = 0
    updates: list[int] | None = None
    branch: list[str] | None = None
    event_times: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indices: Sequence[int]) -> Batch[T]:
        """Return the rows at ``indices``, in that order; an index may occur more than once."""
        return self._of(lambda column: list(map(column.__getitem__, indices)))

    def drop(self, gone: Collection[int]) -> Batch[T]:
        """Return the rows without those at the given indices."""
        if not gone:
            return self
        left_out = frozenset(gone)
        return self.take([index for index in range(len(self)) if index not in left_out])

    def filter(self, flags: Sequence[object]) -> Batch[T]:
        """Return the rows whose flag is true, in order. ``flags``: one per row."""
        return self._of(lambda column: list(compress(column, flags)))

    def with_sort_keys(self) -> list[tuple[T, tuple[int, int, int]]]:
        """Pair each value with its event-time sort key: time, partition, offset.

        Only for rows that ``with_timestamps`` has given times.
        """
        assert self.event_times is not None
        partitions, offsets = self.origin.partitions, self.origin.offsets
        places = (
            (time, partitions[row], offsets[row]) for time, row in zip(self.event_times, self.origin_rows, strict=True)
        )
        return list(zip(self.values, places, strict=True))

    def repeat(self, counts: Sequence[int]) -> Batch[T]:
        """Return each row as often as its count says; 0 drops it. ``counts``: one per row."""
        return self._of(lambda column: list(chain.from_iterable(starmap(repeat, zip(column, counts, strict=True)))))

    def _of(self, select: Callable[[Any], Iterable[Any]]) -> Batch[T]:
        names = (name for name in self.__struct_fields__ if name not in _OF_THE_BATCH)
        columns = ((name, getattr(self, name)) for name in names)
        selected: dict[str, Any] = {name: select(column) for name, column in columns if column is not None}
        return replace(self, **selected)
