"""The world: sessions of a job, their faults, and a scheduler that lets one of them do one step at a time.

Rule: one generator of random numbers, seeded by the scenario; no clock but the number of the step.
"""

from __future__ import annotations

import math
import random

from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import EpochId, Term
from kafka_eos.protocol.checkpoint_schedule import Cadence
from tests.simulation.coordinator import Coordinator, Drained, Failed, Fenced, NeedsAPerson, Program, Restart
from tests.simulation.durable import Job, Manifest, Sink, Transaction, Violation
from tests.simulation.invariants import Invariants
from tests.simulation.scenario import LAST_FAULT, Fault, Scenario
from tests.simulation.worker import CREDIT, FORWARD, SOURCE, Answer, Channel, Worker

PATIENCE = 50_000
"""Steps after the last fault in which everything must be committed."""

FAILURES = (Violation, Bug, LookupError)
"""What a broken protocol raises: an invariant, a rule of the pure machines, or something that is not there."""


class Session:
    """A coordinator and its workers. Sessions of one job may overlap: then all but the newest are zombies."""

    def __init__(self, world: World, parallelism: int) -> None:
        self._world, self._parallelism = world, parallelism
        self.inbox: list[tuple[str, EpochId | None, int, Answer | None]] = []
        self.workers: list[Worker] = []
        self.paused_until = 0.0
        self.fuse = 0
        """After so many more steps of a commit, or of dropping old epochs, the coordinator fails; 0: it does not."""
        self.then_sleeps = 0
        """For so many steps, if it is not to crash then."""
        self.dies_at = math.inf
        """When the rest of a session without coordinator is gone, too."""
        scenario = world.scenario
        size = parallelism**2 * (scenario.exchanges + (scenario.shortcut is not None)) * (2 if scenario.loop else 1)
        cadence = Cadence(scenario.interval, 5.0, timeout=500.0 + 100.0 * size)
        self.coordinator: Coordinator | None = Coordinator(
            world.job, world.sink, self, cadence, scenario.saves, scenario.retained, world.chance,
            random.Random(f"{scenario.seed} attempt {world.started}"), scenario.renamed,
        )  # fmt: skip
        self._program: Program = self.coordinator.run()

    # ------------------------------------------------------------ as the coordinator sees it

    def start(self, term: Term, manifest: Manifest) -> frozenset[int]:
        world, scenario = self._world, self._world.scenario
        count = self._parallelism
        self.workers = [
            Worker(scenario, world.input, n, count, term, world.sink, world.job.upload, self._hear)
            for n in range(count)
        ]
        for worker in self.workers:
            worker.restore(manifest)
            worker.segments[0].inputs[SOURCE] = Channel((SOURCE, 0), worker.segments[0], CREDIT)
        for tail, head in world.edges:
            self._connect(tail, head, "back" if (tail, head) in scenario.feedback else "forward")
        if scenario.shortcut is not None:
            for worker in self.workers:
                self._channel(worker, worker, 0, scenario.shortcut, "stay")
        copies = [(world.rows[row], at) for row, at in manifest.in_flight]
        copies.sort(key=lambda copy: -copy[1])
        for worker in self.workers:
            worker.replay(copies)
            self._hear("ready", None, worker.index, None)
        return frozenset(range(count))

    def _connect(self, tail: int, head: int, kind: str) -> None:
        for sender in self.workers:
            for receiver in self.workers:
                self._channel(sender, receiver, tail, head, kind)

    def _channel(self, sender: Worker, receiver: Worker, tail: int, head: int, kind: str) -> None:
        limit = math.inf if kind == "back" else CREDIT
        slow = self._world.chance.random() < self._world.scenario.slow
        channel = Channel((kind, sender.index), receiver.segments[head], limit, slow)
        sender.segments[tail].outputs.setdefault(FORWARD if kind == "stay" else head, []).append(channel)
        receiver.segments[head].inputs[channel.name] = channel
        sender.outgoing.append(channel)
        receiver.incoming.append(channel)

    def _hear(self, kind: str, epoch: EpochId | None, worker: int, answer: Answer | None) -> None:
        self.inbox.append((kind, epoch, worker, answer))

    def send(self, kind: str, epoch: EpochId | None = None) -> None:
        for worker in self.workers:
            worker.control.append((kind, epoch))

    # ------------------------------------------------------------ one step

    def step(self, now: float) -> None:
        """Raises what ends the session."""
        chance = self._world.chance
        at = int(chance.random() * (3 * len(self.workers) + 1))
        if at < 3 * len(self.workers):
            worker = self.workers[at // 3]
            if not worker.dead and worker.stalled_until <= now:
                worker.step(chance, now)
        elif self.coordinator is not None and self.paused_until <= now:
            self.coordinator.now = now
            next(self._program)
            if self.fuse and self.coordinator.busy:
                self.fuse -= 1
                if not self.fuse and self.then_sleeps:
                    self.pause(now, self.then_sleeps)
                elif not self.fuse:
                    self.crash(now, 100)

    def pause(self, now: float, lasting: float) -> None:
        """The coordinator sleeps, and is believed dead before long."""
        self.paused_until = now + lasting
        self._world.start_by(now + lasting / 6)

    def fail(self, now: float, lasting: float) -> None:
        """The job fails for good. Its process cleans up, and may sleep just before it takes a term for that."""
        if self.coordinator is None or self.coordinator.term == Term(0):
            return
        for worker in self.workers:
            worker.dead = True
        self._program = self.coordinator.clean_up()
        next(self._program)
        self.pause(now, lasting) if lasting else self._world.start_by(now + 100)

    def crash(self, now: float, lingering: float) -> None:
        """The coordinator is gone; its workers find out after ``lingering`` steps."""
        self.coordinator, self.dies_at = None, now + lingering
        self._world.start_by(now + lingering / 10)


class World:
    """One run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.chance = random.Random(f"{scenario.seed} world")
        self.job = Job()
        seed = scenario.seed
        self.sink = Sink(random.Random(f"{seed} brokers"), random.Random(f"{seed} paths"), self.job.seen)
        self.input = scenario.input()
        self.rows = {row.id: row for split in self.input for row in split}
        self.edges = [(n, n + 1) for n in range(scenario.exchanges)] + ([scenario.loop] if scenario.loop else [])
        self.sessions: list[Session] = []
        self.steps = 0
        self.stopped = False
        self.started = 0
        """Attempts so far."""
        self._start_at = math.inf
        self._invariants = Invariants(scenario, self.job, self.sink)
        self._start()

    def run(self) -> None:
        """Until all input is committed, or a person is needed. Raises Violation."""
        scenario = self.scenario
        faults = sorted((*scenario.faults, *scenario.endings), key=lambda fault: fault.at, reverse=True)
        while not self.stopped:
            self.steps += 1
            while faults and faults[-1].at <= self.steps:
                self._break(faults.pop())
            self._step()
            self._invariants.check()
            if not faults and self._invariants.delivered:
                return
            if self.steps > LAST_FAULT + PATIENCE:
                raise Violation(f"after {self.steps} steps only {len(self._invariants.visible)} rows are visible")

    def _step(self) -> None:
        if self.steps >= self._start_at or not self.sessions:
            self._start()
        session = self.sessions[int(self.chance.random() * len(self.sessions))]
        try:
            if self.steps > session.dies_at:
                raise Fenced
            session.step(self.steps)
        except Fenced:
            self.job.seen["a session fenced"] += 1
            self.sessions.remove(session)
        except Failed:
            self.sessions.remove(session)
        except Restart:
            self.sessions.remove(session)
            self._start(session)
        except Drained:
            self.sessions.remove(session)
            if self.job.history()[-1] not in self.job.receipts and not self._replaced(session):
                raise Violation("the job has ended, and its last epoch is not committed") from None
        except NeedsAPerson:
            if not any(fault.kind == "expire output" for fault in self.scenario.faults):
                raise Violation("a person is needed, though no output was lost") from None
            self.stopped = True

    def _start(self, after: Session | None = None) -> None:
        """A new attempt; one that follows another in the same process does not take over from a newer one."""
        if after and self._replaced(after):
            return
        parallelism = self.scenario.parallelism
        self.sessions.append(Session(self, parallelism[self.started % len(parallelism)]))
        self.started += 1
        self._start_at = math.inf

    def _replaced(self, session: Session) -> bool:
        return session.coordinator is not None and max(self.job.claims) > session.coordinator.term

    def start_by(self, step: float) -> None:
        """Somebody has noticed that the job is not running, or believes so."""
        self._start_at = min(self._start_at, step)

    # ------------------------------------------------------------ faults

    def _break(self, fault: Fault) -> None:
        live = [s for s in self.sessions if s.coordinator is not None and s.paused_until <= self.steps]
        if not live:
            return
        session, pick = live[-1], fault.pick
        coordinator = session.coordinator
        assert coordinator is not None
        worker = session.workers[pick % len(session.workers)] if session.workers else None
        match fault.kind:
            case "crash coordinator":
                session.crash(self.steps, pick)
            case "crash in commit":
                session.fuse, session.then_sleeps = 1 + pick % 6, 0
            case "pause in commit":
                session.fuse, session.then_sleeps = 1 + pick % 12, 20 + pick
            case "pause coordinator":
                session.paused_until = self.steps + 20 + pick % 300
                self.start_by(self.steps + pick % 50)
            case "abort epoch":
                coordinator.spurious += 1 + pick % 2
            case "stop job":
                coordinator.stopping = True
            case "expire output":
                self._expire(pick)
            case "fail job":
                try:
                    session.fail(self.steps, pick % 200 if pick % 2 else 0)
                except Fenced:
                    self.sessions.remove(session)
            case "crash worker" if worker is not None:
                worker.dead = True
                session.inbox.append(("died", None, worker.index, None))
            case "stall worker" if worker is not None:
                worker.stalled_until = self.steps + 2 * pick
            case "slow channel" if worker is not None:
                worker.incoming[pick % len(worker.incoming)].held_until = self.steps + pick
            case "lose trigger" if worker is not None:
                worker.lose_triggers += 1

    def _expire(self, pick: int) -> None:
        prepared = [t for t, state in enumerate(self.sink.state) if state is Transaction.PREPARED]
        if prepared:
            self.sink.expire(prepared[pick % len(prepared)])


def run(scenario: Scenario) -> Exception | None:
    """What is wrong with the scenario's run, if anything is."""
    try:
        World(scenario).run()
    except FAILURES as error:
        return error
    return None
