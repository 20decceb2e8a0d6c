"""The plan of a crash test, made before it starts: faults at named steps, faults from outside, a change of parallelism.

Pure: the same seed and size give the same plan. First the job is killed at named steps of a checkpoint, a commit and a
recovery (``kafka_eos._util.failpoints``). Then it is killed from outside at any moment, the broker goes down, and the
job is stopped cleanly and resumed with another parallelism.

Rule: a plan is printed before it runs, and each of its faults must be observed. A step that the pipeline does not pass
is reported as such.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


class Victim(enum.Enum):
    """The kind of process that is hit. A process is named by its kind, with a number if there are several."""

    WORKER = "worker"
    SUPERVISOR = "supervisor"
    EXECUTOR = "executor"
    DRIVER = "driver"
    BROKER = "broker"
    JOB = "job"
    """The job as a whole, which is rescaled and not killed."""
    SAVEPOINT = "savepoint"
    """Nobody is hit: a savepoint is taken under load."""
    ZOMBIE = "zombie"
    """The whole job is frozen, another one takes its place, and the frozen one resumes beside it."""


PROCESSES = frozenset(Victim) - {Victim.BROKER, Victim.JOB, Victim.SAVEPOINT, Victim.ZOMBIE}
"""Processes of the job itself. A fault that hits one counts as a kill."""


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """The processes of an engine that can be killed."""

    leader: Victim
    members: Victim
    """The kind of process that a kill from outside hits."""
    fixed_members: int | None = None
    """The number of these processes, if it is not the parallelism."""
    leader_outside: bool = False
    """The leader is hit from outside too."""

    @property
    def new_session(self) -> frozenset[Victim]:
        """Return the processes whose death makes the job begin a new session; after any other death it continues."""
        return frozenset({Victim.WORKER, Victim.JOB, self.leader})


_STEPS = (
    "source.capture.after",
    "snapshot.linked",
    "snapshot.uploaded",
    "sink.seal",
    "sink.flush.after",
    "sink.prepare.before",
    "sink.prepare.after",
    "worker.ack.before",
)
"""Steps of a checkpoint: before its output is durable, between, and when all of it is prepared."""
_STEP_HITS = (3, 4)
"""At the first of these hits at the latest an epoch was committed since the last fault: the kill is under load."""
_SINK_HITS = (9, 12)
"""The same for steps of a sink: each sink of the job reaches them in each epoch."""
_BETWEEN = "commit.between"
"""Between two commits of an epoch that is decided: one system shows it already, and another one does not yet."""
_BETWEEN_HITS = (8, 14)
"""Each commit of an epoch but the first is a hit. At the first of these an epoch was committed before, as above."""

FAULT_PROFILES = {
    "embedded": FaultProfile(Victim.SUPERVISOR, Victim.WORKER),
    "spark": FaultProfile(Victim.DRIVER, Victim.EXECUTOR, fixed_members=2, leader_outside=True),
}
"""Fault profiles by engine."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One planned fault: a SIGKILL, or a clean stop and another parallelism.

    ``point`` names a failpoint, None means from outside. ``epochs``: a failpoint acts at its so-manyth hit; from
    outside, so many epochs are committed first. ``delay`` is seconds after that, to hit any moment of an epoch.
    ``number`` says which one, where there are several and it was chosen.
    """

    victim: Victim
    point: str | None
    epochs: int
    delay: float = 0.0
    number: int | None = None
    parallelism: tuple[int, int] | None = None
    """Before and after; of the job only."""
    optional: bool = False
    """Not every pipeline passes the step: if it is not reached in some epochs, the test continues."""

    @property
    def name(self) -> str:
        """Return the name of the process that is hit."""
        return self.victim.value if self.number is None else f"{self.victim.value} {self.number}"

    @property
    def title(self) -> str:
        return self.format_title(self.name)

    def format_title(self, name: str) -> str:
        """Return the title of the fault for the process that was actually hit."""
        if self.victim is Victim.BROKER:
            return "broker killed (SIGKILL), started again"
        if self.parallelism:
            before, after = self.parallelism
            return f"parallelism {before} → {after} (SIGTERM, drained, started again)"
        if self.victim is Victim.SAVEPOINT:
            return "savepoint taken under load"
        if self.victim is Victim.ZOMBIE:
            return "job frozen (SIGSTOP), replaced, and resumed beside its successor"
        return f"{name} killed {f'at {self.point}' if self.point else 'from outside'}"

    @property
    def when(self) -> str:
        if self.point:
            return f"at hit {self.epochs} of the step"
        return f"{self.epochs} epochs and {self.delay * 1000:.0f} ms later"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Every event of a run, in order. ``parallelism`` is that of the start."""

    seed: int
    profile: FaultProfile
    parallelism: int
    step_faults: tuple[PlannedFault, ...]
    outside_faults: tuple[PlannedFault, ...]

    @property
    def faults(self) -> tuple[PlannedFault, ...]:
        return self.step_faults + self.outside_faults


