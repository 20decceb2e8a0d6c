"""The epochs of a term: each is decided, then committed; then old epochs are deleted.

Rule: publishing the manifest is the decision. The check for a newer term is made between the decision and the first
commit.

After a crash: without its manifest, an epoch has not happened, and its output is aborted. With a manifest and without a
receipt, recovery probes all its output, then commits the rest of it, or revokes all of it if none is committed. With a
receipt there is nothing to do.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from msgspec import Struct, field

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Retrier, RetryInterrupted
from kafka_eos.abc.committer import (
    AtomicCommitter,
    CommitOutcome,
    Committable,
    Committer,
    OutputOwner,
    Probe,
)
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.coordination import terms
from kafka_eos.coordination.dead_letter_counts import DeadLetterMonitor
from kafka_eos.coordination.dependencies import DependencyMonitor
from kafka_eos.coordination.incarnations import IncarnationRegistry
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import Ownership
from kafka_eos.coordination.terms import now_ms
from kafka_eos.core.errors import CommittableLost, ConfigError, CorruptCheckpoint, RestartFromCheckpoint
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.protocol.commit import COMMIT_MARGIN, CommitAuthorized, EpochRevoked, EpochStuck, authorize
from kafka_eos.protocol.output_owners import find_foreign
from kafka_eos.runtime.epoch_reports import CommitResult, EpochContents
from kafka_eos.runtime.state import broadcast_copies as copies
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.storage import job_records as records
from kafka_eos.storage.epoch_ledger import EpochLedger
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage


class EpochManager:
    """The manager that decides and commits the epochs of one term.

    ``refusals``: the monitor of dead letters; without it they are not counted.
    """

    def __init__(
        self,
        plan: Plan,
        storage: JobStorage,
        ownership: Ownership,
        incarnations: IncarnationRegistry,
        committer: EpochCommitter,
        history: History,
        ledger: EpochLedger,
        refusals: DeadLetterMonitor | None,
    ) -> None:
        self._plan = plan
        self._storage = storage
        self._ownership = ownership
        self._incarnations = incarnations
        self._committer = committer
        self._history = history
        self._ledger = ledger
        self._refusals = refusals
        self._before: Manifest | None = None
        """The manifest of the epoch that was decided last."""

    def continue_from(self, manifest: Manifest) -> None:
        """Set the epoch that the next one follows."""
        self._before = manifest

    def decide(self, epoch: EpochId, acked: EpochContents) -> Manifest:
        """Publish the manifest: after this the epoch has happened.

        Raises Fenced if a newer term exists; TooManyDeadLetters, CorruptCheckpoint for output of another job, or
        PlanError for copies of broadcast state that differ, if the epoch must not be decided. Queries no sink, because
        engines call it on their main thread.
        """
        copies.expect_same(acked.states)
        self._committer.expect_own(self._ownership.context, epoch, acked.committables)
        if self._refusals is not None:
            self._refusals.check_epoch(epoch, acked.tally)
        manifest = Manifest(
            job=self._plan.name,
            epoch=epoch.epoch.n,
            term=epoch.term.n,
            created_at=terms.now_ms(),
            plan=self._plan.fingerprint,
            max_key_groups=MAX_KEY_GROUPS,
            parallelism=acked.parallelism,
            sources=dict(acked.positions),
            states=acked.states,
            committables=acked.committables,
            in_flight=acked.in_flight,
            identity=self._ownership.identity.identity,
            registered_in=self._incarnations.known_in,
            carried_over=_remembered(self._before, acked.committables, self._incarnations.verifying_scopes),
        )
        records.publish(self._storage, manifest)
        self._ownership.ensure_newest_term()
        if self._refusals is not None:
            self._refusals.confirm()
        self.continue_from(manifest)
        return manifest

    def commit(self, manifest: Manifest) -> CommitResult:
        """Commit a decided epoch, and write its receipt.

        Raises Fenced if another incarnation of the job's name took over; RestartFromCheckpoint if the epoch cannot be
        committed as it is: recovery then decides what to do with it.
        """
        if manifest.committables:
            self._incarnations.register(self._ownership.context)
        else:
            self._incarnations.check_idle(self._ownership.context)
        probes = self._committer.probe(manifest.committables)
        match authorize(manifest.id, probes, COMMIT_MARGIN):
            case CommitAuthorized() as decision:
                self._committer.timer.take()
                set_aside = self.carry_out(manifest, decision)
                return CommitResult(
                    min((probe.expires_in for probe in probes), default=math.inf),
                    min((probe.timeout for probe in probes), default=math.inf),
                    self._committer.timer.take(),
                    set_aside,
                )
            case EpochRevoked(reason=reason) | EpochStuck(reason=reason):
                raise RestartFromCheckpoint(f"epoch {manifest.id} cannot be committed: {reason}")

    def carry_out(self, manifest: Manifest, decision: CommitAuthorized) -> Mapping[str, int]:
        """Commit the epoch as decided, and write the receipt. Return the number of rows set aside, by sink."""
        outcomes = self._committer.commit(manifest.committables, decision)
        set_aside = self._committer.count_set_aside(manifest.committables)
        if set_aside and self._refusals is not None:
            self._refusals.report_set_aside(manifest.id, set_aside)
        totals: Counter[str] = Counter()
        for committable in manifest.committables:
            totals[committable.scope] += committable.records
        # Write the ledger before the receipt, so that every epoch with a receipt has a line. If that fails, continue.
        self._ledger.write_epoch(manifest)
        self._history.append_event(
            "committed",
            epoch=manifest.epoch,
            term=manifest.term,
            records=dict[str, Json](totals),
            outcomes=[outcome.value for outcome in outcomes],
        )
        self._committer.write_receipt(manifest, outcomes)
        return set_aside


def _remembered(
    before: Manifest | None, committables: Sequence[Committable], remembering: Set[str]
) -> tuple[Committable, ...]:
    """Return the committables of earlier epochs that recovery still verifies, without their provenance.

    These are committables in scopes to verify in which this epoch has no committable.
    """
    if before is None:
        return ()
    silent = remembering - {each.scope for each in committables}
    known = (*before.committables, *before.carried_over)
    return tuple(Committable(each.scope, each.payload, each.records) for each in known if each.scope in silent)


# ---------------------------------------------------------------- the commits of an epoch
#
# Finish a decided epoch: probe everything, then commit everything, then write the receipt.
#
# Rule: nothing is committed before all committables of the epoch have been probed, and the decision of ``protocol`` is
# carried out unchanged: this module decides nothing. Committables are probed and committed concurrently; the failure of
# one does not affect the others. A committer that commits atomically is called once with all its committables.


T = TypeVar("T")


MAX_CONCURRENT = 16
"""Most committables that are probed or committed at the same time."""


class Stopwatch:
    """The start and end times of an epoch's commits, by sink. Thread-safe."""

    def __init__(self) -> None:
        self._seen: list[tuple[Committable, float, float]] = []

    @contextmanager
    def measuring(self, some: Sequence[Committable]) -> Iterator[None]:
        """Measure the commit of these committables inside the context; nothing is recorded if it raises."""
        began = time.time()
        yield
        ended = time.time()
        self._seen += [(committable, began, ended) for committable in some]

    def take(self) -> dict[str, tuple[float, float]]:
        """Return the first start and last end by sink since the last call. Committables without a sink name use their
        scope."""
        seen, self._seen = self._seen, []
        found: dict[str, tuple[float, float]] = {}
        for committable, began, ended in seen:
            for name in committable.by_sink or (committable.scope,):
                first, last = found.get(name, (began, ended))
                found[name] = min(first, began), max(last, ended)
        return found


