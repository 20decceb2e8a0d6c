"""A replay of epochs in this process: the state of a checkpoint, the records read after it, and no sink.

Rows are processed one by one, in the order of ``EpochInput.records``, by one worker, with state in memory. Event time
advances after each record. The clock stands at the decision of the epoch before, and moves to the decision of the epoch
after its last record.

Rule: what a replay cannot know is not made up. The order of records and the clock are given by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.abc.auditable import AuditableSource
from kafka_eos.abc.state import StateBackend
from kafka_eos.core.errors import PlanError, PoisonRecord
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.plan import Plan, SourceNode
from kafka_eos.runtime.exchange.in_flight_rows import read_rows
from kafka_eos.runtime.operators.event_time import WITH_EACH_BATCH, WatermarkSchedule
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.restore_progress import RestoreFetcher, nobody
from kafka_eos.runtime.state.row_keys import RowKeyCodec
from kafka_eos.savepoints.snapshot import Snapshot, StateInfo, descriptor_of
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.storage.savepoint_files import Savepoint, new_id
from kafka_eos.testing.local_parts import LocalClock, LocalRun, SinkOutput, open_states
from kafka_eos.testing.traced_chain import TracedChain, TracedRejection, TraceStep, as_json, format_place


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One record of a source, as it was read."""

    source: str
    raw: RawRecord
    batch: Batch[Any] | None = None
    """Its row, if the source has no codec that decodes ``raw``."""
    error: Exception | None = None
    """Why the reader of such a source rejected it."""


