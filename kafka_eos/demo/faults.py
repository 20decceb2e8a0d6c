"""What goes wrong in a demo, decided before it starts.

Pure: the same seed and size give the same plan. The job has two lives. In the first it dies at named steps of a
checkpoint (``kafka_eos.failpoints``), the supervisor last; in the second it is hit from outside at any moment,
and the broker goes away once.

Rule: a plan is printed before it runs, and every fault of it must be seen to happen.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass

WORKER_POINTS = (
    "source.capture.after",
    "snapshot.linked",
    "snapshot.uploaded",
    "sink.seal",
    "sink.flush.after",
    "sink.prepare.before",
    "sink.prepare.after",
    "worker.ack.before",
)
"""Steps of a checkpoint in the worker: before its output is durable, between, and when all of it is prepared."""

SUPERVISOR_POINTS = ("manifest.published", "commit.before", "commit.after", "receipt.before")
"""Steps after the decision: the epoch has happened, but the world does not know it yet."""


class Victim(enum.Enum):
    WORKER = "worker"
    SUPERVISOR = "supervisor"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault: SIGKILL of ``victim``.

    ``point`` names a failpoint, None means from outside. ``epochs``: a failpoint acts at its so-manyth hit; from
    outside, so many epochs are committed first. ``delay`` is seconds after that, to hit any moment of an epoch.
    """

    victim: Victim
    point: str | None
    epochs: int
    delay: float = 0.0

    @property
    def title(self) -> str:
        if self.victim is Victim.BROKER:
            return "broker killed (SIGKILL), started again"
        return f"{self.victim.value} killed {f'at {self.point}' if self.point else 'from outside'}"

    @property
    def when(self) -> str:
        if self.point:
            return f"at hit {self.epochs} of the step"
        return f"{self.epochs} epochs and {self.delay * 1000:.0f} ms later"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of a run, in the order in which they happen."""

    seed: int
    first_life: tuple[Fault, ...]
    second_life: tuple[Fault, ...]

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self.first_life + self.second_life

    @property
    def script(self) -> str:
        """The first life as a value of ``KAFKA_EOS_FAILPOINTS``."""
        return ";".join(f"{fault.point}=kill@{fault.epochs}" for fault in self.first_life)

    @property
    def kills(self) -> int:
        return sum(fault.victim is not Victim.BROKER for fault in self.faults)


def plan_faults(seed: int, step_kills: int = 3, outside_kills: int = 2) -> FaultPlan:
    """Plan ``step_kills`` + ``outside_kills`` deaths of the worker, one of the supervisor and one of the broker."""
    dice = random.Random(f"faults of {seed}")
    steps = [Fault(Victim.WORKER, point, _epochs(dice)) for point in _sample(dice, WORKER_POINTS, step_kills)]
    decided = Fault(Victim.SUPERVISOR, dice.choice(SUPERVISOR_POINTS), _epochs(dice))
    outside = [Fault(Victim.WORKER, None, 2, _moment(dice)) for _ in range(outside_kills)]
    outside.insert(dice.randint(0, len(outside)), Fault(Victim.BROKER, None, 2, _moment(dice)))
    return FaultPlan(seed, (*steps, decided), tuple(outside))


def _sample(dice: random.Random, points: Sequence[str], count: int) -> list[str]:
    """``count`` points, none twice before each was taken once."""
    chosen: list[str] = []
    while len(chosen) < count:
        chosen += dice.sample(points, min(len(points), count - len(chosen)))
    return chosen


def _epochs(dice: random.Random) -> int:
    # At the third hit two epochs of the same session are committed or on their way: the kill is under load.
    return dice.randint(3, 4)


def _moment(dice: random.Random) -> float:
    return round(dice.uniform(0.0, 0.5), 3)
