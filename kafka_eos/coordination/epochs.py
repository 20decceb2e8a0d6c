"""The epochs of a term: each is decided, then committed, then old ones are dropped.

Rule: the publication of the manifest is the decision, and the check for a newer term comes between the decision and the
first commit.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Interrupted, Patience
from kafka_eos.abc.committer import (
    Announces,
    CommitsTogether,
    Committable,
    Committer,
    Outcome,
    Probe,
    committed,
    probed,
)
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.coordination import terms
from kafka_eos.coordination.dead_letter_counts import Refusals
from kafka_eos.coordination.incarnations import Lives
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import Ownership
from kafka_eos.coordination.terms import now_ms
from kafka_eos.core.errors import CommittableLost, ConfigError, RestartFromCheckpoint
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.protocol.commit import COMMIT_MARGIN, Commit, Revoke, Stop, authorize
from kafka_eos.runtime.epoch_reports import Acked, Finished
from kafka_eos.runtime.state import broadcast_copies as copies
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.storage import job_records as records
from kafka_eos.storage.epoch_ledger import EpochLedger
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage


class Epochs:
    """Decides and finishes. ``refusals``: the books of dead letters; without them nobody counts."""

    def __init__(
        self,
        plan: Plan,
        storage: JobStorage,
        ownership: Ownership,
        lives: Lives,
        finisher: Finisher,
        history: History,
        ledger: EpochLedger,
        refusals: Refusals | None,
    ) -> None:
        self._plan, self._storage, self._ownership, self._lives = plan, storage, ownership, lives
        self._finisher, self._history, self._ledger, self._refusals = finisher, history, ledger, refusals
        self._before: Manifest | None = None
        """The epoch before the one that is decided next."""

    def go_on_from(self, manifest: Manifest) -> None:
        """The next epoch that is decided follows this one."""
        self._before = manifest

    def decide(self, epoch: EpochId, acked: Acked) -> Manifest:
        """Publish the manifest: after this the epoch has happened.

        Raises Fenced if a newer term is there; TooManyDeadLetters, or PlanError for copies of broadcast state that
        differ, if the epoch must not happen. Asks no sink: engines call it on their main thread.
        """
        copies.expect_same(acked.states)
        if self._refusals is not None:
            self._refusals.deciding(epoch, acked.tally)
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
            known_in=self._lives.known_in,
            remembered=_remembered(self._before, acked.committables, self._lives.remembering),
        )
        records.publish(self._storage, manifest)
        self._ownership.check()
        if self._refusals is not None:
            self._refusals.decided()
        self.go_on_from(manifest)
        return manifest

    def probe(self, manifest: Manifest) -> list[Probe]:
        """What became of each of the epoch's committables."""
        return self._finisher.probe(manifest.committables)

    def finish(self, manifest: Manifest) -> Finished:
        """Commit a decided epoch, and write its receipt.

        Raises Fenced if another life of the job's name took over; RestartFromCheckpoint if the epoch cannot be
        committed as it is: recovery then decides what becomes of it.
        """
        if manifest.committables:
            self._lives.hold(self._ownership.context)
        probes = self.probe(manifest)
        match authorize(manifest.id, probes, COMMIT_MARGIN):
            case Commit() as decision:
                self._finisher.watch.take()
                self.commit(manifest, decision)
                return Finished(
                    min((probe.expires_in for probe in probes), default=math.inf),
                    min((probe.timeout for probe in probes), default=math.inf),
                    self._finisher.watch.take(),
                )
            case Revoke(reason=reason) | Stop(reason=reason):
                raise RestartFromCheckpoint(f"epoch {manifest.id} cannot be committed: {reason}")

    def commit(self, manifest: Manifest, decision: Commit) -> None:
        """Carry out what was decided of the epoch's committables, and write its receipt."""
        outcomes = self._finisher.commit(manifest.committables, decision)
        totals: Counter[str] = Counter()
        for committable in manifest.committables:
            totals[committable.scope] += committable.records
        # Before the receipt, so that the audit has the lines of every epoch with one. If they fail the receipt follows.
        self._ledger.committed(manifest)
        self._history.write(
            "committed",
            epoch=manifest.epoch,
            term=manifest.term,
            records=dict[str, Json](totals),
            outcomes=[outcome.value for outcome in outcomes],
        )
        self._finisher.write_receipt(manifest, outcomes)


def _remembered(
    before: Manifest | None, committables: Sequence[Committable], remembering: Set[str]
) -> tuple[Committable, ...]:
    """What an epoch with these committables remembers of the one before it; what only tells of records is left out."""
    if before is None:
        return ()
    silent = remembering - {each.scope for each in committables}
    known = (*before.committables, *before.remembered)
    return tuple(Committable(each.scope, each.payload, each.records) for each in known if each.scope in silent)


# ---------------------------------------------------------------- the commits of an epoch
#
# Finish a decided epoch: probe everything, then commit everything, then write the receipt.
#
# Rule: nothing is committed before all committables of the epoch have been probed, and the answer of ``protocol`` is
# carried out as it is: this module decides nothing. Probes, and commits, of several committables run at the same time,
# and one that fails does not keep the others from their answers. A committer that commits together is asked once for
# all that it has.


T = TypeVar("T")


AT_ONCE = 16
"""Committables that are probed, or committed, at the same time."""


