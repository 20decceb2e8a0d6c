"""A source and a sink that cost next to nothing, so that what is measured is the engine: no broker, no disk.

The source deals out a ring of values again and again; a position is a count, as a topic's offset would be. The sink
keeps the contract of two-phase commit with nothing but the number of its rows. Both count in small files that
the benchmark reads from outside, at any moment.

Rule: counting is one store a batch, never one a row.
"""

from __future__ import annotations

import mmap
import struct
import time
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from kafka_eos.abc.committer import (
    CommitOutcome,
    CommitPermit,
    CommitStatus,
    Committable,
    Committer,
    Probe,
    StagedOutput,
)
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.sink import PreCommit, Sink, Writer
from kafka_eos.abc.source import Reader, Source
from kafka_eos.core.errors import InputLost
from kafka_eos.core.ids import EpochId, SplitId
from kafka_eos.core.json_values import Json, Position, Positions
from kafka_eos.core.records import Batch
from kafka_eos.protocol.split_assignment import subtask_of_split
from kafka_eos.testing.list_source import ListOrigin

_INDEX: Final = "index"
_COUNT = struct.Struct("<q")
SAMPLE_EVERY = 8
"""Of so many rows of a batch, one has its latency written down."""


class Counter:
    """A number in a file that other processes read while it grows."""

    def __init__(self, path: Path) -> None:
        made = path.with_suffix(".new")
        made.write_bytes(_COUNT.pack(0))
        with made.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _COUNT.size)
        made.rename(path)
        self.value = 0

    def add(self, more: int) -> None:
        self.value += more
        _COUNT.pack_into(self._memory, 0, self.value)

    @staticmethod
    def total(directory: Path, kind: str) -> int:
        """The sum of all counters of a kind (``in``, ``out``) that exist."""
        return sum(_COUNT.unpack(path.read_bytes())[0] for path in directory.glob(f"{kind}-*.count"))


class Stamped(Protocol):
    """A value that says when it came into being, in seconds of this machine's monotonic clock."""

    at: float


class GeneratedSource(Source[Any]):
    """``ring(split)`` gives the values of a split, repeated for ever, or until ``count`` are read in all.

    With ``rate`` (records a second, of all splits together) ``stamp(value, at)`` makes each record when it is due,
    whether or not the job keeps up: what waits, waits with the time at which it was due.
    """

    def __init__(
        self,
        value_type: Any,
        ring: Callable[[int], Sequence[Any]],
        counters: Path,
        *,
        splits: int = 4,
        count: int | None = None,
        rate: float | None = None,
        stamp: Callable[[Any, float], Any] | None = None,
    ) -> None:
        self.value_type, self.ring, self.counters = value_type, ring, counters
        self.splits = [SplitId(f"generated/{n}") for n in range(splits)]
        self.most = None if count is None else count // splits
        self.period = None if rate is None else splits / rate
        self.stamp = stamp

    def describe(self) -> Mapping[str, Json]:
        return {"generated": len(self.splits)}

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        return {split: (known or {}).get(split, {_INDEX: 0}) for split in self.splits}

    def get_end_positions(self, ctx: JobContext) -> Positions:
        if self.most is None:
            raise InputLost("this input has no end")
        return {split: {_INDEX: self.most} for split in self.splits}

    def reader(self, ctx: TaskContext, positions: Positions) -> GeneratedReader:
        self.counters.mkdir(parents=True, exist_ok=True)
        counter = Counter(self.counters / f"in-{ctx.operator}-{ctx.subtask}.count")
        return GeneratedReader(self, ctx.operator, counter, positions)