@dataclass(frozen=True, slots=True)
class EpochInput:
    """The input of one epoch, in the order of processing."""

    epoch: int
    decided_at: int
    """Milliseconds since the Unix epoch."""
    records: Sequence[InputRecord]


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """The start of a replay: the state of an epoch, the splits, and the time."""

    state: Snapshot
    at: int
    """The decision of that epoch, in milliseconds since the Unix epoch."""
    splits: Mapping[str, Collection[str]]
    """All splits that are read, by source."""
    excluded: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Splits that are excluded from the watermark, by source."""


class ReplayedEpoch(LocalRun):
    """The values that each sink would get in the epoch. It is a dict, and equal to one.

    ``before`` and ``after`` are the state, ``steps`` the calls of operators, ``rejected`` the dead letters.
    ``failure`` is the error that stopped the replay, as it would stop the job.
    """

    before: Snapshot
    after: Snapshot
    failure: PoisonRecord | None = None

    def __init__(self, sinks: Sequence[str]) -> None:
        super().__init__(sinks)
        self.steps: list[TraceStep] = []
        self.rejected: list[TracedRejection] = []

    @property
    def outputs(self) -> dict[str, list[Any]]:
        """Return what each sink got as plain values: what JSON can express."""
        return {sink: [as_json(value) for value in values] for sink, values in self.items()}

    @property
    def changes(self) -> dict[str, dict[str, Any]]:
        """Return the state that the epoch changed, as plain values, None where it was deleted.

        Keys are ``operator.state``, then the entry's key: text as it is, anything else as JSON.
        """
        found: dict[str, dict[str, Any]] = {}
        for each in list_changes(self.before, self.after):
            found.setdefault(f"{each.operator}.{each.state}", {})[format_place(each.place)] = as_json(each.after)
        return found


def replay_epochs(plan: Plan, start: ReplayStart, epochs: Iterable[EpochInput], *, stop: bool = True) -> ReplayedEpoch:
    """Run epochs one after the other; return what the last one did. Two of them are in memory at a time.

    ``stop``: raise PoisonRecord where the job would stop. Otherwise the result has it as ``failure``, and the state
    after it is that of the moment.
    """
    result = ReplayedEpoch([sink.name for sink in plan.sinks])
    with ExitStack() as closing:
        directory = closing.enter_context(temporary_directory())
        run = _Replay(plan, start, result, directory, closing)
        has_begun, last = False, None
        for epoch in epochs:
            if last is not None:
                if not has_begun:
                    run.restore()
                has_begun = True
                run.process(last)
            last = epoch
        assert last is not None
        result.before = run.take_snapshot(0)
        run.begin_recording()
        try:
            if not has_begun:
                run.restore()
            run.process(last)
        except PoisonRecord as error:
            if stop:
                raise
            result.failure = error
        result.after = run.take_snapshot(1)
        result.late = run.late
        result.steps = run.chain.steps
        result.rejected = run.chain.rejected
    return result


class _Replay:
    """The open operators of a replay."""

    def __init__(
        self, plan: Plan, start: ReplayStart, result: ReplayedEpoch, directory: Path, closing: ExitStack
    ) -> None:
        self._plan = plan
        self._start = start
        self._result = result
        self._directory = directory
        self._sources: dict[str, SourceNode] = {node.name: node for node in plan.sources}
        self._clock = clock = LocalClock(start.at)
        outputs = {sink.name: SinkOutput(sink, result) for sink in plan.sinks}
        state = start.state
        self._backends: dict[str, StateBackend] = open_states(
            plan, directory, closing, clock.read, state.handles, state.storage
        )
        pace = WatermarkSchedule(WITH_EACH_BATCH.every, clock.seconds)
        self.chain = TracedChain(
            plan,
            self._backends,
            outputs,
            pace=pace,
            clock=clock.read,
            waived=lambda source: start.excluded.get(source, ()),
        )
        closing.callback(self.chain.close)
        for output in outputs.values():
            output.refuse = self.chain.rejections.reject_output
        for source, splits in start.splits.items():
            self.chain.assign(source, splits)
        self._late: dict[str, int] = {}

    @property
    def late(self) -> dict[str, int]:
        """Return the number of late rows since the recording began, by operator."""
        counts = self.chain.counts.late
        return {name: n - self._late.get(name, 0) for name, n in counts.items() if n > self._late.get(name, 0)}

    def restore(self) -> None:
        """Process what was due or in flight when the state was stored."""
        self.chain.resume()
        stored = self._start.state
        kept = stored.content.in_flight
        files = [file for part in kept for file in part.files]
        fetcher = RestoreFetcher("rows in flight", stored.storage, files, nobody)
        for _, exchange, rows in read_rows(self._plan, fetcher, self._directory / "frames", kept):
            self.chain.push(exchange, rows)
            self.chain.make_room()

    def begin_recording(self) -> None:
        """Forget what the epochs before have made, and record from here on."""
        for values in (*self._result.values(), *self._result.written.values()):
            values.clear()
        self._late = dict(self.chain.counts.late)
        self.chain.recording = True

    def process(self, epoch: EpochInput) -> None:
        """Process the records of an epoch, and end it."""
        for record in epoch.records:
            batch = self._read(record)
            if batch is None or not len(batch):
                self.chain.note_empty_read(record.source)
            else:
                self.chain.push(record.source, batch)
            self.chain.make_room()
        self._clock.now = max(self._clock.now, epoch.decided_at)
        self.chain.finish()

    def _read(self, record: InputRecord) -> Batch[Any] | None:
        """Return the row of a record, as the reader would."""
        if record.batch is not None:
            return record.batch
        reject = partial(self.chain.rejections.reject_record, record.source)
        if record.error is not None:
            reject(record.raw, record.error)
            return None
        node = self._sources.get(record.source)
        if node is None or not isinstance(node.source, AuditableSource):
            raise PlanError(
                f"pipeline {self._plan.name!r} has no source {record.source!r} that decodes records; its sources are "
                f"{', '.join(self._sources)}"
            )
        return node.source.decode(record.source, [record.raw], reject)

    def take_snapshot(self, number: int) -> Snapshot:
        """Return the state of all operators now."""
        storage, base = MemoryStorage(), self._start.state.content
        handles = tuple(backend.snapshot(Epoch(number))(storage) for backend in self._backends.values())
        content = Savepoint(
            job=self._plan.name,
            id=new_id(),
            epoch=base.epoch,
            term=base.term,
            created_at=self._clock.now,
            plan=self._plan.fingerprint,
            max_key_groups=MAX_KEY_GROUPS,
            sources=base.sources,
            operators=handles,
        )
        return Snapshot(self._plan.name, storage, content)


@dataclass(frozen=True, slots=True)
class StateChange:
    """One entry of a state that an epoch has set, replaced or deleted. ``before`` or ``after`` may be None."""

    operator: str
    state: str
    key: Any
    place: Any
    """The key, or a tuple that begins with it; see ``Snapshot.read``."""
    before: Any
    after: Any


def list_changes(before: Snapshot, after: Snapshot) -> Iterator[StateChange]:
    """Yield the entries of state that differ."""
    known, made = _list_states(before), _list_states(after)
    for operator, state in sorted(known.keys() | made.keys()):
        one = dict(before.read(operator, state)) if (operator, state) in known else {}
        other = dict(after.read(operator, state)) if (operator, state) in made else {}
        info = (known | made)[operator, state]
        is_key = RowKeyCodec(descriptor_of(info.description)).is_single_part
        for place in dict.fromkeys((*one, *other)):
            if (was := one.get(place)) != (now := other.get(place)):
                yield StateChange(operator, state, place if is_key else place[0], place, was, now)


def _list_states(snapshot: Snapshot) -> dict[tuple[str, str], StateInfo]:
    return {(name, state): info for name in snapshot.operators() for state, info in snapshot.states(name).items()}
