"""Runs of schedules: carries the steps of ``sink_schedules`` out on a sink, and compares what is visible.

Rule: after each step that ends something, all that is visible is compared with what the schedule expects, the rows of
each writer in their order. A failure shows every step that led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias

from kafka_eos.abc.committer import (
    CommitPermit,
    CommitStatus,
    Committable,
    Committer,
)
from kafka_eos.abc.incarnation import SupportsLossCheck, SupportsRegistration
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import PreCommit, Writer
from kafka_eos.core.errors import CommittableLost, Fenced, KafkaEosError, Retryable
from kafka_eos.core.ids import EpochId, JobIdentity
from kafka_eos.core.json_values import Json
from kafka_eos.testing.sink_harness import ContractBroken, SinkHarness, calls, epoch_id, expect, through_json
from kafka_eos.testing.sink_schedules import (
    AbortStep,
    CommitAgainStep,
    CommitStep,
    DecidedEpoch,
    JobModel,
    NotifyStep,
    PrepareStep,
    RestartStep,
    SealStep,
    Step,
    WakeStep,
    WriteStep,
)

ReaderView: TypeAlias = Callable[[Sequence[Json]], Sequence[Json]]
"""Returns the rows that readers see, from rows that were written in this order."""

_WORKERS: Final[Sequence[Sequence[int]]] = ((0,), (0, 0), (0, 1))
"""One writer; two in one worker; two in two workers."""
_STEPS: Final = 50
_LARGEST: Final = 1 << 20


def run_seed(trial: SinkHarness, seed: int) -> None:
    """Run the schedule of a seed. ContractBroken names the seed."""
    random = Random(seed)  # noqa: S311 - repeated by its seed
    with _naming_seed(seed):
        run_choices(trial, random.choice(_WORKERS), (random.randrange(_LARGEST) for _ in range(_STEPS)))


def run_choices(trial: SinkHarness, workers: Sequence[int], choices: Iterable[int], view: ReaderView = list) -> None:
    """Run the schedule that these numbers stand for, with a writer for each of ``workers``, and end it."""
    with _run(trial, workers, view) as run:
        for choice in choices:
            run.take(run.job.choose_step(choice))
        run.end()


def run_steps(trial: SinkHarness, workers: Sequence[int], steps: Iterable[Step]) -> None:
    """Run these steps, and end the schedule."""
    with _run(trial, workers, list) as run:
        for step in steps:
            run.take(step)
        run.end()


@contextmanager
def _naming_seed(seed: int) -> Iterator[None]:
    try:
        yield
    except ContractBroken as error:
        raise ContractBroken(f"{error}\n  This is the schedule of seeds=[{seed}]") from error


@contextmanager
def _run(trial: SinkHarness, workers: Sequence[int], view: ReaderView) -> Iterator[_Run]:
    run = _Run(trial, workers, view)
    try:
        yield run
    except (ContractBroken, KafkaEosError) as error:
        what = error if isinstance(error, ContractBroken) else f"{type(error).__name__}: {error}"
        steps = "\n".join(f"  {number:>3}. {step}" for number, step in enumerate(run.history, 1))
        raise ContractBroken(f"{what}\n  The schedule, step by step:\n{steps}") from error


@dataclass(slots=True)
class _Attempt:
    """The writers of one term, and what they have prepared.

    ``sealed``      the newest epoch of each writer
    ``precommits``  that are not run yet, by worker and epoch
    ``prepared``    by epoch, if it is not decided
    """

    term: int
    writers: list[Writer[Any]]
    sealed: list[int]
    precommits: dict[tuple[int, int], list[PreCommit]] = field(default_factory=dict)
    prepared: dict[int, list[Committable]] = field(default_factory=dict)

    def seal_up_to(self, newest: int) -> list[Committable]:
        """Take every writer through its barriers up to an epoch, and prepare at once."""
        found: list[Committable] = []
        for epoch in range(min(self.sealed) + 1, newest + 1):
            for number, writer in enumerate(self.writers):
                if self.sealed[number] < epoch:
                    self.sealed[number] = epoch
                    found += writer.seal(epoch_id(epoch, self.term))()
        return found


@dataclass(frozen=True, slots=True)
class _FirstCommit:
    """A manifest's committables, and who committed them first."""

    permit: CommitPermit
    committables: Sequence[Committable]
    committer: Committer