def failpoint_script(faults: Sequence[PlannedFault]) -> str:
    """Return step faults as a value of KAFKA_EOS_FAILPOINTS."""
    return ";".join(f"{fault.point}=kill@{fault.epochs}" for fault in faults)


def plan_faults(seed: int, step_kills: int = 3, outside_kills: int = 2, engine: str = "embedded") -> FaultPlan:
    """Plan ``step_kills`` + ``outside_kills`` kills of members, the kills of leader and broker, and the rescaling.

    The job starts with two workers, and continues with one or three.
    """
    dice, profile = random.Random(f"faults of {seed}"), FAULT_PROFILES[engine]  # noqa: S311 - a course is repeated by its seed
    before, after = 2, dice.choice((1, 3))
    steps = [
        PlannedFault(Victim.WORKER, point, dice.randint(*(_SINK_HITS if point.startswith("sink.") else _STEP_HITS)))
        for point in _sample(dice, _STEPS, step_kills)
    ]
    decided = PlannedFault(profile.leader, _BETWEEN, dice.randint(*_BETWEEN_HITS))
    victims = [profile.members] * outside_kills + [Victim.BROKER] + [profile.leader] * profile.leader_outside
    outside = _plan_outside(dice, profile, victims, (before, after), epochs=2)
    return FaultPlan(seed, profile, before, (*steps, decided), outside)


@dataclass(frozen=True, slots=True)
class StepsOfPlan:
    """The facts of a pipeline that decide which steps it passes."""

    sinks: int
    keeps_state: bool
    writes_lake: bool
    has_outbox: bool


_WORKER_STEPS = ("source.capture.before", "source.capture.after", "sink.seal", "align.barrier", "align.complete")
_SINK_STEPS = ("sink.flush.before", "sink.flush.after", "sink.prepare.before", "sink.prepare.after")
_STATE_STEPS = ("snapshot.flush", "snapshot.linked", "snapshot.upload", "snapshot.uploaded")
_END_OF_EPOCH = ("worker.ack.before", "worker.ack.after", "worker.complete")
_DECISION = (
    *("coordinator.ack", "coordinator.acked", "manifest.staged", "manifest.synced", "manifest.renamed"),
    *("manifest.published", "commit.probe", "commit.before", "commit.between", "commit.after"),
    *("receipt.before", "receipt.after", "retention.recorded", "retention.before", "retention.between"),
)
_LAKE = ("lake.commit.before", "lake.replaced", "lake.commit.after")
_OUTBOX = ("outbox.before", "outbox.between", "outbox.after")
_RECOVERY = (
    *("recovery.claimed", "recovery.resolved", "recovery.looked", "recovery.probed", "recovery.committed"),
    *("recovery.based", "recovery.aborted", "recovery.verified", "recovery.restored", "recovery.opened"),
)
_QUICK = ("source.capture.after", "snapshot.uploaded", "sink.prepare.before", "sink.prepare.after", "manifest.synced")
_QUICK_DECISION = ("commit.before", "commit.between", "receipt.before")


