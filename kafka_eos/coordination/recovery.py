"""A recovery, from the claim of a term to the point from which the workers restore.

Its first phase finishes or revokes the decided epoch, before anything else is read; ``protocol.recovery`` decides what
to do. Rule: that phase reads only the newest manifests and no state file, so its duration does not grow with the state.

After a crash at any step the next recovery does the same again, under a newer term. Of this one it finds the commits
or the abort of the unfinished epoch, and the base record, which is written after them. A first start writes its base
record first: until epoch 0 is decided it has read nothing, and the next start replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import CommitStatus, Probe
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.coordination import savepoint_start as origin
from kafka_eos.coordination import terms
from kafka_eos.coordination.epochs import EpochCommitter, EpochManager
from kafka_eos.coordination.incarnations import IncarnationRegistry
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import (
    Ownership,
    list_identities,
    load_identity_record,
    new_identity_record,
)
from kafka_eos.coordination.sinks import SinkCoordinator
from kafka_eos.coordination.sources import SourceCoordinator
from kafka_eos.coordination.state_files import Reporter, StateFiles
from kafka_eos.core.errors import CommittableLost, ConfigError, CorruptCheckpoint, Fenced, Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.protocol.commit import COMMIT_MARGIN, CommitAuthorized, EpochRevoked, EpochStuck, describe_unknown
from kafka_eos.protocol.incarnations import SavepointEpoch
from kafka_eos.protocol.recovery import (
    NewestCommitted,
    NewestUncommitted,
    NoDecidedEpoch,
    TermSuperseded,
    decide_unfinished,
    newest_committed,
    next_epoch,
    resolve,
)
from kafka_eos.runtime.epoch_reports import EpochContents, RestorePoint
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage


class NothingDecided(Struct, frozen=True):
    """No epoch was ever decided in this directory.

    ``successor_of``: the identities of earlier starts in the same directory.
    """

    successor_of: frozenset[JobIdentity]


class StartOptions(Struct, frozen=True):
    """The savepoint and the permissions of a start.

    ``start_from``: the savepoint of a first start. ``take_over``: a first start may end other incarnations of the job's
    name. ``allow_dropped``: state that the plan no longer uses may be dropped. ``allow_repeated``: epochs that were
    committed after the savepoint may be repeated.
    """

    start_from: Path | None
    take_over: bool
    allow_dropped: bool
    allow_repeated: bool


class Recovery(Struct, frozen=True):
    """The recovery of a job under a new term, up to the point from which its workers restore."""

    plan: Plan
    storage: JobStorage
    ownership: Ownership
    incarnations: IncarnationRegistry
    inputs: SourceCoordinator
    outputs: SinkCoordinator
    epochs: EpochManager
    committer: EpochCommitter
    stored: StateFiles
    history: History
    patience: Retrier
    options: StartOptions

    def restore(self) -> RestorePoint:
        """Take over the job: complete decided epochs, then prepare to continue from the newest one.

        Raises the errors of ``complete``, and InputLost. Errors raised after ``complete`` do not undo its effects.
        """
        match self.complete():
            case NothingDecided(successor_of=successor_of):
                manifest = self._start_first_time(successor_of)
            case Manifest() as manifest:
                self._ensure_same_origin()
        self.epochs.continue_from(manifest)
        self.outputs.abort_leftovers(self.ownership.context)
        self.stored.ensure_complete(manifest)
        # Select the state first: a start that is refused must not have decided where new sources begin.
        states, in_flight = self._select_state(manifest)
        origin.ensure_tables_come_first(self.plan, manifest.sources, in_flight)
        origin.ensure_joins_know_their_tables(self.plan, manifest.sources, states)
        manifest = self._with_new_sources(manifest)
        identity, term = self.ownership.identity.id, self.ownership.term
        positions = self.inputs.resolve_positions(
            {source.name: manifest.sources[source.name] for source in self.plan.sources}
        )
        self.history.append_event("recovered", epoch=manifest.epoch, term=term.n, identity=identity.text)
        return RestorePoint(identity, term, manifest.id, self.ownership.next_number, states, positions, in_flight)

    # ------------------------------------------------------------ decided epochs

    def complete(self, after: Term | None = None) -> Manifest | NothingDecided:
        """Take a term, and finish or revoke the decided epoch; return the epoch to continue from.

        ``after``: the term of this process; Fenced if another process has claimed one since.
        Raises Fenced, CorruptCheckpoint, CommittableLost, ConfigError; Interrupted on a stop.
        """
        known = load_identity_record(self.storage, self.ownership.job)
        self.ownership.identity = known or new_identity_record(self.ownership.job)
        facts = self.ownership.take_term(Term(0), after)
        resumption = resolve(facts, self.ownership.term)
        # Check this first: a newer term may have deleted records while they were listed.
        if isinstance(resumption, TermSuperseded):
            raise Fenced(f"term {self.ownership.term} was replaced by term {resumption.by} while it was starting")
        if missing := terms.find_missing(facts):
            raise CorruptCheckpoint(
                f"{', '.join(missing)}: missing, although later records exist. Restore the directory from a backup."
            )
        self.ownership.next_number = next_epoch(facts)
        if isinstance(resumption, NewestCommitted | NewestUncommitted):
            if known is None:
                self.ownership.adopt_identity_of(resumption.newest)
            if isinstance(resumption, NewestUncommitted):
                self._ensure_own_output(resumption.newest)
            self._ensure_output_present(resumption.newest, newest_committed(facts))
            self.incarnations.register(self.ownership.context)
        match resumption:
            case NoDecidedEpoch() if known is not None:
                raise CorruptCheckpoint(
                    f"{known.name} exists, which is written when an epoch is decided, but no decided epoch does: "
                    "manifests were deleted. Restore the directory from a backup."
                )
            case NoDecidedEpoch():
                return NothingDecided(
                    list_identities(self.storage, self.ownership.job, facts.claims - {self.ownership.term})
                )
            case NewestCommitted(newest=newest):
                manifest = self._settled(newest)
            case NewestUncommitted() as unfinished:
                manifest = self._unfinished(unfinished)
        if known is None:
            self.ownership.save_identity()
        return manifest

    def _ensure_own_output(self, newest: EpochId) -> None:
        """Raise CorruptCheckpoint or ConfigError if an uncommitted epoch names output that is not of this job and
        plan."""
        manifest, ctx = self.ownership.load(newest), self.ownership.context
        owners = self.committer.expect_own(ctx, manifest.id, manifest.committables)
        self.patience.retry(
            "look up the targets of the sinks", lambda: self.outputs.ensure_planned(ctx, manifest.id, owners)
        )

    def _ensure_output_present(self, newest: EpochId, last: EpochId | None) -> None:
        """Raise ConfigError if a sink lacks output that it had committed.

        ``last``: the newest epoch with a receipt.
        """
        if last is None:
            return
        manifest = self.ownership.load(last)
        known = [
            each for each in (*manifest.committables, *manifest.carried_over) if each.scope in self.outputs.committers
        ]
        self.committer.expect_own(self.ownership.context, manifest.id, known)  # sinks that are gone are not asked
        later = () if last == newest else self.ownership.load(newest).committables
        self.patience.retry(
            "check that each sink has all committed output",
            lambda: self.outputs.ensure_output_present(self.ownership.context, manifest, later),
        )

    def _settled(self, newest: EpochId) -> Manifest:
        hit("recovery.resolved")
        manifest = self.ownership.load(newest)
        self.ownership.write_base(newest, "newest epoch is committed")
        return manifest

    def _unfinished(self, unfinished: NewestUncommitted) -> Manifest:
        hit("recovery.resolved")
        manifest = self.ownership.load(unfinished.newest)
        damage = self.stored.find_missing(manifest)
        hit("recovery.looked")
        probes = self.committer.probe(manifest.committables)
        hit("recovery.probed")
        match decide_unfinished(unfinished, probes, damage, COMMIT_MARGIN):
            case CommitAuthorized() as decision:
                self.epochs.carry_out(manifest, decision)
                hit("recovery.committed")
                self.ownership.write_base(manifest.id, "the newest epoch was decided; its commits are finished")
                return manifest
            case EpochRevoked(epoch=epoch, reason=reason):
                assert unfinished.previous is not None  # without one, decide_unfinished returns EpochStuck
                previous = self.ownership.load(unfinished.previous)
                # Nothing is to be committed, so no commit waits for this check, and no earlier epoch is left.
                self.stored.ensure_intact(previous.id, records.index_files(previous.states, previous.in_flight))
                self._abort_revoked(manifest)
                self.ownership.write_base(previous.id, f"epoch {epoch} revoked: {reason}")
                self.history.append_event("revoked", epoch=epoch.epoch.n, term=epoch.term.n, reason=reason)
                return previous
            case EpochStuck(epoch=epoch, reason=reason):
                raise CommittableLost(
                    f"epoch {epoch} of job {self.ownership.job!r} was decided but cannot be completed: {reason}. Its "
                    f"input is {manifest.sources}. Nothing was skipped; see docs/repairing-a-job.md, "
                    "'a lost committable'."
                )

    def _abort_revoked(self, manifest: Manifest) -> None:
        """Abort the output of a revoked epoch before its revocation is recorded.

        A replaced supervisor may still hold a permit for the epoch, and would commit output that this term produces
        again.
        Raises CommittableLost if it has committed already, or if that is unknown.
        """
        probes = self.patience.retry(f"abort epoch {manifest.id}", lambda: self._aborted(manifest))
        if doubt := describe_unknown(probes):
            raise CommittableLost(
                f"epoch {manifest.id} of job {self.ownership.job!r} could not be revoked: {doubt}. Nothing was "
                "skipped; see docs/repairing-a-job.md, 'a lost committable'."
            )
        if committed := [probe.detail for probe in probes if probe.status is CommitStatus.COMMITTED]:
            raise CommittableLost(
                f"epoch {manifest.id} of job {self.ownership.job!r} was committed in part while it was revoked: "
                f"{', '.join(committed)}. Nothing was skipped; see docs/repairing-a-job.md, 'a lost committable'."
            )

    def _aborted(self, manifest: Manifest) -> list[Probe]:
        """Abort the output of an epoch and probe it. Raise Retryable while some of it is still prepared."""
        self.outputs.abort_leftovers(self.ownership.context)
        probes = self.committer.probe(manifest.committables)
        if open_ := [probe.detail for probe in probes if probe.status is CommitStatus.PREPARED]:
            raise Retryable(f"still prepared: {', '.join(open_)}")
        return probes

    # ------------------------------------------------------------ state and positions to continue with

    def _with_new_sources(self, manifest: Manifest) -> Manifest:
        """Decide the start positions of new sources before they are read, as a first start does.

        Otherwise a restart after a crash would resolve "latest" again, and skip the records that arrived in between.
        """
        names = [source.name for source in self.plan.sources if source.name not in manifest.sources]
        new = self.inputs.resolve_positions(dict.fromkeys(names))
        if not new:
            return manifest
        extended = self.epochs.decide(
            self.ownership.next_epoch(),
            EpochContents({**manifest.sources, **new}, manifest.states, (), manifest.in_flight, manifest.parallelism),
        )
        self.epochs.commit(extended)
        return extended

    def _ensure_same_origin(self) -> None:
        """Ensure that a job with checkpoints continues from the savepoint that it is started with."""
        start = self.options.start_from
        if start is not None and (unread := origin.ensure_same_savepoint(self.storage, self.plan.name, start)):
            self.history.append_event("origin-unread", path=str(start), reason=unread)

    def _select_state(self, manifest: Manifest) -> tuple[tuple[StateHandle, ...], tuple[InFlightRows, ...]]:
        """Return the state and in-flight rows that the plan uses.

        Raises ConfigError if state would be dropped without permission, or has other window definitions than the plan.
        """
        origin.ensure_same_definitions(self.plan, manifest.states)
        gone = origin.find_unused(self.plan, manifest.states, manifest.sources, manifest.in_flight)
        origin.drop_unused(self.history, self.options.allow_dropped, f"epoch {manifest.id}", gone)
        return origin.select_used(self.plan, manifest.states, manifest.in_flight)

    def verify_state(self, resumed: RestorePoint, notice: Callable[[str], None]) -> None:
        """Compare every byte of the restored state with its checksum; report progress to ``notice``.

        This is for workers of this machine; elsewhere each worker verifies the files that it opens.
        Raises CorruptCheckpoint with the name of every damaged object, and Interrupted on a stop.
        """
        report_progress = Reporter("verified", notice, lambda: self.patience.ensure_running("verify the state"))
        self.stored.ensure_intact(resumed.base, records.index_files(resumed.states, resumed.in_flight), report_progress)
        hit("recovery.verified")

    # ------------------------------------------------------------ a first start
    #
    # A start without decided epochs: it looks for other incarnations, and decides epoch 0.
    #
    # Rule: a start that is refused has decided nothing, and removes its own registration.

    def _start_first_time(self, earlier: frozenset[JobIdentity]) -> Manifest:
        """Decide epoch 0, the start positions, before anything is read.

        ``earlier``: earlier starts in this directory, which have decided nothing. The base record is written first: a
        decision of one of them must not be valid once its incarnation is ended here.
        """
        start_from = self.options.start_from
        self.ownership.write_base(None, "first start" if start_from is None else f"first start, from {start_from}")
        if start_from is not None:
            return self._start_from_savepoint(origin.SavepointStart.read(start_from), earlier)
        self._enter(earlier, earlier, None)
        self.storage.delete(paths.ORIGIN)  # written by a start with a savepoint that did not decide epoch 0
        positions = self.inputs.resolve_positions({source.name: None for source in self.plan.sources})
        return self._decide_first(EpochContents(positions, (), ()))

    def _start_from_savepoint(self, start: origin.SavepointStart, earlier: frozenset[JobIdentity]) -> Manifest:
        """Decide epoch 0 with the positions and the state of a savepoint."""
        savepoint, what = start.savepoint, f"savepoint {start.path}"
        not_before = None if self.options.allow_repeated else start.epoch
        successor_of = start.successor_of | earlier
        origin.drop_unused(self.history, self.options.allow_dropped, what, start.find_unused(self.plan))
        with self._withdrawn_if_refused(earlier):
            self.incarnations.check_admission(self.ownership.context, successor_of, self.options.take_over, not_before)
        states, in_flight = start.import_files(self.storage, self.plan)
        origin.ensure_tables_come_first(self.plan, savepoint.sources, in_flight)
        origin.ensure_joins_know_their_tables(self.plan, savepoint.sources, states)
        # The sinks may know the savepoint's job: its output there must have older epochs than the new output.
        self.ownership.next_number = max(self.ownership.next_number, Epoch(savepoint.epoch).next())
        if self.ownership.term <= Term(savepoint.term):
            self.ownership.take_term(Term(savepoint.term))
            self.ownership.write_base(None, f"first start, from {what}")
        # The savepoint is valid now, so the incarnation that wrote it ends here.
        self._enter(earlier, successor_of, not_before)
        names, known = [source.name for source in self.plan.sources], savepoint.sources
        positions = self.inputs.resolve_positions({name: known.get(name) for name in names})
        return self._decide_first(EpochContents(positions, states, (), in_flight), savepoint=savepoint.id)

    def _enter(
        self,
        earlier: frozenset[JobIdentity],
        successor_of: frozenset[JobIdentity],
        not_before: SavepointEpoch | None,
    ) -> None:
        """Register this incarnation. Raise ConfigError if another incarnation of the job's name may still run."""
        with self._withdrawn_if_refused(earlier):
            ended = self.incarnations.begin_new(
                self.ownership.context, successor_of, self.options.take_over, not_before
            )
        if ended:
            self.history.append_event("took-over", term=self.ownership.term.n, count=len(ended), names=list(ended[:20]))

    @contextmanager
    def _withdrawn_if_refused(self, earlier: frozenset[JobIdentity]) -> Iterator[None]:
        """Remove this start's registration if it is refused, because one left behind would block every later start.

        The registration is of this start alone: no other start uses its identity. Registrations of earlier starts in
        this directory, which may have crashed, are removed too.
        """
        try:
            yield
        except (ConfigError, Fenced):
            self.incarnations.deregister(self.ownership.context, {self.ownership.identity.id, *earlier})
            self.ownership.ensure_owner()  # the other incarnation may be a newer supervisor of this directory
            raise

    def _decide_first(self, acked: EpochContents, **facts: Json) -> Manifest:
        began: dict[str, Json] = {
            name: {str(split): at for split, at in splits.items()} for name, splits in acked.positions.items()
        }
        identity = self.ownership.identity.identity
        self.history.append_event("began", term=self.ownership.term.n, identity=identity, positions=began, **facts)
        manifest = self.epochs.decide(self.ownership.next_epoch(), acked)
        self.ownership.save_identity()
        self.epochs.commit(manifest)
        return manifest