class _Run:
    """One job on one target."""

    def __init__(self, trial: SinkHarness, workers: Sequence[int], view: ReaderView) -> None:
        self._trial, self._view = trial, view
        self.job = JobModel(workers, len(trial.rows))
        self.history: list[str] = []
        self._identity = JobIdentity.new()
        self._committer = trial.committer(1, identity=self._identity)
        self._asleep: _Attempt | None = None
        self._committed: list[_FirstCommit] = []
        self._attempt = self._open_writers()

    def take(self, step: Step) -> None:
        """Carry out a step, and check what is visible where that may have changed."""
        self.job.check_possible(step)
        match step:
            case WriteStep(writer, rows):
                self._write(writer, rows)
            case SealStep(writer):
                self._seal(writer)
            case PrepareStep(worker):
                self._prepare(worker)
            case AbortStep():
                self._abort()
            case CommitStep(newest_first, dies_after):
                self._commit(newest_first, dies_after)
            case NotifyStep(again):
                self._notify(again)
            case RestartStep(killed):
                self._restart(killed)
            case WakeStep():
                self._wake()
            case CommitAgainStep(ago):
                self._commit_again(ago)

    def end(self) -> None:
        """Restart, write one more epoch, and restart again: nothing is lost, doubled or left over."""
        self._restart(killed=True)
        for writer in range(len(self.job.workers)):
            if WriteStep(writer) in self.job.possible_steps():
                self.take(WriteStep(writer))
            self.take(SealStep(writer))
        for worker in sorted({*self.job.workers}):
            self.take(PrepareStep(worker))
        self.take(CommitStep())
        self._restart(killed=True)
        self._trial.expect_staged(self._committer, False, "after the last restart")

    # ------------------------------------------------------------ writers

    def _open_writers(self) -> _Attempt:
        """The writers of the term. Those of one worker share what a worker has once."""
        services = {worker: Services() for worker in self.job.workers}
        writers = [
            self._trial.writer(
                self.job.term,
                identity=self._identity,
                subtask=worker,
                operator=f"out-{number}",
                first=self.job.first,
                services=services[worker],
            )
            for number, worker in enumerate(self.job.workers)
        ]
        return _Attempt(self.job.term, writers, [self.job.first - 1 for _ in writers])

    def _write(self, writer: int, rows: int) -> None:
        some = self.job.write(writer, rows)
        self._say(f"writer {writer} gets {_rows(some)}")
        self._attempt.writers[writer].write(self._trial.batch(some.start, some.stop))

    def _seal(self, writer: int) -> None:
        epoch = self.job.seal(writer)
        self._say(f"writer {writer} reaches the barrier of epoch {epoch}")
        precommit = self._attempt.writers[writer].seal(epoch_id(epoch, self.job.term))
        self._attempt.precommits.setdefault((self.job.workers[writer], epoch), []).append(precommit)
        self._attempt.sealed[writer] = epoch

    def _prepare(self, worker: int) -> None:
        epoch = self.job.prepare(worker)
        self._say(f"worker {worker} prepares epoch {epoch}")
        found = [each for prepare in self._attempt.precommits.pop((worker, epoch)) for each in prepare()]
        self._attempt.prepared.setdefault(epoch, []).extend(through_json(found))

    def _abort(self) -> None:
        epoch, unsealed, unprepared = self.job.abort()
        self._say(f"epoch {epoch} is aborted: its output belongs to the next one that is decided")
        for writer in unsealed:
            self._seal(writer)
        for worker in unprepared:
            self._prepare(worker)

    def _notify(self, again: bool) -> None:
        epoch = self.job.notify(again=again)
        self._say(f"the writers are notified {'again ' if again else ''}that epoch {epoch} is committed")
        for writer in self._attempt.writers:
            writer.notify_committed(epoch_id(epoch, self.job.term))

    def _wake(self) -> None:
        """Let the killed workers continue. They may be fenced at any point; the rows that they had are lost.

        They may also open output that no search has seen yet, and hide that of others until the next one, which a
        coordinator makes every few seconds: see ``protocol.cleanup_schedule``.
        """
        attempt, row = self._asleep, self.job.wake()
        assert attempt is not None
        self._asleep = None
        self._say(
            f"the workers of term {attempt.term} were only frozen: they prepare what they have, and write {_rows(row)}"
        )
        found: list[Committable] = []
        with suppress(KafkaEosError):
            for prepare in (each for precommits in attempt.precommits.values() for each in precommits):
                found += prepare()
            found += attempt.seal_up_to(max(attempt.sealed) + 1)
            for writer in attempt.writers:
                writer.write(self._trial.batch(row.start, row.stop))
            attempt.seal_up_to(max(attempt.sealed) + 1)
        for probe in self._committer.probe_all(through_json(found)):
            gone = probe.status in (CommitStatus.LOST, CommitStatus.UNKNOWN)
            expect(gone, f"output that was open when abort_leftovers ran must not be committable afterwards: {probe}")
        self._committer.abort_leftovers(self._trial.context(self.job.term, identity=self._identity))
        self._check_visible()

    # ------------------------------------------------------------ commits

    def _commit(self, newest_first: bool, dies_after: int | None) -> None:
        decided = self.job.commit(whole=dies_after is None)
        which = [each for epoch in decided.epochs for each in self._attempt.prepared.pop(epoch, [])]
        committables = which[::-1] if newest_first else which
        self._say(
            f"epoch {decided.epoch} is decided, with the output of {', '.join(map(str, decided.epochs))}, and committed"
            f"{', the newest output first' if newest_first else ''}"
            f"{f'; the coordinator dies after {dies_after} calls' if dies_after is not None else ''}"
        )
        permit = self._trial.permit(_id(decided), self._committer, committables)
        self._committed.append(_FirstCommit(permit, committables, self._committer))
        for some in calls(self._committer, committables)[:dies_after]:
            self._committer.commit_all(permit, some)
        if dies_after is None:
            self._announce(permit, committables)
            self._check_visible()

    def _announce(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        if committables:
            self._committer.announce(permit, committables)

    def _commit_again(self, ago: int) -> None:
        """The commit may be refused because it comes too late."""
        decided, first = self.job.manifests[-1 - ago], self._committed[-1 - ago]
        self._say(f"a frozen process that committed epoch {decided.epoch} first resumes, and commits it again")
        for some in calls(first.committer, first.committables):
            with suppress(CommittableLost, Fenced, Retryable):
                first.committer.commit_all(first.permit, some)
        self._check_visible()

    def _restart(self, killed: bool) -> None:
        unfinished = self.job.restart(killed=killed)
        term = self.job.term
        how = "all processes are killed" if killed else "the workers discard their writers"
        self._say(f"{how}; term {term} commits what is decided and continues from epoch {self.job.first}")
        if killed:
            self._asleep, self._committer = self._attempt, self._trial.committer(term, identity=self._identity)
        else:
            for writer in self._attempt.writers:
                writer.discard()
        self._recover(unfinished)
        self._attempt = self._open_writers()
        self._check_visible()

    def _recover(self, unfinished: DecidedEpoch | None) -> None:
        """Recover as a coordinator does, see ``coordination.recovery``."""
        committer, ctx = self._committer, self._trial.context(self.job.term, identity=self._identity)
        newest = None if unfinished is None else self._committed[-1]
        self._expect_remembered(newest)
        if isinstance(committer, SupportsRegistration):
            committer.register(ctx)
        if unfinished is not None and newest is not None:
            permit = self._trial.permit(_id(unfinished), committer, newest.committables)
            for some in calls(committer, newest.committables):
                committer.commit_all(permit, some)
            self._announce(permit, newest.committables)
        committer.abort_leftovers(ctx)

    def _expect_remembered(self, newest: _FirstCommit | None) -> None:
        """The system has all that was finished there, so it must not be taken for an older copy."""
        committer = self._committer
        finished = self._committed if newest is None else self._committed[:-1]
        last = next((each for each in reversed(finished) if each.committables), None)
        if last is None or not isinstance(committer, SupportsLossCheck):
            return
        later = () if newest is None else committer.probe_all(newest.committables)
        if not any(probe.status is CommitStatus.COMMITTED for probe in later):
            ctx = self._trial.context(self.job.term, identity=self._identity)
            lacking = committer.find_missing_commits(ctx, finished[-1].permit.epoch, last.committables)
            expect(lacking is None, f"lacks must be None of a system that was not put back, not {lacking!r}")

    # ------------------------------------------------------------ what the steps share

    def _say(self, text: str) -> None:
        self.history.append(text)

    def _check_visible(self) -> None:
        rows, visible = self._trial.rows, self.job.visible
        written = [self._view([rows[row] for row in of]) for of in visible]
        hidden = []
        if self._trial.target.stable_offset:
            hidden = [rows[row] for of in visible for row in of if row > self.job.oldest_open]
        self._trial.expect_visible_of_each(written, f"after step {len(self.history)}", hidden=hidden)


def _id(decided: DecidedEpoch) -> EpochId:
    return epoch_id(decided.epoch, decided.term)


def _rows(which: range) -> str:
    return f"row {which[0]}" if len(which) == 1 else f"rows {which[0]} to {which[-1]}"