class Stopwatch:
    """When the commits of an epoch began and ended, by sink; from any thread."""

    def __init__(self) -> None:
        self._seen: list[tuple[Committable, float, float]] = []

    @contextmanager
    def measuring(self, some: Sequence[Committable]) -> Iterator[None]:
        """What is done within is the commit of these. Kept if it comes to its end."""
        began = time.time()
        yield
        ended = time.time()
        self._seen += [(committable, began, ended) for committable in some]

    def take(self) -> dict[str, tuple[float, float]]:
        """First beginning and last end since it was asked last. What has no sink's name has that of its scope."""
        seen, self._seen = self._seen, []
        found: dict[str, tuple[float, float]] = {}
        for committable, began, ended in seen:
            for name in committable.by_sink or (committable.scope,):
                first, last = found.get(name, (began, ended))
                found[name] = min(first, began), max(last, ended)
        return found


@dataclass(frozen=True, slots=True)
class Finisher:
    """Commits with the plan's committers, by scope; at most ``at_once`` requests are on their way."""

    storage: CheckpointStorage
    committers: Mapping[str, Committer]
    patience: Patience
    at_once: int = AT_ONCE
    watch: Stopwatch = field(default_factory=Stopwatch)

    def probe(self, committables: Sequence[Committable]) -> list[Probe]:
        """What became of each, in their order; waits as long as a server does not answer."""
        groups = self._groups(committables, range(len(committables)))
        answers = self._all([partial(self._probe, [committables[i] for i in group]) for group in groups])
        hit("commit.probe")
        return _in_order(groups, answers)

    def commit(self, committables: Sequence[Committable], decision: Commit) -> list[Outcome]:
        """Commit all, begun in the decided order. Returns outcomes in the order of ``committables``.

        The first, which is the most urgent, goes alone: should it be lost after all, nothing else of the epoch is
        committed, and the epoch can be revoked. Raises RestartFromCheckpoint if one is lost: the next recovery probes
        again and decides.
        """
        hit("commit.before")
        groups = self._groups(committables, decision.order)
        some = [[committables[i] for i in group] for group in groups]
        answers = [self._commit(group, decision) for group in some[:1]]
        answers += self._all([partial(self._another, group, decision) for group in some[1:]])
        hit("commit.after")
        self._announce(committables, decision)
        return _in_order(groups, answers)

    def _groups(self, committables: Sequence[Committable], order: Iterable[int]) -> list[list[int]]:
        """Indices of what is asked for in one call, in this order of their first."""
        groups: dict[str | int, list[int]] = {}
        for index in order:
            committable = committables[index]
            together = isinstance(self._committer(committable), CommitsTogether)
            groups.setdefault(committable.scope if together else index, []).append(index)
        return list(groups.values())

    def _announce(self, committables: Sequence[Committable], decision: Commit) -> None:
        for scope in dict.fromkeys(committable.scope for committable in committables):
            committer = self.committers[scope]
            if isinstance(committer, Announces):
                some = [committable for committable in committables if committable.scope == scope]
                announce = partial(committer.announce, decision.permit, some)
                self.patience.until_answered(f"announce epoch {decision.permit.epoch} in {scope}", announce)

    def _all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all, begun in this order. Raises what one has raised, once every one has ended."""
        if len(calls) < 2 or self.at_once == 1:
            return [call() for call in calls]
        with ThreadPoolExecutor(min(self.at_once, len(calls)), thread_name_prefix="finish") as pool:
            running = [pool.submit(call) for call in calls]
        failures = [error for each in running if (error := each.exception()) is not None]
        # That one was told to stop waiting says less than what another one knows.
        for error in sorted(failures, key=lambda error: isinstance(error, Interrupted)):
            raise error
        return [each.result() for each in running]

    def _probe(self, some: Sequence[Committable]) -> Sequence[Probe]:
        committer, scope = self._committer(some[0]), some[0].scope
        return self.patience.until_answered(f"probe {scope}", lambda: probed(committer, some))

    def _another(self, some: Sequence[Committable], decision: Commit) -> Sequence[Outcome]:
        hit("commit.between")
        return self._commit(some, decision)

    def _commit(self, some: Sequence[Committable], decision: Commit) -> Sequence[Outcome]:
        committer, scope = self._committer(some[0]), some[0].scope
        try:
            with self.watch.measuring(some):
                return self.patience.until_answered(
                    f"commit {scope}", lambda: committed(committer, decision.permit, some)
                )
        except CommittableLost as error:
            raise RestartFromCheckpoint(f"epoch {decision.permit.epoch}: {error}") from error

    def write_receipt(self, manifest: Manifest, outcomes: Sequence[Outcome]) -> None:
        """Record that everything of the epoch is committed: the epoch before it is no longer needed."""
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
        try:
            return self.committers[committable.scope]
        except KeyError:
            raise ConfigError(
                f"a decided epoch has uncommitted output in {committable.scope!r}, but the pipeline has no sink there "
                "any more. Run the previous version of the pipeline until it stops by itself, then change it."
            ) from None


def _in_order(groups: Sequence[Sequence[int]], answers: Sequence[Sequence[T]]) -> list[T]:
    """The answers to groups of indices, by index."""
    found = {i: each for group, some in zip(groups, answers, strict=True) for i, each in zip(group, some, strict=True)}
    return [found[index] for index in sorted(found)]