class GeneratedReader(Reader[Any]):
    """Reads the assigned splits in turn; a batch never mixes splits."""

    def __init__(self, source: GeneratedSource, operator: str, counter: Counter, positions: Positions) -> None:
        self._source, self._operator, self._counter = source, operator, counter
        self._next: dict[SplitId, int] = {}
        self._began: dict[SplitId, tuple[float, int]] = {}
        self._rings: dict[SplitId, Sequence[Any]] = {}
        self._turn = 0
        self._paused: frozenset[SplitId] = frozenset()
        self.assign(positions)

    def poll(self, max_records: int, timeout: float) -> Batch[Any] | None:
        splits = [split for split in self._next if split not in self._paused]
        until = time.monotonic() + timeout
        while True:
            for _ in splits:
                self._turn += 1
                split = splits[self._turn % len(splits)]
                if values := self._due(split, max_records):
                    return self._batch(split, values)
            nap = min(until - time.monotonic(), self._source.period or timeout)
            if nap <= 0 or self._source.period is None:
                return None
            time.sleep(nap)

    def positions(self) -> Positions:
        return {split: {_INDEX: index} for split, index in self._next.items()}

    def assign(self, positions: Positions) -> None:
        now = time.monotonic()
        for split, position in positions.items():
            self._next[split] = _index(position)
            self._began[split] = now, self._next[split]
            self._rings[split] = self._source.ring(_number(split))

    def pause(self, splits: Collection[SplitId]) -> None:
        self._paused = frozenset(splits)

    def list_splits_at_end(self) -> Collection[SplitId]:
        return [split for split, index in self._next.items() if index == self._source.most]

    def lag(self) -> int:
        most = self._source.most
        return 0 if most is None else sum(most - index for index in self._next.values())

    def has_reached(self, ends: Positions) -> bool:
        return all(self._next[split] >= _index(end) for split, end in ends.items() if split in self._next)

    def _due(self, split: SplitId, limit: int) -> Sequence[Any]:
        """The next values that exist by now, up to the end of the ring."""
        source, ring, index = self._source, self._rings[split], self._next[split]
        if source.most is not None:
            limit = min(limit, source.most - index)
        at = index % len(ring)
        if source.period is None or source.stamp is None:
            return ring[at : at + limit] if limit > 0 else ()
        began, first = self._began[split]
        limit = min(limit, int((time.monotonic() - began) / source.period) - (index - first))
        if limit <= 0:
            return ()
        due, period, stamp = began + (index - first) * source.period, source.period, source.stamp
        return [stamp(value, due + n * period) for n, value in enumerate(ring[at : at + limit])]

    def _batch(self, split: SplitId, values: Sequence[Any]) -> Batch[Any]:
        start = self._next[split]
        self._next[split] = start + len(values)
        self._counter.add(len(values))
        origin = ListOrigin(self._operator, "generated", _number(split), start, values)
        return Batch(values=list(values), origin_rows=range(len(values)), origin=origin)


class CountingSink(Sink[Any]):
    """Counts rows. What it commits is their number, which the manifest holds; so a commit cannot be lost.

    With ``latency`` values are ``Stamped``, and the sink writes down how old some of them are when they reach it: of
    those that another worker read.
    """

    def __init__(self, counters: Path, *, latency: bool = False) -> None:
        self.counters, self.latency = counters, latency

    def describe(self) -> Mapping[str, Json]:
        return {"counts": True}

    def scope(self, ctx: JobContext) -> str:
        return "counting"

    def check(self, ctx: JobContext) -> Sequence[str]:
        return ()

    def writer(self, ctx: TaskContext) -> CountingWriter:
        self.counters.mkdir(parents=True, exist_ok=True)
        return CountingWriter(self, ctx)

    def committer(self, ctx: JobContext) -> CountingCommitter:
        return CountingCommitter()


class CountingWriter(Writer[Any]):
    """One subtask's rows."""

    def __init__(self, sink: CountingSink, ctx: TaskContext) -> None:
        name = f"{ctx.operator}-{ctx.subtask}"
        self._parallelism, self._subtask = ctx.parallelism, ctx.subtask % ctx.parallelism
        self._counter = Counter(sink.counters / f"out-{name}.count")
        self._rows = 0
        self._samples = (sink.counters / f"{name}.latency").open("wb", buffering=0) if sink.latency else None

    def write(self, batch: Batch[Any]) -> None:
        self._rows += len(batch)
        self._counter.add(len(batch))
        if self._samples is not None and batch.values and self._came(batch):
            now = time.monotonic()
            sampled: list[Stamped] = batch.values[::SAMPLE_EVERY]
            self._samples.write(array("d", [time for value in sampled for time in (now, now - value.at)]).tobytes())

    def _came(self, batch: Batch[Any]) -> bool:
        """From another worker; rows of one batch come from one."""
        reader = subtask_of_split(
            SplitId(f"generated/{batch.origin.partitions[batch.origin_rows[0]]}"), self._parallelism
        )
        return reader != self._subtask

    def seal(self, epoch: EpochId) -> PreCommit:
        rows, self._rows = self._rows, 0
        return lambda: (Committable("counting", {}, rows),) if rows else ()

    def discard(self) -> None:
        if self._samples is not None:
            self._samples.close()


class CountingCommitter(Committer):
    """There is nothing to do: the number of rows is in the manifest."""

    def probe(self, committable: Committable) -> Probe:
        return Probe(CommitStatus.PREPARED, f"{committable.records} rows")

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        return CommitOutcome.COMMITTED

    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        return ()

    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        return ()


def latencies(counters: Path, since: float, until: float) -> list[float]:
    """Seconds, sorted, of the sampled rows that reached a sink between two moments of the monotonic clock."""
    found: list[float] = []
    for path in counters.glob("*.latency"):
        numbers = array("d")
        data = path.read_bytes()
        numbers.frombytes(data[: len(data) - len(data) % (2 * numbers.itemsize)])
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        found += [age for at, age in pairs if since <= at <= until]
    return sorted(found)


def _number(split: SplitId) -> int:
    return int(split.rpartition("/")[2])


def _index(position: Position) -> int:
    index = position.get(_INDEX)
    if not isinstance(index, int):
        raise InputLost(f"{position} is not a position of a GeneratedSource")
    return index
