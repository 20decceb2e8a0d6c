"""The coordinator as a program that can be stopped, paused or forgotten between any two of its steps.

Its epochs are decided by the machine of the engines, ``protocol.attempt``; here are the facts that it learns, late,
twice and in any order, and its actions on a durable side that may refuse them.

Rule: each ``yield`` is a place where it may die or sleep. What it does in between is one call to something durable
or one decision of ``protocol``; the order of these calls is the order of the real coordinator.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from typing import Protocol

from msgspec.structs import replace

from kafka_eos.abc.committer import CommitStatus, Probe
from kafka_eos.core.errors import LossCause
from kafka_eos.core.ids import EpochId, Term
from kafka_eos.protocol import actions as do
from kafka_eos.protocol import events as facts
from kafka_eos.protocol import retention
from kafka_eos.protocol.attempt import Attempt
from kafka_eos.protocol.checkpoint_schedule import Cadence, EpochKind
from kafka_eos.protocol.cleanup_schedule import CleanupSchedule
from kafka_eos.protocol.commit import CommitAuthorized, EpochRevoked, EpochStuck, authorize
from kafka_eos.protocol.engine_policy import AttemptPolicy
from kafka_eos.protocol.events import AttemptEvent
from kafka_eos.protocol.input_loss import LossCheck
from kafka_eos.protocol.lineage import terms_without_base
from kafka_eos.protocol.recovery import (
    NewestCommitted,
    NewestUncommitted,
    NoDecidedEpoch,
    TermSuperseded,
    decide_unfinished,
    decided_epochs,
    next_epoch,
    resolve,
)
from tests.simulation.durable import Job, Manifest, Refused, Sink, State, Violation
from tests.simulation.worker import Answer

Program = Generator[None, None, None]

BATCH = 3
"""Objects that are deleted at once."""


class Fenced(Exception):
    """A newer term owns the job."""


class Restart(Exception):
    """This attempt is over; the next one takes a new term."""


class Drained(Exception):
    """The job has ended cleanly: all that was read is committed."""


class Failed(Exception):
    """The job has failed for good, and what it had open is cleaned up as far as possible."""


class NeedsAPerson(Exception):
    """Part of a decided epoch is committed and part of it is lost, or its output is not found."""


class Crew(Protocol):
    """The workers, as far as the coordinator knows them."""

    inbox: list[tuple[str, EpochId | None, int, Answer | None]]

    def start(self, term: Term, manifest: Manifest) -> frozenset[int]:
        """Start workers at the manifest; returns their numbers. Each says when it is ready."""

    def send(self, kind: str, epoch: EpochId | None = None) -> None:
        """Tell all workers."""


class Coordinator:
    """One term's attempt to run the job. So many ``spurious`` epochs are given up as if they had timed out.

    A share of epochs (``saves``) is aligned in every mode, and a savepoint is made of each. Of those that are
    committed, so many are ``retained``. ``fate`` decides about this attempt what does not touch the schedule of the
    others.
    """

    def __init__(
        self,
        job: Job,
        sink: Sink,
        crew: Crew,
        cadence: Cadence,
        saves: float,
        retained: int,
        chance: random.Random,
        fate: random.Random,
        renamed: bool,
    ) -> None:
        self._renamed = renamed
        self._job, self._sink, self._crew, self._cadence, self._chance = job, sink, crew, cadence, chance
        self._fate = fate
        self.now = 0.0
        self.spurious = 0
        self.stopping = False
        self.term = Term(0)
        self._saves, self._retained = saves, retained
        self._asked = facts.PendingRequests()
        self._answers: dict[EpochId, dict[int, Answer]] = {}
        self._kinds: dict[EpochId, EpochKind] = {}
        self._beside: deque[Program] = deque()
        self._saving: deque[Program] = deque()
        self._held: dict[EpochId, frozenset[str]] = {}
        """Files of epochs of which a savepoint is being made."""
        self._decided: Manifest | None = None
        self._verifying: EpochId | None = None
        """The epoch whose input is looked at."""
        self._verified: set[EpochId] = set()

    def run(self) -> Program:
        """Raises Fenced, Restart, Drained, NeedsAPerson; never returns otherwise."""
        self.term = self._job.claim()
        yield
        base: list[Manifest] = []
        yield from self._recover(base)
        self._job.seen["a restart with rows in flight"] += bool(base[0].in_flight)
        self._whole(base[0])
        workers = self._crew.start(self.term, base[0])
        policy = AttemptPolicy(
            workers, self._cadence, 3, discovery_interval=200.0, verifies_input=True, heartbeat_timeout=float("inf")
        )
        housekeeping = CleanupSchedule(self.now, search_interval=50.0)
        self._attempt = Attempt.of(policy, EpochId(self._next, self.term), base[0].id, housekeeping, self.now)
        yield from self._serve()

    def clean_up(self) -> Program:
        """Finish what is decided and abort the rest, after the job has failed. Raises Failed, Fenced, NeedsAPerson.

        A process that was replaced meanwhile must not end the output of its successor, nor take a term from it.
        """
        mine = self.term
        self._check()
        yield
        try:
            self.term = self._claim_next(mine)
        except Refused:
            raise Fenced from None
        self._job.past.successions[self.term] = mine
        self._job.seen["a failed job that cleaned up"] += 1
        yield
        if self._job.manifests:
            with suppress(Restart):
                yield from self._recover([])
        raise Failed

    def _claim_next(self, mine: Term) -> Term:
        return self._job.claim_next(mine)

    @property
    def busy(self) -> bool:
        """Is an epoch between its manifest and its receipt, or are old ones being dropped?"""
        return bool(self._beside)

    def _check(self) -> None:
        newest = max(self._job.claims, default=Term(0))
        if newest > self.term:
            raise Fenced
        if newest < self.term:
            raise Violation(f"the claim of term {self.term} is gone")

    def _load(self, epoch: EpochId) -> Manifest:
        if epoch not in self._job.manifests:
            self._check()  # a newer term may have dropped it
            raise Violation(f"epoch {epoch} is gone")
        return self._job.manifests[epoch]

    def _whole(self, manifest: Manifest) -> None:
        if lost := manifest.files - self._job.files:
            self._check()
            raise Violation(f"epoch {manifest.id} has lost {len(lost)} files")

    # ------------------------------------------------------------ recovery

    def _recover(self, base: list[Manifest]) -> Program:
        yield from self._close_older_terms()
        found = self._job.facts()
        self._next = next_epoch(found)
        resumption = resolve(found, self.term)
        yield
        match resumption:
            case TermSuperseded():
                raise Fenced
            case NoDecidedEpoch():
                yield from self._begin(base)
            case NewestCommitted(newest):
                self._base(newest)
                base.append(self._load(newest))
            case NewestUncommitted() as unfinished:
                yield from self._unfinished(unfinished, base)
        yield
        # What is decided is done; what the job goes on with may turn out to be damaged only now.
        self._sink.abort_orphans(self.term)
        yield
        if self._fate.random() < 0.05:
            self._job.seen["a recovery that failed in its second phase"] += 1
            raise Restart

    def _close_older_terms(self) -> Program:
        """One that sleeps could still write another history."""
        while True:
            found = self._job.facts()
            open_ = terms_without_base(found.claims, found.bases, self.term)
            if not open_ or max(found.claims) > self.term:
                return
            history = decided_epochs(found)
            yield
            with suppress(Refused):
                self._job.base(open_[0], history[-1] if history else None)
                self._job.seen["a term closed by a newer one"] += 1

    def _base(self, epoch: EpochId | None) -> None:
        try:
            self._job.base(self.term, epoch)
        except Refused:
            raise Fenced from None

    def _begin(self, base: list[Manifest]) -> Program:
        """Decide the start positions before anything is read."""
        self._base(None)
        yield
        manifest = Manifest(EpochId(self._next, self.term), {}, {}, (), ())
        self._next = self._next.next()
        self._job.publish(manifest)
        yield
        self._check()
        self._job.receipt(manifest.id)
        yield
        self._check()
        base.append(manifest)

    def _unfinished(self, unfinished: NewestUncommitted, base: list[Manifest]) -> Program:
        manifest = self._load(unfinished.newest)
        probes = self._probe(manifest)
        yield
        match decide_unfinished(unfinished, probes, (), 0.0):
            case CommitAuthorized() as decision:
                self._job.seen["an epoch finished by recovery"] += 1
                yield from self._commit(manifest, decision)
                self._base(manifest.id)
                base.append(manifest)
            case EpochRevoked():
                assert unfinished.previous is not None
                self._job.seen["an epoch revoked"] += 1
                self._sink.abort_orphans(self.term)
                yield
                if any(probe.status is CommitStatus.COMMITTED for probe in self._probe(manifest)):
                    raise NeedsAPerson
                self._base(unfinished.previous)
                base.append(self._load(unfinished.previous))
            case EpochStuck():
                raise NeedsAPerson

    # ------------------------------------------------------------ epochs

    def _serve(self) -> Program:
        while True:
            yield
            if self._saving and self._fate.random() < 0.2 and next(self._saving[0], self) is self:
                self._saving.popleft()
            if self._beside and self._chance.random() < 0.5:
                if next(self._beside[0], self) is self:
                    self._beside.popleft()
                continue
            for fact in self._happened():
                self._learn(fact)

    def _happened(self) -> list[AttemptEvent]:
        """Any message, late ones too, and now and then one twice; what others ask for; a fault of its own."""
        happened: list[AttemptEvent] = []
        if self._crew.inbox:
            at = int(self._chance.random() * len(self._crew.inbox))
            kind, epoch, worker, answer = self._crew.inbox[at]
            if self._chance.random() >= 0.1:
                self._crew.inbox.pop(at)
            happened.append(self._fact(kind, epoch, worker, answer))
        if self.spurious and (victim := self._attempt.pending_epochs.pending) is not None:
            self.spurious -= 1
            happened.append(facts.EpochDeclined(victim.id, min(victim.expected), "a whim"))
        if self._verifying is not None and self._fate.random() < 0.3:
            happened.append(self._looked_at_input(self._verifying))
        if self.stopping:
            happened.append(facts.StopSignalled())
        return [*happened, self._asked]

    def _looked_at_input(self, epoch: EpochId) -> AttemptEvent:
        """Now and then a broker does not know a topic that others know."""
        if self._fate.random() < 0.01:
            self._job.seen["a topic that looked missing before a decision"] += 1
            return facts.InputLossFound(LossCause.MISSING, "stale metadata")
        self._verifying = None
        self._verified.add(epoch)
        return facts.InputVerified(epoch)

    def _searched(self) -> AttemptEvent:
        """Now and then records are gone behind the last decided positions: workers have read them."""
        behind = self._attempt.loss_check is LossCheck.CONFIRMING
        self._job.seen["expired records that a checkpoint showed to be read"] += behind
        if not behind and self._fate.random() < 0.1:
            return facts.InputLossFound(LossCause.EXPIRED, "retention")
        return facts.DiscoveryFinished()

    def _fact(self, kind: str, epoch: EpochId | None, worker: int, answer: Answer | None) -> AttemptEvent:
        match kind:
            case "ready":
                return facts.SubtaskReady(worker)
            case "died":
                return facts.SubtaskLost(worker, "died")
        assert epoch is not None
        if kind == "confirm":
            return facts.AbortConfirmed(epoch, worker)
        assert answer is not None
        return self._answered(epoch, worker, answer)

    def _answered(self, epoch: EpochId, worker: int, answer: Answer) -> AttemptEvent:
        pending = self._attempt.pending_epochs.pending
        if pending is None or pending.id != epoch:
            self._job.seen["a late answer"] += 1
        self._answers.setdefault(epoch, {})[worker] = answer
        return facts.EpochAcked(epoch, worker)

    def _learn(self, fact: AttemptEvent) -> None:
        self._attempt, actions = self._attempt.handle(fact, self.now)
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: do.AttemptAction) -> None:
        match action:
            case do.StartProcessing():
                self._crew.send("begin")
            case do.TriggerEpoch(epoch, kind):
                self._trigger(epoch, kind)
            case do.AbortEpoch(epoch):
                self._job.seen["an epoch aborted"] += 1
                self._crew.send("abort", epoch)
            case do.VerifyInput(epoch):
                self._verifying = epoch
            case do.DecideEpoch(epoch) if epoch not in self._verified:
                raise Violation(f"epoch {epoch} was decided, and its input was not looked at")
            case do.DecideEpoch():
                self._decided = self._decide(action)
            case do.CommitEpoch():
                if self._decided is None:
                    raise Violation("a commit without a decision")
                self._beside.append(self._finish(self._decided))
            case do.NotifyCommit(epoch):
                self._crew.send("decided", epoch)
                if self._kinds[epoch] is EpochKind.SAVEPOINT:
                    self._save(self._load(epoch))
            case do.RunCleanup():
                self._beside.append(self._sweep())
            case do.DiscoverSplits():
                self._learn(self._searched())
            case do.ReplaceAttempt():
                raise Restart
            case do.EndWithInputLost():
                raise Violation("nothing of the input was altered")
            case do.EndJob():
                self._job.seen["a job drained"] += 1
                raise Drained
            case do.PauseSources() | do.RequestCounts() | do.ResumeSources():
                raise Violation(f"{action} makes no sense here")

    def _trigger(self, epoch: EpochId, kind: EpochKind) -> None:
        """Who asks next for an epoch that leaves nothing under way is decided now."""
        self._kinds[epoch] = kind
        save = bool(self._saves) and self._chance.random() < self._saves
        self._asked = facts.PendingRequests(EpochKind.SAVEPOINT if save else None)
        if kind is EpochKind.FINAL:
            self._crew.send("read no more")
        self._crew.send("save" if kind.must_drain else "trigger", epoch)

    def _save(self, manifest: Manifest) -> None:
        self._held[manifest.id] = manifest.files
        self._saving.append(self._copy(manifest))

    def _copy(self, manifest: Manifest) -> Program:
        """Make a savepoint, file by file, while the job goes on."""
        for name in sorted(manifest.files):
            if name not in self._job.files:
                self._check()
                raise Violation(f"a file of epoch {manifest.id} is gone, of which a savepoint is being made")
            yield
        del self._held[manifest.id]
        self._job.seen["a savepoint made while the job went on"] += 1

    def _sweep(self) -> Program:
        """Read what there is, see whose the job is, then delete what the plan says: as ``storage.retention``."""
        found = self._job.inventory(frozenset[str]().union(*self._held.values()))
        yield
        found = replace(found, stored=frozenset(self._job.files))
        yield
        self._check()
        for batch in retention.split_batches(retention.plan_deletions(found, self._retained), BATCH):
            if batch.needs_ownership_check:
                self._check()
            self._delete(batch)
            yield
        self._learn(facts.CleanupFinished())

    def _delete(self, batch: retention.DeletionBatch) -> None:
        """In any order, and perhaps not all of it before a crash."""
        objects = list(batch.objects)
        self._job.seen[f"a {type(objects[0]).__name__.removeprefix('Delete').lower()} dropped"] += len(objects)
        if self._fate.random() < 0.01:
            self._fate.shuffle(objects)
            self._job.delete(objects[: self._fate.randint(0, len(objects))])
            self._job.seen["a crash while old epochs were dropped"] += 1
            raise Restart
        self._job.delete(objects)

    def _decide(self, decision: do.DecideEpoch) -> Manifest:
        """From here on the epoch has happened. No step lies between the question and the decision."""
        manifest = self._manifest(decision)
        self._job.publish(manifest)
        return manifest

    def _finish(self, manifest: Manifest) -> Program:
        self._check()
        yield
        probes = self._probe(manifest)
        yield
        match authorize(manifest.id, probes, 0.0):
            case CommitAuthorized() as decision:
                yield from self._commit(manifest, decision)
            case EpochRevoked() | EpochStuck():
                raise Restart
        self._check()
        self._learn(facts.EpochCommitted(manifest.id))

    def _manifest(self, decision: do.DecideEpoch) -> Manifest:
        epoch, drains = decision.epoch, self._kinds[decision.epoch] is not EpochKind.PERIODIC
        answers = [answer for _, answer in sorted(self._answers[epoch].items())]
        state: State = {}
        for answer in answers:
            state.update(answer.state)
        received = [copy for answer in answers for copy in answer.received]
        unsent = [copy for answer in answers for copy in answer.unsent]
        sealed = sorted((tag, t) for answer in answers for tag, t in answer.sealed)
        self._job.seen["an epoch decided"] += 1
        self._job.seen["an epoch that left nothing under way decided"] += drains
        self._job.seen["output of an aborted epoch decided"] += any(
            tag != epoch and decision.includes(tag) for tag, _ in sealed
        )
        self._job.seen["rows received before their barrier in a snapshot"] += bool(received)
        self._job.seen["overtaken rows in a snapshot"] += bool(unsent)
        return Manifest(
            id=epoch,
            offsets={split: at for answer in answers for split, at in answer.offsets.items()},
            state=state,
            in_flight=tuple((row.id, at) for row, at in [*received, *unsent]),
            committables=tuple(t for tag, t in sealed if decision.includes(tag)),
            files=frozenset[str]().union(*(answer.files for answer in answers)),
            aligned=drains,
        )

    def _probe(self, manifest: Manifest) -> list[Probe]:
        for transaction in manifest.committables:
            other = self._renamed and self._sink.terms[transaction] != self.term
            if other and not self._sink.has_prepared(transaction):
                raise NeedsAPerson
        return [self._sink.probe(transaction) for transaction in manifest.committables]

    def _commit(self, manifest: Manifest, decision: CommitAuthorized) -> Program:
        """The most urgent alone; the others together, so they come to their server in any order."""
        others = list(decision.order[1:])
        self._fate.shuffle(others)
        for index in [*decision.order[:1], *others]:
            try:
                self._sink.commit(decision.permit, manifest.committables[index])
            except Refused:
                raise Restart from None
            yield
        self._job.receipt(manifest.id)
        yield
