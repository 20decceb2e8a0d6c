"""A job under a schedule: what it reads, what its sinks got for good, and what is decided.

Chance decides all that a machine would: so a seed is a schedule, and comes again. See ``single_thread_engine``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from kafka_eos.abc.committer import CommitOutcome, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.sink import PreCommit
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.provenance import format_provenance, parse_provenance
from kafka_eos.core.records import Batch
from kafka_eos.plan import Plan
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.runtime.operators.windows.count_windows import RowCountWindowOperator
from kafka_eos.runtime.state.broadcast_copies import expect_same
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.memory_store import read_rows
from kafka_eos.runtime.state.ttl_clock import LEAP_MS
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin, ListReader
from kafka_eos.testing.memory_sink import MemoryWriter

IDENTITY = "0123456789ab"


class RandomSplitSource(ListSource):
    """A source whose readers return a random number of rows of a random split, or none."""

    def __init__(self, name: str, splits: Mapping[int, Sequence[Any]], chance: Random, dated: bool = False) -> None:
        """``dated``: rows have a ``timestamp`` of their own."""
        super().__init__([], name=name)
        self.splits = {SplitId(f"{name}/{number}"): list(rows) for number, rows in splits.items()}
        self.chance, self.dated = chance, dated

    def reader(self, ctx: TaskContext, positions: Positions) -> ListReader:
        return _RandomSplitReader(self, ctx.operator, positions)


class _RandomSplitReader(ListReader):
    _source: RandomSplitSource

    def poll(self, max_records: int, timeout: float) -> Batch[Any] | None:
        source = self._source
        left = [split for split, at in self._next.items() if at < len(source.splits[split])]
        if not left or source.chance.random() < 0.2:
            return None
        split = source.chance.choice(left)
        start = self._next[split]
        values = source.splits[split][start : start + source.chance.randint(1, max_records)]
        self._next[split] = start + len(values)
        times = [value.timestamp for value in values] if source.dated else None
        number = int(split.rpartition("/")[2])
        origin = ListOrigin(self._operator, source.name, number, start, values, times)
        return Batch(values, range(len(values)), origin)


class ProvenanceSink(MemorySink):
    """A sink that stores each value with the identity in its provenance."""

    def __init__(self) -> None:
        super().__init__()
        self.by_epoch: dict[Epoch, list[Any]] = {}
        """The values that are committed, by the epoch in which they were sealed. One that was aborted is committed with
        the next."""
        self.committed_epoch = 0
        """The newest committed epoch, of which each writer is notified."""
        self.writers = set[tuple[object, ...]]()
        """Term, subtask and attempt of each writer, in all runs."""

    def commit(self, name: str) -> CommitOutcome:
        prepared = dict(self._prepared)
        outcome = super().commit(name)
        for each in [each for each in prepared if each not in self._prepared]:
            values = self.by_epoch.setdefault(prepared[each].epoch, [])
            values += [value for _, value in prepared[each].values]
        return outcome

    def writer(self, ctx: TaskContext) -> MemoryWriter:
        return _ProvenanceWriter(self, ctx)

    @property
    def values(self) -> Counter[Any]:
        return Counter(value for _, value in self.committed)

    @property
    def doubled(self) -> list[str]:
        """Identities that were committed twice."""
        return [name for name, count in Counter(name for name, _ in self.committed).items() if count > 1]

    def forget(self) -> None:
        """Drop uncommitted output: its writers are dead."""
        self._prepared.clear()
        self._open.clear()


class _ProvenanceWriter(MemoryWriter):
    """Fails if another writer has its term and subtask, or if it seals before it is notified of a commit."""

    _sink: ProvenanceSink

    def __init__(self, sink: ProvenanceSink, ctx: TaskContext) -> None:
        super().__init__(sink, ctx)
        name = (ctx.job.term, ctx.subtask)
        assert name not in sink.writers, "two writers of a sink have one number"
        sink.writers.add(name)
        self._notified = sink.committed_epoch

    def notify_committed(self, epoch: EpochId) -> None:
        self._notified = epoch.epoch.n

    def seal(self, epoch: EpochId) -> PreCommit:
        assert self._notified == self._sink.committed_epoch, "a writer was not notified of a committed epoch"
        return super().seal(epoch)

    def write(self, batch: Batch[Any]) -> None:
        names = [parse_provenance(text).identity for text in format_provenance(batch, "job", Term(1), Epoch(1))]
        super().write(Batch(list(zip(names, batch.values, strict=True)), batch.origin_rows, batch.origin))


@dataclass(frozen=True)
class Decided:
    """The newest epoch that is committed, and all that the next run goes on from."""

    epoch: int
    positions: Mapping[str, Positions]
    states: tuple[StateHandle, ...] = ()
    in_flight: tuple[InFlightRows, ...] = ()


@dataclass
class Job:
    """``sinks`` are all of the plan's. ``counts``: events that the tests require to have happened."""

    plan: Plan
    directory: Path
    chance: Random
    settings: Settings
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    counts: Counter[str] = field(default_factory=Counter)
    term: int = 0
    longest_run: float = 3.3
    """Decimal logarithm of the turns that a run may last."""

    def __post_init__(self) -> None:
        context = JobContext(self.plan.name, Term(1), self.settings.connector_defaults())
        self.sinks: list[Any] = [node.sink for node in self.plan.sinks]
        self.ends = {source.name: source.source.get_end_positions(context) for source in self.plan.sources}
        positions = {source.name: source.source.discover(context, None) for source in self.plan.sources}
        for name, joins in self.plan.awaited_sources.items():
            positions[name] = bootstrap.first_positions(positions[name], self.ends[name], joins)
        self.decided = Decided(0, positions)

    @property
    def held(self) -> bootstrap.WaitingSources:
        """Who waits for tables."""
        return bootstrap.WaitingSources.at_start(
            self.plan.prerequisites, self.plan.deferred_sources, self.decided.positions
        )

    @property
    def has_read_all(self) -> bool:
        """Of what is decided."""
        return all(
            bootstrap.connector_positions(self.decided.positions[name]) == ends for name, ends in self.ends.items()
        )

    def left(self, operator: str, now: int) -> int:
        """How many entries windows of rows have, if nothing comes for some hours, and for one minute more."""
        clock = now + 3 * LEAP_MS
        handles = [handle for handle in self.decided.states if handle.operator == operator]
        (descriptor,) = RowCountWindowOperator(self.plan.node(operator)).states()  # type: ignore[arg-type]
        place, groups = self.directory / f"left-of-{operator}", range(MAX_KEY_GROUPS)
        backend = open_backend("memory", operator, place, groups, handles, self.storage, clock=lambda: clock)
        state = backend.value(descriptor)
        for _ in range(2):  # what was written when no event time was known gets one first
            state.advance(clock)
            handle = backend.snapshot(Epoch(self.decided.epoch + 1))(self.storage)
            clock += 60_000
        backend.close()
        return sum(len(block) for _, block in read_rows(handle, self.storage, place))

    def begin(self) -> int:
        """Another run; its term."""
        self.term += 1
        self.counts["rows under way restored"] += bool(self.decided.in_flight)
        for sink in self.sinks:
            sink.forget()
        return self.term

    def decide(
        self,
        epoch: int,
        positions: Mapping[str, Positions],
        states: tuple[StateHandle, ...],
        committables: Sequence[Committable],
        in_flight: tuple[InFlightRows, ...] = (),
    ) -> None:
        """An epoch is committed: ``positions`` are what has been read since."""
        expect_same(states)
        for committable in committables:
            (sink,) = [sink for sink in self.sinks if f"memory:{id(sink):x}" == committable.scope]
            sink.commit(committable.payload["name"])
        for sink in self.sinks:
            sink.committed_epoch = epoch
        known = self.decided.positions
        moved = {name: {**splits, **positions.get(name, {})} for name, splits in known.items()}
        self.decided = Decided(epoch, moved, states, in_flight)
        self.counts["epochs"] += 1