def plan_every_step(
    steps: StepsOfPlan, seed: int, kills: int, *, quick: bool, own_broker: bool, engine: str = "embedded"
) -> FaultPlan:
    """Plan a kill at every step that the pipeline may pass, ``kills`` kills from outside, and the other faults.

    ``quick`` plans some steps, and no outage, savepoint or zombie. Steps of a sink are hit once for each sink. On Spark
    there is no zombie.
    """
    dice, profile = random.Random(f"steps of {seed}"), FAULT_PROFILES[engine]  # noqa: S311 - repeated by its seed
    before, after = 2, dice.choice((1, 3))
    points = [point for point in _QUICK if steps.keeps_state or point not in _STATE_STEPS]
    if quick:
        points += _QUICK_DECISION
    else:
        points = [
            *_WORKER_STEPS,
            *(_STATE_STEPS if steps.keeps_state else ()),
            *_SINK_STEPS,
            *_END_OF_EPOCH,
            *_DECISION,
        ]
        points += [*(_LAKE if steps.writes_lake else ()), *(_OUTBOX if steps.has_outbox else ())]
    planned = [
        _plan_step(point, number, steps.sinks, profile) for point in points for number in _sinks_at(point, steps, quick)
    ]
    chain = [PlannedFault(profile.leader, "commit.before", 2, optional=True)] + [
        PlannedFault(profile.leader, point, 1, optional=True) for point in _RECOVERY
    ]
    others = sorted({Victim.WORKER, profile.members}, key=lambda victim: victim.value)
    victims = [profile.leader if dice.random() < 0.2 else dice.choice(others) for _ in range(kills)]
    victims += [Victim.BROKER] * (2 if own_broker and not quick else 0)
    victims += [] if quick else [Victim.SAVEPOINT]
    outside = _plan_outside(dice, profile, victims, (before, after), epochs=1)
    if not quick and engine == "embedded":  # last: processes that were started with failpoints share a lock
        outside += (PlannedFault(Victim.ZOMBIE, None, 1, 0.2),)
    return FaultPlan(seed, profile, before, (*planned, *([] if quick else chain)), outside)


def _sinks_at(point: str, steps: StepsOfPlan, quick: bool) -> range:
    return range(steps.sinks if point in _SINK_STEPS and not quick else 1)


def _plan_step(point: str, number: int, sinks: int, profile: FaultProfile) -> PlannedFault:
    """Plan a kill in the second epoch of a process, in which each sink reaches the steps of a sink."""
    hits = sinks + number + 1 if point in _SINK_STEPS else 2
    victim = profile.leader if point in (*_DECISION, *_LAKE, *_OUTBOX) else Victim.WORKER
    return PlannedFault(victim, point, hits, optional=True)


def _plan_outside(
    dice: random.Random, profile: FaultProfile, victims: list[Victim], scales: tuple[int, int], epochs: int
) -> tuple[PlannedFault, ...]:
    """Plan the faults from outside in random order, with the change of parallelism in the middle."""
    dice.shuffle(victims)
    victims.insert(len(victims) // 2, Victim.JOB)
    now, outside = scales[0], []
    for victim in victims:
        several = {Victim.WORKER: now, profile.members: profile.fixed_members or now}
        number = dice.randrange(several[victim]) if victim in several else None
        delay = round(dice.uniform(0.0, 0.5), 3)
        outside.append(PlannedFault(victim, None, epochs, delay, number, scales if victim is Victim.JOB else None))
        now = scales[1] if victim is Victim.JOB else now
    return tuple(outside)


def counts(faults: Sequence[PlannedFault]) -> dict[str, int]:
    """Count the faults of each kind of process, without rescalings."""
    found = Counter(fault.victim for fault in faults)
    return {victim.value: found[victim] for victim in Victim if found[victim] and victim in (*PROCESSES, Victim.BROKER)}


def _sample(dice: random.Random, points: Sequence[str], count: int) -> list[str]:
    """Draw ``count`` points, none twice before each was drawn once."""
    chosen: list[str] = []
    while len(chosen) < count:
        chosen += dice.sample(points, min(len(points), count - len(chosen)))
    return chosen
