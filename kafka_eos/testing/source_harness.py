"""One trial of a source: rebuilds it whenever another process would, acts as its engine, and reports violations."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeAlias

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.abc.source import Reader, Source
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import SplitId, Term
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.testing.sink_harness import ContractBroken, expect, expect_contract

Place: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset of a record."""

_OPERATOR = "in"
_WAIT = 0.01
"""Seconds that a poll waits for rows: a source that has none sleeps so long."""


@dataclass(frozen=True, slots=True)
class SourceUnderTest:
    """A source that can be built again and again, and the content of its input.

    ``source``     builds the source; called again for each of its incarnations, so all it needs must be in the input
    ``values``     the values of its records, at least four, those of one split in order. Better are more values than
                   the source fetches at a time, in several splits
    ``append``     adds records to the input and returns their values in order; None if this input never grows
    ``expire``     removes input that has not been read, as retention or a person would; None if nothing can
    ``spoil``      adds records that cannot be decoded, between others whose values it returns; None if all can be
    ``settings``   what the engine would pass to connectors, e.g. ``bootstrap_servers``
    ``timeout``    seconds within which a record must arrive, and ``discover`` must return
    """

    source: Callable[[], Source[Any]]
    values: Sequence[Any]
    append: Callable[[], Sequence[Any]] | None = None
    expire: Callable[[], None] | None = None
    spoil: Callable[[], Sequence[Any]] | None = None
    settings: Mapping[str, Json] = field(default_factory=dict)
    timeout: float = 20.0


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A value with the topic, partition and offset of its record."""

    value: Any
    place: Place

    @property
    def split(self) -> SplitId:
        topic, partition, _ = self.place
        return SplitId(f"{topic}/{partition}")

    def same_as(self, other: SourceRow) -> bool:
        """Return whether both rows are the same value of the same record. Values need no ``__eq__``."""
        return self.place == other.place and repr(self.value) == repr(other.value)

    def __str__(self) -> str:
        return f"{self.value!r} ({self.split} at offset {self.place[2]})"


class SourceHarness:
    """Drives one source against a fresh input, as an engine would. Leaving it closes all readers."""

    def __init__(self, target: SourceUnderTest, seed: int = 0) -> None:
        """``seed``: for a check that draws what it does."""
        expect(len(target.values) >= 4, "SourceUnderTest.values needs at least four records")
        self.target, self.values = target, target.values
        self.seed = seed
        self.context = JobContext(f"contract-{uuid.uuid4().hex[:12]}", Term(1), target.settings)
        self._closing = ExitStack()

    def __enter__(self) -> SourceHarness:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._closing.close()

    # ------------------------------------------------------------ what an engine asks

    def source(self) -> Source[Any]:
        return expect_contract(self.target.source(), Source)

    def discover(
        self, known: Positions | None = None, *, of: Source[Any] | None = None, job: JobContext | None = None
    ) -> Positions:
        """Discover splits as a start does, with a new source unless ``of`` is given.

        Retry while they are not known yet.
        """
        source = of or self.source()
        return through_json(self._patiently(lambda: source.discover(job or self.context, known)))

    def ends(self) -> Positions:
        return through_json(self._patiently(lambda: self.source().get_end_positions(self.context)))

    def goal(self, positions: Positions) -> Positions:
        """Return where a run from these positions ends: the source's final ends, or else its current ones."""
        source = self.source()
        bounds = source.bounds(positions)
        return self.ends() if bounds is None else bounds

    def _patiently(self, ask: Callable[[], Positions]) -> Positions:
        deadline = time.monotonic() + self.target.timeout
        while True:
            try:
                return ask()
            except Retryable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def reader(
        self,
        positions: Positions,
        subtask: int = 0,
        subtasks: int = 1,
        *,
        of: Source[Any] | None = None,
        job: JobContext | None = None,
        services: Services | None = None,
    ) -> Reader[Any]:
        """Return a reader of a new source, as another process would open it, or of the source ``of``."""
        task = TaskContext(job or self.context, subtask, subtasks, _OPERATOR, services or Services())
        reader = (of or self.source()).reader(task, through_json(positions))
        self._closing.callback(reader.close)
        return expect_contract(reader, Reader)

    # ------------------------------------------------------------ reading

    def poll(self, reader: Reader[Any], most: int, seconds: float = _WAIT) -> list[SourceRow]:
        batch = reader.poll(most, seconds)
        if batch is None:
            return []
        expect(bool(batch.values), "poll returned a batch without rows: return None instead")
        expect(len(batch.origin_rows) == len(batch.values), "a batch needs the row of its origin for each value")
        origin = batch.origin
        expect(origin.source == _OPERATOR, f"the origin's source is {origin.source!r}, not ctx.operator")
        places = [(origin.topic, origin.partitions[row], origin.offsets[row]) for row in batch.origin_rows]
        for row, place in zip(batch.origin_rows, places, strict=True):
            raw = origin.raw(row)
            raw_place = raw.topic, raw.partition, raw.offset
            expect(raw_place == place, f"origin.raw({row}) is the record {raw_place}, and the row is of {place}")
        expect(len(origin.timestamps()) == len(origin.offsets), "an origin needs a timestamp for each row; -1 for none")
        return [SourceRow(value, place) for value, place in zip(batch.values, places, strict=True)]

    def read_next_rows(self, reader: Reader[Any], most: int, due: str = "any split") -> list[SourceRow]:
        """Return the next rows, which must arrive within the timeout."""
        deadline = time.monotonic() + self.target.timeout
        while time.monotonic() < deadline:
            if rows := self.poll(reader, most):
                return rows
        raise ContractBroken(f"none of {due} was read within {self.target.timeout} seconds")

    def polls(self, reader: Reader[Any], ends: Positions, most: int) -> Iterator[list[SourceRow]]:
        """Yield the rows of each poll until ``ends`` are reached. Raise ContractBroken if records stop before."""
        deadline = time.monotonic() + self.target.timeout
        while not reader.has_reached(ends):
            if time.monotonic() > deadline:
                at = reader.positions()
                raise ContractBroken(f"no record arrived within {self.target.timeout} seconds: {at} is short of {ends}")
            if rows := self.poll(reader, most):
                deadline = time.monotonic() + self.target.timeout
            yield rows

    def read_all(self, reader: Reader[Any], ends: Positions | None = None) -> list[SourceRow]:
        """Return all rows up to ``ends``, by default the current ends."""
        return [row for rows in self.polls(reader, self.ends() if ends is None else ends, 100) for row in rows]

    # ------------------------------------------------------------ what the test does to the input

    def append(self) -> Sequence[Any]:
        if self.target.append is None:
            raise ContractBroken("this check needs SourceUnderTest.append, which adds records")
        return self.target.append()

    def spoil(self) -> Sequence[Any]:
        if self.target.spoil is None:
            raise ContractBroken("this check needs SourceUnderTest.spoil, which adds records that cannot be decoded")
        return self.target.spoil()

    def expire(self) -> None:
        if self.target.expire is None:
            raise ContractBroken("this check needs SourceUnderTest.lose, which removes input")
        self.target.expire()

    # ------------------------------------------------------------ looking

    def expect_values(self, rows: Sequence[SourceRow], values: Sequence[Any], when: str) -> None:
        """Check that each value was read as often as listed, and those of one split in the order of the list."""
        seen, wanted = Counter(repr(row.value) for row in rows), Counter(map(repr, values))
        expect(not wanted - seen, f"{when}: records are missing: {sorted((wanted - seen).elements())}")
        expect(not seen - wanted, f"{when}: unexpected or duplicate records: {sorted((seen - wanted).elements())}")
        for split, of in by_split(rows).items():
            listed, found = map(repr, values), [repr(row.value) for row in of]
            ordered = all(value in listed for value in found)  # each behind the one before: ``in`` reads the list on
            expect(ordered, f"{when}: {split} was read in another order than SourceUnderTest lists its values: {found}")

    def expect_rows(self, rows: Sequence[SourceRow], wanted: Sequence[SourceRow], when: str) -> None:
        """Check that the rows have the same values from the same places, each split in the same order."""
        seen, due = (Counter((row.place, repr(row.value)) for row in each) for each in (rows, wanted))
        expect(not due - seen, f"{when}: records are missing: {sorted((due - seen).elements())}")
        expect(not seen - due, f"{when}: unexpected or duplicate records: {sorted((seen - due).elements())}")
        for split, of in by_split(wanted).items():
            found, places = ([row.place for row in each] for each in (by_split(rows)[split], of))
            expect(found == places, f"{when}: {split} was read in another order: {found}, and before {places}")


def by_split(rows: Iterable[SourceRow]) -> dict[SplitId, list[SourceRow]]:
    """Return the rows of each split, in order."""
    found: dict[SplitId, list[SourceRow]] = {}
    for row in rows:
        found.setdefault(row.split, []).append(row)
    return found


def through_json(positions: Positions) -> Positions:
    """Encode positions as JSON and decode them again, as a checkpoint does."""
    try:
        found: Positions = json.loads(json.dumps(positions, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ContractBroken(f"positions must be JSON: {error}: {positions!r}") from error
    return found