class EpochCommitter(Struct, frozen=True):
    """The committer of an epoch's committables, and the writer of its receipt."""

    storage: CheckpointStorage
    committers: Mapping[str, Committer]
    patience: Retrier
    at_once: int = MAX_CONCURRENT
    timer: Stopwatch = field(default_factory=Stopwatch)
    dependencies: DependencyMonitor = field(default_factory=DependencyMonitor)

    def expect_own(
        self, ctx: JobContext, epoch: EpochId, committables: Sequence[Committable]
    ) -> list[tuple[str, OutputOwner]]:
        """Return the owners of an epoch's committables that state one, each with the scope of the plan's sink.

        Raises CorruptCheckpoint if a committable is output of another job, incarnation or newer term.
        """
        owners = []
        for each in committables:
            scope = self._scope(each)
            if (owner := self.committers[scope].read_owner(each)) is not None:
                owners.append((scope, owner))
        if foreign := find_foreign((owner for _, owner in owners), ctx.job, ctx.identity, epoch):
            raise CorruptCheckpoint(
                f"epoch {epoch} of job {ctx.job!r}, incarnation {ctx.identity or 'without an identity'}, names output "
                f"of another owner: {', '.join(foreign)}. Nothing was committed and nothing was deleted. Another "
                "program has written to the checkpoints, or records of two jobs were mixed: restore the directory of "
                "the job from a backup, and check who may write there; see docs/security.md, 'Write access to the "
                "checkpoints'."
            )
        return owners

    def probe(self, committables: Sequence[Committable]) -> list[Probe]:
        """Return the status of each committable, in order; wait as long as a server does not respond."""
        groups = self._groups(committables, range(len(committables)))
        answers = self._all([partial(self._probe, [committables[i] for i in group]) for group in groups])
        hit("commit.probe")
        return _in_order(groups, answers)

    def commit(self, committables: Sequence[Committable], decision: CommitAuthorized) -> list[CommitOutcome]:
        """Commit all, started in the decided order. Return outcomes in the order of ``committables``.

        The first and most urgent committable is committed alone. If it turns out to be lost, nothing else of the epoch
        is committed, and the epoch can be revoked. Raises RestartFromCheckpoint if a committable is lost: the next
        recovery probes again and decides.
        """
        hit("commit.before")
        groups = self._groups(committables, decision.order)
        some = [[committables[i] for i in group] for group in groups]
        answers = [self._commit(group, decision) for group in some[:1]]
        answers += self._all([partial(self._commit_next, group, decision) for group in some[1:]])
        hit("commit.after")
        self._announce(committables, decision)
        return _in_order(groups, answers)

    def count_set_aside(self, committables: Sequence[Committable]) -> dict[str, int]:
        """Return the number of rows of a committed epoch that receivers refused, by sink that has some."""
        found: Counter[str] = Counter()
        for scope, some in _by_scope(committables):
            count_set_aside = partial(self._committer(some[0]).count_set_aside, some)
            counts = self.patience.retry(f"count the rows that {scope} refused", count_set_aside)
            for committable, count in zip(some, counts, strict=True):
                found[next(iter(committable.by_sink), scope)] += count
        return {sink: count for sink, count in sorted(found.items()) if count}

    def _groups(self, committables: Sequence[Committable], order: Iterable[int]) -> list[list[int]]:
        """Return the indices of committables to handle in one call each, ordered by the first index of each group."""
        groups: dict[str | int, list[int]] = {}
        for index in order:
            committable = committables[index]
            together = isinstance(self._committer(committable), AtomicCommitter)
            groups.setdefault(committable.scope if together else index, []).append(index)
        return list(groups.values())

    def _announce(self, committables: Sequence[Committable], decision: CommitAuthorized) -> None:
        for scope, some in _by_scope(committables):
            announce = partial(self._committer(some[0]).announce, decision.permit, some)
            self.patience.retry(f"announce epoch {decision.permit.epoch} in {scope}", announce)

    def _all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return all results, started in this order. Raise an error of a call once every call has ended."""
        if len(calls) < 2 or self.at_once == 1:
            return [call() for call in calls]
        with ThreadPoolExecutor(min(self.at_once, len(calls)), thread_name_prefix="finish") as pool:
            running = [pool.submit(call) for call in calls]
        failures = [error for each in running if (error := each.exception()) is not None]
        # Prefer a real error over an interruption.
        for error in sorted(failures, key=lambda error: isinstance(error, RetryInterrupted)):
            raise error
        return [each.result() for each in running]

    def _probe(self, some: Sequence[Committable]) -> Sequence[Probe]:
        committer, scope = self._committer(some[0]), some[0].scope

        def probe() -> Sequence[Probe]:
            with self.dependencies.watch(scope):
                return committer.probe_all(some)

        return self.patience.retry(f"probe {scope}", probe)

    def _commit_next(self, some: Sequence[Committable], decision: CommitAuthorized) -> Sequence[CommitOutcome]:
        hit("commit.between")
        return self._commit(some, decision)

    def _commit(self, some: Sequence[Committable], decision: CommitAuthorized) -> Sequence[CommitOutcome]:
        committer, scope = self._committer(some[0]), some[0].scope

        def commit() -> Sequence[CommitOutcome]:
            with self.dependencies.watch(scope):
                return committer.commit_all(decision.permit, some)

        try:
            with self.timer.measuring(some):
                return self.patience.retry(f"commit {scope}", commit)
        except CommittableLost as error:
            raise RestartFromCheckpoint(f"epoch {decision.permit.epoch}: {error}") from error

    def write_receipt(self, manifest: Manifest, outcomes: Sequence[CommitOutcome]) -> None:
        """Record that everything of the epoch is committed: the previous epoch is no longer needed."""
        hit("receipt.before")
        records.publish(
            self.storage,
            records.Receipt(
                job=manifest.job,
                epoch=manifest.epoch,
                term=manifest.term,
                created_at=now_ms(),
                outcomes=tuple(outcomes),
            ),
        )
        hit("receipt.after")

    def _committer(self, committable: Committable) -> Committer:
        return self.committers[self._scope(committable)]

    def _scope(self, committable: Committable) -> str:
        """Return the scope of the sink that commits this: a system may have got another name since."""
        if committable.scope in self.committers:
            return committable.scope
        for scope, committer in self.committers.items():
            if self.patience.retry(
                f"compare {scope} with {committable.scope}", partial(committer.has_prepared, committable)
            ):
                return scope
        raise ConfigError(
            f"a decided epoch has uncommitted output in {committable.scope!r}, but the pipeline no longer has a "
            "sink there. Run the previous version of the pipeline until it stops by itself, then change it."
        )


def _by_scope(committables: Sequence[Committable]) -> list[tuple[str, list[Committable]]]:
    scopes = dict.fromkeys(committable.scope for committable in committables)
    return [(scope, [each for each in committables if each.scope == scope]) for scope in scopes]


def _in_order(groups: Sequence[Sequence[int]], answers: Sequence[Sequence[T]]) -> list[T]:
    """Return the results of groups of indices, in the order of the indices."""
    found = {i: each for group, some in zip(groups, answers, strict=True) for i, each in zip(group, some, strict=True)}
    return [found[index] for index in sorted(found)]
