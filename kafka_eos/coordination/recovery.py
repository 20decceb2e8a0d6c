"""The first phase of a recovery: what is decided is finished, or revoked, before anything else is looked at.

Rule: it opens the newest manifests alone and reads no state file, so its time does not grow with the state;
``protocol.recovery`` says what is to be done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Patience
from kafka_eos.abc.committer import Probe, Standing
from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination import identity as identities
from kafka_eos.coordination import savepoint_start as origin
from kafka_eos.coordination import terms
from kafka_eos.coordination.epochs import Epochs
from kafka_eos.coordination.incarnations import Lives
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import Ownership
from kafka_eos.coordination.sinks import Outputs
from kafka_eos.coordination.sources import Inputs
from kafka_eos.core.errors import CommittableLost, ConfigError, CorruptCheckpoint, Fenced, Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.protocol.commit import COMMIT_MARGIN, Commit, Revoke, Stop, undecidable
from kafka_eos.protocol.recovery import Fresh, Settled, Superseded, Unfinished, finished, next_epoch, resolve, settle
from kafka_eos.runtime.epoch_reports import Acked
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import verification as verify
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nothing was ever decided. ``heir_of``: the starts before this one in the same directory."""

    heir_of: frozenset[JobIdentity]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Completes what is decided, under a new term."""

    storage: JobStorage
    ownership: Ownership
    lives: Lives
    outputs: Outputs
    epochs: Epochs
    stored: StoredState
    history: History
    patience: Patience

    def complete(self) -> Manifest | Undecided:
        """Take a term, and finish or revoke what is decided; the epoch to go on from.

        Raises Fenced, CorruptCheckpoint, CommittableLost, ConfigError; Interrupted when told to stop.
        """
        known = identities.find(self.storage, self.ownership.job)
        self.ownership.identity = known or identities.new(self.ownership.job)
        facts = self.ownership.take_term(Term(0))
        resumption = resolve(facts, self.ownership.term)
        # First: a newer term may have removed records while they were listed.
        if isinstance(resumption, Superseded):
            raise Fenced(f"term {self.ownership.term} was replaced by term {resumption.by} while it was starting")
        if missing := terms.missing(facts):
            raise CorruptCheckpoint(
                f"{', '.join(missing)}: missing, though later records are there. Restore from a copy."
            )
        self.ownership.next = next_epoch(facts)
        if isinstance(resumption, Settled | Unfinished):
            if known is None:
                self.ownership.recognise_by(resumption.newest)
            self._expect_remembered(resumption.newest, finished(facts))
            self.lives.hold(self.ownership.context)
        match resumption:
            case Fresh() if known is not None:
                raise CorruptCheckpoint(
                    f"{known.name} is there, which is written when an epoch is decided, but no decided epoch is: "
                    "manifests were deleted. Restore the directory from a copy."
                )
            case Fresh():
                return Undecided(
                    identities.earlier(self.storage, self.ownership.job, facts.claims - {self.ownership.term})
                )
            case Settled(newest=newest):
                manifest = self._settled(newest)
            case Unfinished() as unfinished:
                manifest = self._unfinished(unfinished)
        if known is None:
            self.ownership.keep_identity()
        return manifest

    def _expect_remembered(self, newest: EpochId, last: EpochId | None) -> None:
        """Before this term leaves its mark in a system, which would make an older copy of it look like the newest.

        ``last``: the newest epoch with a receipt. ConfigError if a system lacks what it, or one before it, has there.
        """
        if last is None:
            return
        manifest = self.ownership.load(last)
        later = () if last == newest else self.ownership.load(newest).committables
        self.patience.until_answered(
            "look whether each sink has what is committed",
            lambda: self.outputs.expect_remembered(self.ownership.context, manifest, later),
        )

    def _settled(self, newest: EpochId) -> Manifest:
        hit("recovery.resolved")
        manifest = self.ownership.load(newest)
        self.ownership.rebase(newest, "newest epoch is committed")
        return manifest

    def _unfinished(self, unfinished: Unfinished) -> Manifest:
        hit("recovery.resolved")
        manifest = self.ownership.load(unfinished.newest)
        damage = self.stored.missing(manifest)
        hit("recovery.looked")
        probes = self.epochs.probe(manifest)
        hit("recovery.probed")
        match settle(unfinished, probes, damage, COMMIT_MARGIN):
            case Commit() as decision:
                self.epochs.commit(manifest, decision)
                hit("recovery.committed")
                self.ownership.rebase(manifest.id, "newest epoch was decided; its commits are finished")
                return manifest
            case Revoke(epoch=epoch, reason=reason):
                assert unfinished.previous is not None  # settle turns a revocation without one into Stop
                previous = self.ownership.load(unfinished.previous)
                # Nothing is to be committed, so nothing waits for this; and the way back is the last one there is.
                self.stored.ensure_whole(previous.id, records.named_files(previous.states, previous.in_flight))
                self._ensure_lost(manifest)
                self.ownership.rebase(previous.id, f"epoch {epoch} revoked: {reason}")
                self.history.write("revoked", epoch=epoch.epoch.n, term=epoch.term.n, reason=reason)
                return previous
            case Stop(epoch=epoch, reason=reason):
                raise CommittableLost(
                    f"epoch {epoch} of job {self.ownership.job!r} was decided but cannot be completed: {reason}. Its "
                    f"input is {manifest.sources}. Nothing was skipped; see docs/operations.md, 'a lost committable'."
                )

    def _ensure_lost(self, manifest: Manifest) -> None:
        """Abort what a revoked epoch has prepared, before its revocation is written.

        A supervisor that was replaced may hold a permit for it still, and would commit what this term does again.
        Raises CommittableLost if it was faster, or nobody can tell.
        """
        probes = self.patience.until_answered(f"abort epoch {manifest.id}", lambda: self._aborted(manifest))
        if doubt := undecidable(probes):
            raise CommittableLost(
                f"epoch {manifest.id} of job {self.ownership.job!r} could not be revoked: {doubt}. Nothing was "
                "skipped; see docs/operations.md, 'a lost committable'."
            )
        if committed := [probe.detail for probe in probes if probe.standing is Standing.COMMITTED]:
            raise CommittableLost(
                f"epoch {manifest.id} of job {self.ownership.job!r} was committed in part while it was revoked: "
                f"{', '.join(committed)}. Nothing was skipped; see docs/operations.md, 'a lost committable'."
            )

    def _aborted(self, manifest: Manifest) -> list[Probe]:
        """Probes of an epoch after aborting it. Raises Retryable while something of it is still prepared."""
        self.outputs.abort_orphans(self.ownership.context)
        probes = self.epochs.probe(manifest)
        if open_ := [probe.detail for probe in probes if probe.standing is Standing.PREPARED]:
            raise Retryable(f"still prepared: {', '.join(open_)}")
        return probes


# ---------------------------------------------------------------- state files
#
# The state files of decided epochs: are they there, and are they what was written?
#
# Rule: a store that is away for a moment looks empty. A file is taken for missing only after the store has shown that
# it is there, by the claim of this term.


class StoredState:
    """``ensure_there`` raises OSError if the store is away, Fenced if it belongs to a newer term."""

    def __init__(self, storage: JobStorage, ensure_there: Callable[[], None]) -> None:
        self._storage, self._ensure_there = storage, ensure_there

    def missing(self, manifest: Manifest) -> list[str]:
        """Files of an epoch that are missing or of another size, in words. None of them is read."""
        files = _files(manifest)
        if not verify.look_at_files(self._storage, files):
            return []
        self._ensure_there()
        return [str(problem) for problem in verify.look_at_files(self._storage, files)]

    def ensure_complete(self, manifest: Manifest) -> None:
        """CorruptCheckpoint, with the name of each file of a committed epoch that is missing or of another size."""
        self._refuse(manifest.id, verify.look_at_files(self._storage, _files(manifest)))

    def ensure_whole(self, epoch: EpochId, files: Mapping[str, FileRef], told: verify.Progress = verify.nobody) -> None:
        """As ``ensure_complete``, of every byte of these files of a committed epoch. Raises what ``told`` raises."""
        self._refuse(epoch, verify.verify_files(self._storage, files, told))

    def _refuse(self, epoch: EpochId, problems: Sequence[verify.Problem]) -> None:
        if problems:
            self._ensure_there()
            raise CorruptCheckpoint(
                f"epoch {epoch} is committed, but its state is damaged: {'; '.join(map(str, problems))}. Restore "
                f"the named objects from a copy of {paths.SHARED}/; going back further would duplicate its output."
            )


def _files(manifest: Manifest) -> dict[str, FileRef]:
    return records.named_files(manifest.states, manifest.in_flight)


# ---------------------------------------------------------------- how far long work is
#
# How far long work is, now and then. Rule: work that is done in a moment says nothing.


_EVERY = 5.0
"""Seconds between two reports, and before the first."""


class Reporter:
    """Called with bytes that are done and bytes in all. ``check`` is called each time and may end the work."""

    def __init__(self, done: str, notice: Callable[[str], None], check: Callable[[], None]) -> None:
        self._done, self._notice, self._check = done, notice, check
        self._told = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        self._check()
        now = time.monotonic()
        if now - self._told >= _EVERY:
            self._told = now
            self._notice(f"{self._done} {done / 1e6:,.0f} of {total / 1e6:,.0f} MB of state")


# ---------------------------------------------------------------- a first start
#
# A start where nothing was ever decided: it looks for other lives, and decides epoch 0.
#
# Rule: a start that is refused has decided nothing, and takes its own mark away.


@dataclass(frozen=True, slots=True)
class FirstStart:
    """``heir_of``: starts of this directory that have decided nothing. ``take_over``: it may end other lives."""

    plan: Plan
    storage: JobStorage
    ownership: Ownership
    lives: Lives
    inputs: Inputs
    epochs: Epochs
    history: History
    heir_of: frozenset[JobIdentity]
    take_over: bool
    allow_dropped: bool

    def begin(self, start_from: Path | None) -> Manifest:
        """Decide epoch 0, the start positions, before anything is read; ``start_from``: those of a savepoint.

        First the base record: what an earlier start of this directory still decides must not count any more when its
        life is ended here.
        """
        self.ownership.rebase(None, "first start" if start_from is None else f"first start, from {start_from}")
        if start_from is not None:
            return self._begin_from(origin.Start.read(start_from))
        self._enter(frozenset())
        self.storage.delete(paths.ORIGIN)  # of a start with a savepoint that did not get as far as epoch 0
        positions = self.inputs.look_up(self.ownership.context, {source.name: None for source in self.plan.sources})
        return self._first(Acked(positions, (), ()))

    def _begin_from(self, start: origin.Start) -> Manifest:
        """As ``begin``, with the positions and the state of a savepoint."""
        savepoint, what = start.savepoint, f"savepoint {start.path}"
        origin.drop(self.history, self.allow_dropped, what, start.unclaimed(self.plan))
        with self._withdrawn_if_refused():
            self.lives.admitted(self.ownership.context, start.heir_of | self.heir_of, self.take_over)
        states, in_flight = start.bring(self.storage, self.plan)
        origin.ensure_tables_come_first(self.plan, savepoint.sources, in_flight)
        origin.ensure_joins_know_their_tables(self.plan, savepoint.sources, states)
        # The sinks may know the savepoint's job: what they have of it must look older than what they get now.
        self.ownership.next = max(self.ownership.next, Epoch(savepoint.epoch).next())
        if self.ownership.term <= Term(savepoint.term):
            self.ownership.take_term(Term(savepoint.term))
            self.ownership.rebase(None, f"first start, from {what}")
        self._enter(start.heir_of)  # now that nothing is wrong with the savepoint: the life that it is of ends here
        names, known = [source.name for source in self.plan.sources], savepoint.sources
        positions = self.inputs.look_up(self.ownership.context, {name: known.get(name) for name in names})
        return self._first(Acked(positions, states, (), in_flight), savepoint=savepoint.id)

    def _enter(self, heir_of: frozenset[JobIdentity | None]) -> None:
        """Raises ConfigError if another life of the job's name may go on."""
        with self._withdrawn_if_refused():
            ended = self.lives.enter(self.ownership.context, heir_of | self.heir_of, self.take_over)
        if ended:
            self.history.write("took-over", term=self.ownership.term.n, count=len(ended), names=list(ended[:20]))

    @contextmanager
    def _withdrawn_if_refused(self) -> Iterator[None]:
        """A start that is refused has decided nothing. Its mark would refuse the others, and theirs this one, for ever.

        The mark is that of this start alone: nobody goes on with it, whoever has started in this directory since. The
        same holds for the starts before it here, which may have died.
        """
        try:
            yield
        except (ConfigError, Fenced):
            self.lives.withdraw(self.ownership.context, {self.ownership.identity.id, *self.heir_of})
            self.ownership.ensure()  # the other life may be that of a newer supervisor of this directory
            raise

    def _first(self, acked: Acked, **facts: Json) -> Manifest:
        began: dict[str, Json] = {
            name: {str(split): at for split, at in splits.items()} for name, splits in acked.positions.items()
        }
        identity = self.ownership.identity.identity
        self.history.write("began", term=self.ownership.term.n, identity=identity, positions=began, **facts)
        manifest = self.epochs.decide(self.ownership.next_epoch(), acked)
        self.ownership.keep_identity()
        self.epochs.finish(manifest)
        return manifest
