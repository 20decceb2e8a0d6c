"""The replay of one epoch of a job: finds the state and the records, runs them, compares with what is stored.

Rule: what the job has stored about the epoch (its state, the rows that it committed to topics, the number of rows of
other sinks) is compared with the replay, as far as both mean the same.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kafka_eos.abc.context import JobContext
from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import JobIdentity, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.ops.epoch_replay.committed_rows import CommittedRows, read_committed_rows
from kafka_eos.ops.epoch_replay.epoch_reader import find_ends, read_epochs
from kafka_eos.ops.epoch_replay.inexact_parts import list_inexact_parts
from kafka_eos.ops.epoch_replay.stored_epochs import StoredEpochs
from kafka_eos.plan import Plan
from kafka_eos.protocol.source_dependencies import connector_positions
from kafka_eos.runtime.program import CodeFingerprint, Program
from kafka_eos.runtime.state.schema_evolution import split_description
from kafka_eos.savepoints import Snapshot
from kafka_eos.storage.epoch_ledger import LedgerEntry
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.testing.epoch_replay import (
    EpochInput,
    ReplayedEpoch,
    ReplayStart,
    StateChange,
    list_changes,
    replay_epochs,
)


@dataclass(frozen=True)
class JobReplay:
    """The result of a replay: the epoch, what it made, and how that differs from what the job stored."""

    job: str
    plan: Plan
    start: ReplayStart
    """The state and the splits at the beginning of the epoch."""
    first: int
    """The epoch whose stored state the replay began with."""
    input: EpochInput
    run: ReplayedEpoch
    entry: LedgerEntry | None
    """The job's ledger entry of the epoch; None if it was not decided."""
    changes: Sequence[StateChange]
    stored: Sequence[StateChange] | None
    """Entries of state that differ: in the replay (before), and as the job has stored them (after). None: unknown."""
    committed: CommittedRows | None
    """The rows that the epoch committed. None: they cannot be compared with those of the replay."""
    inexact: Mapping[str, Sequence[str]]
    notes: Sequence[str]
    """Other limits of the whole replay."""

    @property
    def miscounted(self) -> dict[str, tuple[int, int]]:
        """Return the sinks that get another number of rows than the epoch committed: replayed, committed."""
        if self.entry is None or not self.is_counted:
            return {}
        counts = {sink: (len(values), self.entry.outputs.get(sink, 0)) for sink, values in self.run.items()}
        return {sink: both for sink, both in counts.items() if both[0] != both[1]}

    @property
    def other_rows(self) -> dict[str, tuple[list[Any], list[Any]]]:
        """Return the sinks whose rows differ: the rows that only the epoch has, and those that only the replay has."""
        if self.committed is None:
            return {}
        outputs = self.run.outputs
        both = {
            sink: compare_rows([row.value for row in rows], outputs[sink]) for sink, rows in self.committed.rows.items()
        }
        return {sink: differences for sink, differences in both.items() if any(differences)}

    @property
    def is_counted(self) -> bool:
        """Return whether the epoch committed exactly the outputs of its records, and their number is known."""
        return self.entry is not None and not self.entry.in_flight and self.run.failure is None

    @property
    def is_equal(self) -> bool:
        """Return whether nothing that was compared differs, and the replay was not stopped."""
        return self.run.failure is None and not (self.miscounted or self.other_rows or self.stored)


