"""What flows between operators: batches of rows in columns, where each row came from, and watermarks between them.

Rule: an operator never loses the origin of a row. ``rows[i]`` says which row of ``origin`` made
``values[i]``; one origin row may make none, one or many values, and values keep the order of their rows.
Whoever leaves rows out, repeats or parts them asks the batch, which does the same to all of its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, compress, repeat
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from kafka_eos.core.record_preview import Inside

T = TypeVar("T")

Headers = Sequence[tuple[str, bytes | None]]


K = TypeVar("K")
V = TypeVar("V")


class Record(Struct, Generic[K, V], frozen=True):
    """Key, value, headers and timestamp of one record, decoded: for streams that need more than the value, and tables.

    ``value`` None is a tombstone. ``timestamp`` is in milliseconds since the Unix epoch; None lets the sink
    choose (the sink's ``timestamp`` rule), and a source gives None for a record without one.
    """

    key: K | None
    value: V | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class RawRecord:
    """An input record as it arrived, before decoding."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the Unix epoch; -1 if the record has none."""
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def where(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that could not be processed, on its way to a dead letter sink."""

    raw: RawRecord
    operator: str
    """Name of the operator that refused it."""
    error_type: str
    message: str


_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Refusal:
    """One record that was sent aside, for people: ``where`` is its topic/partition/offset."""

    where: str
    operator: str
    reason: str
    inside: Inside


@dataclass(slots=True)
class Tally:
    """Counts by source: records that were read, good or bad, and dead letters by the operator that refused them.

    And late rows, by the operator that waits for event time, and by source what its own filter leaves out.
    """

    read: dict[str, int] = field(default_factory=dict)
    refused: dict[str, dict[str, int]] = field(default_factory=dict)
    first: dict[str, list[Refusal]] = field(default_factory=dict)
    """The first few dead letters of each source."""
    late: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    """None of them is among those that were read."""

    def leaves_out(self, source: str, records: int) -> None:
        self.left_out[source] = self.left_out.get(source, 0) + records

    def finds_late(self, operator: str, rows: int) -> None:
        self.late[operator] = self.late.get(operator, 0) + rows

    def reads(self, source: str, records: int) -> None:
        self.read[source] = self.read.get(source, 0) + records

    def refuses(self, source: str, refusal: Refusal) -> None:
        by = self.refused.setdefault(source, {})
        by[refusal.operator] = by.get(refusal.operator, 0) + 1
        shown = self.first.setdefault(source, [])
        if len(shown) < _SHOWN:
            shown.append(refusal)

    def letters(self, source: str) -> int:
        """Dead letters of one source."""
        return sum(self.refused.get(source, {}).values())

    def plus(self, other: Tally) -> Tally:
        """Both together; neither is changed."""
        sources = self.first.keys() | other.first.keys()
        shown = {name: [*self.first.get(name, ()), *other.first.get(name, ())] for name in sources}
        return self._with(other, 1, {name: list(dict.fromkeys(found))[:_SHOWN] for name, found in shown.items()})

    def since(self, earlier: Tally) -> Tally:
        """What has come since ``earlier`` was taken of the same counts; the first few are those of all."""
        return self._with(earlier, -1, self.first)

    def _with(self, other: Tally, sign: int, first: dict[str, list[Refusal]]) -> Tally:
        sources = self.refused.keys() | other.refused.keys()
        return Tally(
            _summed(self.read, other.read, sign),
            {source: _summed(self.refused.get(source, {}), other.refused.get(source, {}), sign) for source in sources},
            first,
            _summed(self.late, other.late, sign),
            _summed(self.left_out, other.left_out, sign),
        )


def _summed(mine: dict[str, int], theirs: dict[str, int], sign: int) -> dict[str, int]:
    sums = {name: mine.get(name, 0) + sign * theirs.get(name, 0) for name in mine.keys() | theirs.keys()}
    return {name: count for name, count in sorted(sums.items()) if count}


class Origin(Protocol):
    """The rows of one read, kept as columns for as long as batches made from them live."""

    @property
    def source(self) -> str:
        """Name of the source operator."""

    @property
    def topic(self) -> str:
        """Topic (or its counterpart) of every row."""

    @property
    def partitions(self) -> Sequence[int]: ...

    @property
    def offsets(self) -> Sequence[int]: ...

    def timestamps(self) -> Sequence[int]:
        """Milliseconds since the Unix epoch, one a row. May be computed on the first call."""

    def raw(self, row: int) -> RawRecord:
        """The undecoded record of a row, for error messages and dead letters."""


class RawOrigin:
    """An origin made of raw records that are at hand, all of one topic; at least one."""

    def __init__(self, source: str, raws: Sequence[RawRecord]) -> None:
        self.source, self._raws = source, raws
        self.topic = raws[0].topic
        self.partitions: Sequence[int] = [raw.partition for raw in raws]
        self.offsets: Sequence[int] = [raw.offset for raw in raws]

    def timestamps(self) -> Sequence[int]:
        return [raw.timestamp for raw in self._raws]

    def raw(self, row: int) -> RawRecord:
        return self._raws[row]


BEGINNING: Final = -(2**63)
"""The event time before any."""
EVENT_TIMES: Final = range(1 - 10**18, 10**18)
"""Of rows and timers: milliseconds since the Unix epoch, as many as provenance can name."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """Between two rows of a channel: those that come behind it have later times than ``time``, unless they are late.

    ``idle``: nothing is to be expected there for now, so nobody should wait for it to go on.
    """

    time: int = BEGINNING
    idle: bool = False


_OF_THE_BATCH: Final = frozenset({"origin", "lane"})
"""Fields of a batch that are no columns: they say something of all its rows."""


@dataclass(slots=True)
class Batch(Generic[T]):
    """Rows in columns. All columns that are not None have the same length; every field is one but origin and lane.

    ``rows``      index into ``origin`` for each value, ascending
    ``keys``      set after ``key_by``
    ``lane``      number of the path from the source; two paths that meet in a union differ
    ``updates``   set by folds whose state lasts: how many outputs this key has had, this one included
    ``branch``    set by exchanges: which of several outputs of its row each value was; see ``provenance``
    ``times``     set by ``with_timestamps``: the event time of each value
    """

    values: list[T]
    rows: Sequence[int]
    origin: Origin
    keys: list[Any] | None = None
    lane: int = 0
    updates: list[int] | None = None
    branch: list[str] | None = None
    times: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indices: Sequence[int]) -> Batch[T]:
        """The rows at ``indices``, in that order; an index may come more than once."""
        return self._of(lambda column: list(map(column.__getitem__, indices)))

    def without(self, gone: Collection[int]) -> Batch[T]:
        """All rows but those at the indices ``gone``, in their order; the batch itself if there are none."""
        if not gone:
            return self
        left_out = frozenset(gone)
        return self.take([index for index in range(len(self)) if index not in left_out])

    def where(self, flags: Sequence[object]) -> Batch[T]:
        """The rows whose flag is true, in their order. ``flags``: one a row."""
        return self._of(lambda column: list(compress(column, flags)))

    def in_time(self) -> list[tuple[T, tuple[int, int, int]]]:
        """Each value with its place in event time: its time; of equal ones, its partition, and its offset there.

        Of rows that ``with_timestamps`` has given times.
        """
        assert self.times is not None
        partitions, offsets = self.origin.partitions, self.origin.offsets
        places = ((time, partitions[row], offsets[row]) for time, row in zip(self.times, self.rows, strict=True))
        return list(zip(self.values, places, strict=True))

    def repeated(self, counts: Sequence[int]) -> Batch[T]:
        """Each row so many times, one behind the other. ``counts``: one a row; 0 leaves the row out."""
        return self._of(lambda column: list(chain.from_iterable(map(repeat, column, counts))))

    def _of(self, select: Callable[[Any], Iterable[Any]]) -> Batch[T]:
        names = (each.name for each in fields(self) if each.name not in _OF_THE_BATCH)
        columns = ((name, getattr(self, name)) for name in names)
        selected: dict[str, Any] = {name: select(column) for name, column in columns if column is not None}
        return replace(self, **selected)
