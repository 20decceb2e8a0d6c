"""Schedules for ``check_source``: a seed draws the epochs and restarts of a job with one source.

Subtasks reach the barrier of an epoch while others still read. The epoch is decided once all have reached it, or is
aborted. The source is notified of its commit at once, or while the next epochs are captured; once, twice or never.
Workers are killed or drop their readers at any time. Then the job rolls back to the newest decided epoch, with another
number of subtasks, so that splits move. A worker or supervisor of an earlier start may have been frozen, and continue
later.

Rule: a schedule does nothing that an engine cannot do. Each row is compared with the next expected one of its split, so
a row that is missing, repeated or out of order is noticed where it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.source import Reader, Source
from kafka_eos.core.errors import KafkaEosError
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.json_values import Position, Positions
from kafka_eos.protocol.split_assignment import subtask_of_split
from kafka_eos.testing.sink_harness import ContractBroken, expect
from kafka_eos.testing.source_harness import SourceHarness, SourceRow, by_split, through_json

_STEPS: Final = 80
_MOST_SUBTASKS: Final = 3
_MOST_AT_A_TIME: Final = 3
"""Records a poll."""


def run_schedule(trial: SourceHarness, seed: int) -> None:
    """Run the schedule of a seed, then read the input to its end.

    What goes wrong is ContractBroken, with every step that led to it.
    """
    job = _Job(trial, Random(seed))  # noqa: S311 - repeated by its seed
    try:
        job.start()
        for _ in range(_STEPS):
            job.step()
        job.read_to_the_end()
    except (ContractBroken, KafkaEosError) as error:
        what = error if isinstance(error, ContractBroken) else f"{type(error).__name__}: {error}"
        steps = "\n".join(f"  {number:>3}. {step}" for number, step in enumerate(job.history, 1))
        raise ContractBroken(f"{what}\n  The schedule of seeds=[{seed}], step by step:\n{steps}") from error


@dataclass(slots=True)
class _Epoch:
    """An epoch: the part of its manifest about the source.

    ``read``     how many rows of each split had been returned when its subtask reached the barrier
    ``missing``  the subtasks that have not reached it
    """

    id: EpochId
    positions: dict[SplitId, Position] = field(default_factory=dict)
    read: dict[SplitId, int] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Subtask:
    """One subtask of the running job. ``source`` belongs to its worker process, which may outlive it."""

    number: int
    source: Source[Any]
    reader: Reader[Any]
    splits: set[SplitId]
    paused: set[SplitId] = field(default_factory=set)

    def list_excluded_splits(self) -> set[SplitId]:
        """Splits that need not bring rows now: the source reads others first."""
        source = self.source
        return {*source.list_excluded_splits(self.reader.positions())}

    def __str__(self) -> str:
        return f"subtask {self.number}"


class _Job:
    """The supervisor, the subtasks and the epochs of one job. ``step`` takes any step that comes next."""

    def __init__(self, trial: SourceHarness, random: Random) -> None:
        self._trial, self._random = trial, random
        self.history: list[str] = []
        self._supervisor = trial.source()
        self._processes: dict[int, Source[Any]] = {}
        """The source of each worker process, by the number of its subtask."""
        self._subtasks: list[_Subtask] = []
        self._abandoned: list[Reader[Any]] = []
        """Readers of lost workers, which may still run."""
        self._committed: list[_Epoch] = []
        """Committed epochs. A frozen supervisor may notify the source of one later."""
        self._term = 0
        self._next = 1
        self._pending: _Epoch | None = None
        """The epoch that is triggered and not decided."""
        self._first = trial.discover()
        self._rows: dict[SplitId, list[SourceRow]] = {}
        """All rows of the input by split: a schedule returns each of them, in this order."""
        self._look_at_the_rows()
        self._known: dict[SplitId, Position] = dict(self._first)
        """The supervisor's positions: those of the newest decided epoch, and splits that were found since."""
        self._decided = _Epoch(_id(0, 1), dict(self._first), dict.fromkeys(self._first, 0))
        self._committing: _Epoch | None = None
        """The decided epoch about which the source has not been notified."""
        self._read: dict[SplitId, int] = {}
        self._settled: dict[SplitId, int] = {}
        """The number of rows of each split before the input grew; empty until then. Readers need not see later rows."""

    # ------------------------------------------------------------ steps

    def start(self) -> None:
        """Resume from the newest decided epoch, with any number of subtasks."""
        self._term += 1
        self._committed += [] if self._committing is None else [self._committing]  # the old supervisor may still tell
        self._pending = self._committing = None
        self._known = dict(self._search(self._decided.positions))
        self._read = {split: self._decided.read.get(split, 0) for split in self._known}
        subtasks = self._random.randint(1, _MOST_SUBTASKS)
        self._say(f"start {self._term} continues from epoch {self._decided.id.epoch}; parallelism is {subtasks}")
        self._subtasks = [self._open(number, subtasks) for number in range(subtasks)]

    def step(self) -> None:
        steps: Mapping[Callable[[], None], int] = {
            self._read_some: 12,
            self._trigger: 8,
            self._come_to_the_barrier: 12,
            self._decide: 10,
            self._notify: 3,
            self._give_up: 3,
            self._pause: 2,
            self._find_new_splits: 2,
            self._grow: 1,
            self._restart: 4,
            self._wake_what_was_abandoned: 1,
        }
        (taken,) = self._random.choices([*steps], [*steps.values()])
        taken()

    def _read_some(self) -> None:
        subtask, most = self._random.choice(self._subtasks), self._random.randint(1, _MOST_AT_A_TIME)
        awaited = sorted(subtask.splits - subtask.paused - subtask.list_excluded_splits())
        due = ", ".join(split for split in awaited if self._read[split] < len(self._rows[split]))
        rows = (
            self._trial.read_next_rows(subtask.reader, most, due)
            if due
            else self._trial.poll(subtask.reader, most, 0.0)
        )
        self._take(subtask, rows, most)
        self._look_at(subtask)

    def _trigger(self) -> None:
        if self._pending is None:
            self._pending = _Epoch(_id(self._next, self._term), missing={each.number for each in self._subtasks})
            self._next += 1
            self._say(f"epoch {self._pending.id.epoch} is triggered")

    def _come_to_the_barrier(self) -> None:
        """Capture the positions of one subtask. Each subtask reaches the barrier at its own time."""
        epoch = self._pending
        if epoch is None or not epoch.missing:
            return
        subtask = self._subtasks[self._random.choice(sorted(epoch.missing))]
        at = through_json(subtask.reader.positions())
        named, read = sorted(at), sorted(subtask.splits)
        expect(named == read, f"positions() of {subtask} names {named}, and it reads {read}")
        epoch.missing.remove(subtask.number)
        epoch.positions.update(at)
        epoch.read.update({split: self._read[split] for split in at})
        self._say(f"{subtask} reaches the barrier of epoch {epoch.id.epoch}: {at}")

    def _decide(self) -> None:
        """Decide the epoch if all subtasks have reached its barrier and the previous one is committed."""
        if self._pending is not None and not self._pending.missing and self._committing is None:
            self._decided = self._committing = self._pending
            self._pending = None
            self._known.update(self._decided.positions)
            self._say(f"epoch {self._decided.id.epoch} is decided")

    def _notify(self) -> None:
        """Notify the source that the decided epoch is committed: maybe twice, maybe not at all."""
        if self._committing is None:
            return
        epoch, self._committing = self._committing, None
        times = self._random.choice([0, 1, 1, 2])
        self._say(f"epoch {epoch.id.epoch} is committed; the source is notified {('never', 'once', 'twice')[times]}")
        for _ in range(times):
            self._complete(self._supervisor, epoch)
        self._committed.append(epoch)

    def _give_up(self) -> None:
        """Give up the epoch. Its subtasks read on: nothing is read again."""
        if self._pending is not None:
            self._say(f"epoch {self._pending.id.epoch} is aborted; the job continues")
            self._pending = None

    def _pause(self) -> None:
        subtask = self._random.choice(self._subtasks)
        subtask.paused = {split for split in sorted(subtask.splits) if self._random.random() < 0.5}
        subtask.reader.pause(sorted(subtask.paused))
        self._say(f"{subtask} pauses {', '.join(sorted(subtask.paused)) or 'nothing any more'}")

    def _find_new_splits(self) -> None:
        """Search as a running job does: from decided positions, while its readers are further."""
        found = self._search(self._known)
        for split in sorted(found.keys() - self._known.keys()):
            subtask = self._subtasks[subtask_of_split(split, len(self._subtasks))]
            self._say(f"{split} is found, and assigned to {subtask}, from {found[split]}")
            self._known[split], self._read[split] = found[split], 0
            subtask.splits.add(split)
            subtask.reader.assign({split: found[split]})

    def _grow(self) -> None:
        """Add to the input, once, if it ever grows."""
        if self._trial.target.append is None or self._settled:
            return
        self._settled = {split: len(rows) for split, rows in self._rows.items()}
        added = self._trial.append()
        self._say(f"{len(added)} records are added to the input")
        self._look_at_the_rows()

    def _restart(self) -> None:
        """End the attempt: workers die, or drop their readers. If the supervisor dies, all of them do."""
        dead = {subtask.number for subtask in self._subtasks if self._random.random() < 0.5}
        if self._random.random() < 0.3:
            dead = {subtask.number for subtask in self._subtasks}
            self._supervisor, self._processes = self._trial.source(), {}
        for subtask in self._subtasks:
            if subtask.number in dead:
                self._processes.pop(subtask.number, None)
                self._abandoned.append(subtask.reader)
            else:
                subtask.reader.close()
        self._say(f"the job is interrupted; workers that die: {sorted(dead) or 'none'}")
        self.start()

    def _wake_what_was_abandoned(self) -> None:
        """Let a frozen worker poll again, and a frozen supervisor report its epoch. Both results are ignored."""
        if self._abandoned:
            self._say("a frozen worker of an earlier start wakes up, and reads")
            with suppress(KafkaEosError):  # it may be told that it is not wanted any more
                self._random.choice(self._abandoned).poll(_MOST_AT_A_TIME, 0.0)
        if self._committed:
            epoch = self._random.choice(self._committed)
            self._say(f"a frozen supervisor wakes up, and notifies the source that epoch {epoch.id.epoch} is committed")
            self._complete(self._trial.source(), epoch)

    def read_to_the_end(self) -> None:
        """Pause nothing any more, and read what is left."""
        self._find_new_splits()
        self._say("the job reads its input to the end")
        ends = self._trial.goal(self._known)
        for subtask in self._subtasks:
            subtask.paused = set()
            subtask.reader.pause([])
            mine = {split: end for split, end in ends.items() if split in subtask.splits}
            for rows in self._trial.polls(subtask.reader, mine, _MOST_AT_A_TIME):
                self._take(subtask, rows, _MOST_AT_A_TIME)
        left = {split: rows[self._read.get(split, 0) :] for split, rows in self._rows.items()}
        missing = {split: [row.value for row in rows] for split, rows in left.items() if rows}
        expect(not missing, f"the ends are reached, and records are missing: {missing}")

    # ------------------------------------------------------------ what the steps share

    def _say(self, text: str) -> None:
        self.history.append(text)

    def _look_at_the_rows(self) -> None:
        """Read the whole input undisturbed: what was there before comes again, in the same order."""
        found = self._trial.discover(self._first)
        rows = self._trial.read_all(self._trial.reader(found), self._trial.goal(found))
        there: dict[SplitId, list[SourceRow]] = {split: [] for split in found} | by_split(rows)
        for split, before in self._rows.items():
            again = there[split][: len(before)]
            self._trial.expect_rows(again, before, f"{split} was read again after the input had grown")
        self._rows = there

    def _search(self, known: Positions) -> Positions:
        """Ask the supervisor's source for splits. The positions that it is given must stay as they are."""
        found = self._trial.discover(known, of=self._supervisor, job=self._job)
        stays = {split: found.get(split) for split in known} == known
        expect(stays, f"discover must return known positions unchanged: was given {known}, returned {found}")
        return found

    @property
    def _job(self) -> JobContext:
        context = self._trial.context
        return JobContext(context.job, Term(self._term), context.settings)

    def _open(self, number: int, subtasks: int) -> _Subtask:
        """Open a reader of the subtask's share, by the source of its worker process."""
        share = {split: at for split, at in self._known.items() if subtask_of_split(split, subtasks) == number}
        if number not in self._processes:
            self._processes[number] = self._trial.source()
        source = self._processes[number]
        reader = self._trial.reader(share, number, subtasks, of=source, job=self._job)
        self._say(f"subtask {number} is assigned {', '.join(map(str, share)) or 'nothing'}")
        return _Subtask(number, source, reader, {*share})

    def _take(self, subtask: _Subtask, rows: Iterable[SourceRow], most: int) -> None:
        """Compare each row with the one that is due in its split."""
        returned = [*rows]
        self._say(f"{subtask} returns {', '.join(map(str, returned)) or 'nothing'}")
        expect(len(returned) <= most, f"{subtask} was asked for {most} rows, but returned {len(returned)}")
        for row in returned:
            split = row.split
            expect(split in subtask.splits, f"{subtask} returned {row}, but does not read {split}")
            expect(split not in subtask.paused, f"{subtask} returned {row}, but {split} is paused")
            at, all_ = self._read[split], self._rows[split]
            expect(at < len(all_), f"{subtask} returned {row}, but nothing of {split} is left to read")
            expect(row.same_as(all_[at]), f"{subtask} returned {row}, and {all_[at]} is due in {split}")
            self._read[split] += 1

    def _look_at(self, subtask: _Subtask) -> None:
        """Ask what an engine asks between two batches; no answer may be ahead of the rows that were returned."""
        there = self._settled or {split: len(rows) for split, rows in self._rows.items()}
        unread = {split for split in subtask.splits if self._read[split] < there.get(split, 0)}
        early = unread.intersection(subtask.reader.list_splits_at_end())
        expect(not early, f"at_end() of {subtask} names {sorted(early)}, but there is more to read")
        if unread:
            expect(subtask.reader.lag() != 0, f"lag() of {subtask} is 0, but there is more to read of {sorted(unread)}")

    def _complete(self, source: Source[Any], epoch: _Epoch) -> None:
        context = JobContext(self._trial.context.job, epoch.id.term, self._trial.context.settings)
        with suppress(KafkaEosError, OSError):  # which would be a notice: nothing rests on it
            source.notify_committed(context, epoch.id, through_json(epoch.positions))


def _id(epoch: int, term: int) -> EpochId:
    return EpochId(Epoch(epoch), Term(term))