def compare_rows(committed: Sequence[Any], replayed: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the plain values that only the first list has, and those that only the second one has, each as often."""
    texts = [[msgspec.json.encode(row, order="sorted") for row in rows] for rows in (committed, replayed)]
    known = dict(zip((*texts[0], *texts[1]), (*committed, *replayed), strict=True))
    one, other = map(Counter, texts)
    return [known[text] for text in (one - other).elements()], [known[text] for text in (other - one).elements()]


def replay_epoch(
    program: Program,
    settings: Settings,
    storage: JobStorage,
    epoch: int | None,
    begin: str | None,
    record: str | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> JobReplay:
    """Replay an epoch of a job: that of ``record``, an input record, or the newest one if neither is given.

    ``begin``: a savepoint to begin with, or "start" for the job's first epoch; None for the newest stored state, or the
    first epoch if there is none. ``announce`` is told before a replay of more than one epoch. Raises ConfigError if its
    state or its input is not available any more.
    """
    plan = program.plan()
    stored = StoredEpochs.read(storage, plan.name, settings.checkpoint_location(plan.name))
    if epoch is None:
        epoch = stored.newest if record is None else stored.find_epoch(record)
    state = stored.find_start(plan.name, epoch, begin)
    between, entry = stored.list_between(state.epoch, epoch), stored.entries.get(epoch)
    if len(between) > 1:
        announce(
            f"replaying {len(between)} epochs up to {epoch}, from the state of epoch {state.epoch}: the newest that is "
            "stored before it, or that of --from"
        )
    identity = state.content.identity
    context = JobContext(
        plan.name,
        Term(state.content.term),
        settings.connector_defaults(),
        None if identity is None else JobIdentity(identity),
    )
    ends: list[Mapping[str, Positions]] = [each.sources for each in between]
    if entry is None:
        ends.append(find_ends(plan, context, ends[-1] if ends else state.sources))
    times = [(each.id.epoch.n, each.at) for each in between] + ([(epoch, _now())] if entry is None else [])
    newest: deque[EpochInput] = deque(maxlen=2)

    def read() -> Iterator[EpochInput]:
        for (number, at), records in zip(times, read_epochs(plan, context, state.sources, ends), strict=True):
            newest.append(EpochInput(number, at, records))
            yield newest[-1]

    before = ([state.sources, *ends])[-2]
    begun = stored.entries[state.epoch].at
    start = ReplayStart(state, begun, _list_splits(ends[-1]), _list_excluded(plan, before))
    run = replay_epochs(plan, start, read(), stop=False)
    if len(newest) > 1:
        start = ReplayStart(run.before, newest[0].decided_at, start.splits, start.excluded)
    given = newest[-1]
    committed = None
    if entry is not None and not entry.in_flight and run.failure is None:
        committed = read_committed_rows(plan, context, entry, _list_records(plan, given, run))
    return JobReplay(
        job=plan.name,
        plan=plan,
        start=start,
        first=state.epoch,
        input=given,
        run=run,
        entry=entry,
        changes=list(list_changes(run.before, run.after)),
        stored=_compare_stored(stored, epoch, run, entry),
        inexact=list_inexact_parts(
            plan, _list_read(given), settings.parallelism if entry is None else entry.parallelism, run.before
        ),
        committed=committed,
        notes=[
            *_list_notes(program, plan, settings, stored, state, entry),
            *(
                f"the rows of sink {sink} are not compared: {reason}"
                for sink, reason in ({} if committed is None else committed.unread).items()
            ),
        ],
    )


def _now() -> int:
    return time.time_ns() // 1_000_000


def _list_splits(positions: Mapping[str, Positions]) -> dict[str, list[str]]:
    return {source: sorted(splits) for source, splits in positions.items()}


def _list_records(plan: Plan, epoch: EpochInput, run: ReplayedEpoch) -> dict[str, set[str]]:
    """Return the input records of the epoch, and what the replay's rows of a sink came from, by sink."""
    read = {record.raw.location for record in epoch.records}
    found = {node.name: set(read) for node in plan.sinks}
    for step in run.steps:
        if step.operator in found:
            found[step.operator].update(row.record for row in step.rows)
    return found


def _list_read(epoch: EpochInput) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for record in epoch.records:
        found.setdefault(record.source, set()).add(f"{record.raw.topic}/{record.raw.partition}")
    return found


def _list_excluded(plan: Plan, positions: Mapping[str, Positions]) -> dict[str, list[str]]:
    """Return the splits that the watermark did not wait for when the epoch began."""
    found: dict[str, list[str]] = {}
    for node in plan.sources:
        known = connector_positions(positions.get(node.name, {}))
        if splits := node.source.list_excluded_splits(known):
            found[node.name] = sorted(map(str, splits))
    return found


def _compare_stored(
    stored: StoredEpochs, epoch: int, run: ReplayedEpoch, entry: LedgerEntry | None
) -> list[StateChange] | None:
    """Return how the state after the replay differs from the checkpoint of the epoch; None if that is unknown."""
    if entry is None or entry.in_flight or run.failure is not None or epoch not in stored.manifests:
        return None
    try:
        kept = stored.open_state(epoch)
        if any(_describe(kept, name) != _describe(run.after, name) for name in kept.operators()):
            return None  # a state has another type now, so that its values have another form
        return list(list_changes(run.after, kept))
    except (FileNotFoundError, CorruptCheckpoint):  # the running job has deleted the checkpoint meanwhile
        return None


def _describe(snapshot: Snapshot, operator: str) -> object:
    if operator not in snapshot.operators():
        return None
    return {name: split_description(info.description)[0] for name, info in snapshot.states(operator).items()}


def _list_notes(
    program: Program,
    plan: Plan,
    settings: Settings,
    stored: StoredEpochs,
    state: Snapshot,
    entry: LedgerEntry | None,
) -> list[str]:
    notes = []
    if entry is None:
        notes.append(
            "the epoch was not decided: its input has no end yet, and the replay read all records that exist now"
        )
    else:
        files = CodeFingerprint.compute(program.app.path, plan).files
        if changed := stored.list_changed_files(entry, files):
            notes.append(f"the job ran other code in this epoch: {', '.join(changed)} has changed since")
        elif entry.plan != plan.fingerprint:
            notes.append("the job ran another pipeline in this epoch: its operators have changed since")
        if entry.in_flight:
            notes.append(
                "the epoch ended with rows in flight, which the job processed in the next one and the replay in this "
                "one: its state and output are not compared"
            )
    if state.content.in_flight:
        notes.append("rows that were in flight at the beginning are processed before all records")
    if settings.checkpoint_mode == "at-least-once":
        notes.append('with checkpoint_mode="at-least-once" the state may contain records of the next epoch')
    return notes
