"""The coordinator as a program that can be stopped, paused or forgotten between any two of its steps.

Rule: each ``yield`` is a place where it may die or sleep. What it does in between is one call to something durable
or one decision of ``protocol``; the order of these calls is the order of the real coordinator.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator
from typing import Protocol

from kafka_eos.ids import EpochId, Term
from kafka_eos.interfaces import Probe, Standing
from kafka_eos.protocol.checkpoint import Cadence, Failures, Flights
from kafka_eos.protocol.commit import Commit, Revoke, Stop, authorize
from kafka_eos.protocol.recovery import Fresh, Settled, Superseded, Unfinished, next_epoch, resolve, settle
from tests.simulation.durable import Job, Manifest, Refused, Sink, State
from tests.simulation.worker import Answer

Program = Generator[None, None, None]


class Fenced(Exception):
    """A newer term owns the job."""


class Restart(Exception):
    """This attempt is over; the next one takes a new term."""


class NeedsAPerson(Exception):
    """Part of a decided epoch is committed and part of it is lost."""


class Crew(Protocol):
    """The workers, as far as the coordinator knows them."""

    inbox: list[tuple[str, EpochId | None, int, Answer | None]]

    def start(self, term: Term, manifest: Manifest) -> frozenset[int]:
        """Start workers at the manifest; returns their numbers."""

    def send(self, kind: str, epoch: EpochId) -> None:
        """Tell all workers."""


class Coordinator:
    """One term's attempt to run the job. So many ``spurious`` epochs are given up as if they had timed out.

    A share of epochs (``saves``) is aligned and travels alone. ``fate`` decides about this attempt what does not
    touch the schedule of the others.
    """

    def __init__(
        self,
        job: Job,
        sink: Sink,
        crew: Crew,
        cadence: Cadence,
        concurrent: int,
        saves: float,
        chance: random.Random,
        fate: random.Random,
    ) -> None:
        self._job, self._sink, self._crew, self._cadence, self._chance = job, sink, crew, cadence, chance
        self._fate = fate
        self.now = 0.0
        self.spurious = 0
        self.term = Term(0)
        self._concurrent, self._saves = concurrent, saves
        self._alone: EpochId | None = None
        self._answers: dict[EpochId, dict[int, Answer]] = {}
        self._failures = Failures(3)
        self._finishing: deque[Program] = deque()
        self._triggered_at = self._completed_at = 0.0

    def run(self) -> Program:
        """Raises Fenced, Restart, NeedsAPerson; never returns otherwise."""
        self.term = self._job.claim()
        yield
        base: list[Manifest] = []
        yield from self._recover(base)
        self._flights = Flights(self._concurrent, base[0].id)
        self._job.seen["a restart with rows in flight"] += bool(base[0].in_flight)
        self._workers = self._crew.start(self.term, base[0])
        yield from self._serve()

    @property
    def committing(self) -> bool:
        """Is an epoch between its manifest and its receipt?"""
        return bool(self._finishing)

    def _check(self) -> None:
        if max(self._job.claims) > self.term:
            raise Fenced

    # ------------------------------------------------------------ recovery

    def _recover(self, base: list[Manifest]) -> Program:
        facts = self._job.facts()
        self._next = next_epoch(facts)
        resumption = resolve(facts, self.term)
        yield
        match resumption:
            case Superseded():
                raise Fenced
            case Fresh():
                yield from self._begin(base)
            case Settled(newest):
                self._job.base(self.term, newest)
                base.append(self._job.manifests[newest])
            case Unfinished() as unfinished:
                yield from self._unfinished(unfinished, base)
        yield
        # What is decided is done; what the job goes on with may turn out to be damaged only now.
        self._sink.abort_orphans(self.term)
        yield
        if self._fate.random() < 0.05:
            self._job.seen["a recovery that failed in its second phase"] += 1
            raise Restart

    def _begin(self, base: list[Manifest]) -> Program:
        """Decide the start positions before anything is read."""
        self._job.base(self.term, None)
        yield
        manifest = Manifest(self._new_epoch(), {}, {}, (), ())
        self._job.publish(manifest)
        yield
        self._check()
        self._job.receipt(manifest.id)
        yield
        self._check()
        base.append(manifest)

    def _unfinished(self, unfinished: Unfinished, base: list[Manifest]) -> Program:
        manifest = self._job.manifests[unfinished.newest]
        probes = self._probe(manifest)
        yield
        match settle(unfinished, probes, (), 0.0):
            case Commit() as decision:
                self._job.seen["an epoch finished by recovery"] += 1
                yield from self._commit(manifest, decision)
                self._job.base(self.term, manifest.id)
                base.append(manifest)
            case Revoke():
                assert unfinished.previous is not None
                self._job.seen["an epoch revoked"] += 1
                self._sink.abort_orphans(self.term)
                yield
                if any(probe.standing is Standing.COMMITTED for probe in self._probe(manifest)):
                    raise NeedsAPerson
                self._job.base(self.term, unfinished.previous)
                base.append(self._job.manifests[unfinished.previous])
            case Stop():
                raise NeedsAPerson

    # ------------------------------------------------------------ epochs

    def _serve(self) -> Program:
        while True:
            yield
            if self._finishing and self._chance.random() < 0.5:
                if next(self._finishing[0], self) is self:
                    self._finishing.popleft()
                continue
            self._listen()
            self._give_up()
            self._trigger()
            if epoch := self._flights.ready():
                self._finishing.append(self._finish(self._decide(epoch)))

    def _listen(self) -> None:
        """Take any message: late ones, and now and then one twice."""
        if not self._crew.inbox:
            return
        at = int(self._chance.random() * len(self._crew.inbox))
        kind, epoch, worker, answer = self._crew.inbox[at]
        if self._chance.random() >= 0.1:
            self._crew.inbox.pop(at)
        if kind == "died":
            raise Restart
        assert epoch is not None
        if kind == "decline":
            self._job.seen["an epoch declined"] += 1
            self._flights = self._flights.decline(epoch, worker)
            while (hopeless := self._flights.hopeless()) is not None:
                self._failed(hopeless, self._flights.abort(hopeless))
        elif answer is not None:
            self._answered(epoch, worker, answer)

    def _answered(self, epoch: EpochId, worker: int, answer: Answer) -> None:
        if not any(pending.id == epoch for pending in self._flights.pending):
            self._job.seen["a late answer"] += 1
        self._flights = self._flights.ack(epoch, worker)
        self._answers.setdefault(epoch, {})[worker] = answer

    def _give_up(self) -> None:
        for epoch in self._flights.expired(self._cadence, self.now):
            self._failed(epoch, self._flights.abort(epoch))
        if self.spurious and self._flights.pending:
            self.spurious -= 1
            victim = self._flights.pending[0].id  # as when it is late: the oldest first
            self._failed(victim, self._flights.abort(victim))

    def _failed(self, epoch: EpochId, without: Flights) -> None:
        if without == self._flights:
            return
        self._job.seen["an epoch aborted"] += 1
        self._flights = without
        self._crew.send("abort", epoch)
        self._failures = self._failures.failed()
        if self._failures.too_many:
            raise Restart

    def _trigger(self) -> None:
        due = self._cadence.next_trigger(self._triggered_at, self._completed_at)
        travels_alone = any(pending.id == self._alone for pending in self._flights.pending)
        if self.now >= due and not self._flights.full and not travels_alone:
            epoch = self._new_epoch()
            save = bool(self._saves) and not self._flights.pending and self._chance.random() < self._saves
            self._alone = epoch if save else None
            self._flights = self._flights.trigger(epoch, self._workers, self.now)
            self._triggered_at = self.now
            self._job.seen["epochs that overlap"] += len(self._flights.pending) > 1
            self._crew.send("save" if save else "trigger", epoch)

    def _new_epoch(self) -> EpochId:
        epoch = EpochId(self._next, self.term)
        self._next = self._next.next()
        return epoch

    def _decide(self, epoch: EpochId) -> Manifest:
        """From here on the epoch has happened. No step lies between the question and the decision."""
        manifest = self._manifest(epoch)
        self._job.publish(manifest)
        self._flights = self._flights.decided(epoch)
        return manifest

    def _finish(self, manifest: Manifest) -> Program:
        self._check()
        yield
        probes = self._probe(manifest)
        yield
        match authorize(manifest.id, probes, 0.0):
            case Commit() as decision:
                yield from self._commit(manifest, decision)
            case Revoke() | Stop():
                raise Restart
        self._check()
        self._flights = self._flights.committed(manifest.id)
        self._failures = self._failures.succeeded()
        self._completed_at = self.now
        self._crew.send("decided", manifest.id)

    def _manifest(self, epoch: EpochId) -> Manifest:
        answers = [answer for _, answer in sorted(self._answers[epoch].items())]
        state: State = {}
        for answer in answers:
            state.update(answer.state)
        received = [copy for answer in answers for copy in answer.received]
        unsent = [copy for answer in answers for copy in answer.unsent]
        sealed = sorted((tag, t) for answer in answers for tag, t in answer.sealed)
        self._job.seen["an epoch decided"] += 1
        self._job.seen["an epoch that left nothing under way decided"] += epoch == self._alone
        self._job.seen["output of an aborted epoch decided"] += any(
            tag != epoch and self._flights.takes(tag) for tag, _ in sealed
        )
        self._job.seen["rows received before their barrier in a snapshot"] += bool(received)
        self._job.seen["overtaken rows in a snapshot"] += bool(unsent)
        return Manifest(
            id=epoch,
            offsets={split: at for answer in answers for split, at in answer.offsets.items()},
            state=state,
            in_flight=tuple((row.id, at) for row, at in [*received, *unsent]),
            committables=tuple(t for tag, t in sealed if self._flights.takes(tag)),
            aligned=epoch == self._alone,
        )

    def _probe(self, manifest: Manifest) -> list[Probe]:
        return [self._sink.probe(transaction) for transaction in manifest.committables]

    def _commit(self, manifest: Manifest, decision: Commit) -> Program:
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
