"""What one run of the simulation is made of: everything that a seed decides, as a value that can be shrunk.

Rule: a scenario and nothing else determines a run, step by step. Dropping a fault leaves the schedule before it as
it was.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from kafka_eos.plan.feedback_edges import back_edges
from kafka_eos.protocol.barrier_alignment import CheckpointMode

SPLITS = 3
KEYS = 4
STAYS = 6
"""A multiple of every parallelism: this and the split make a key that belongs to the reader of the split."""
LAST_FAULT = 900
"""No fault comes after this step, but for those that follow another one."""

FAULTS = (
    "crash worker",
    "crash coordinator",
    "crash in commit",
    "pause coordinator",
    "pause in commit",
    "stall worker",
    "slow channel",
    "abort epoch",
    "lose trigger",
    "expire output",
    "stop job",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong at step ``at``; ``pick`` chooses the victim."""

    at: int
    kind: str
    pick: int


@dataclass(frozen=True, slots=True)
class Row:
    """A record of the input. ``keys`` holds its key in each segment; ``rounds`` is how often it takes the loop.

    One that ``stays`` takes the forward exchange, past the segments between.
    """

    split: int
    offset: int
    keys: tuple[int, ...]
    rounds: int
    stays: bool = False

    @property
    def id(self) -> tuple[int, int]:
        return self.split, self.offset


Input = tuple[tuple[Row, ...], ...]
"""The rows of each split."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``parallelism`` holds that of the first session, of the second, and so on, over and over (rescaling).

    ``loop`` is (tail, head): segments of a feedback edge. ``shortcut`` is the segment to which a forward exchange leads
    from the first, beside the other way there. ``interval`` is in steps. A channel is slow
    with the probability ``slow``: barriers then come at very different times. ``pace`` is how eagerly sources read: the
    input lasts for many epochs. ``saves`` is the share of epochs of which a savepoint is made: they leave nothing under
    way. Of the committed ones ``retained`` stay. With ``renamed`` each term knows the cluster of the output by another
    name.
    """

    seed: int
    parallelism: tuple[int, ...]
    exchanges: int
    loop: tuple[int, int] | None
    shortcut: int | None
    mode: CheckpointMode
    aligned_timeout: float
    interval: int
    rows: int
    slow: float
    pace: float
    saves: float
    retained: int
    faults: tuple[Fault, ...]
    endings: tuple[Fault, ...] = ()
    """Steps at which the job fails for good, and its process cleans up before another one starts."""
    renamed: bool = False

    @property
    def segments(self) -> int:
        return self.exchanges + 1

    @property
    def exact(self) -> bool:
        return self.mode is not CheckpointMode.AT_LEAST_ONCE

    @property
    def feedback(self) -> frozenset[tuple[int, int]]:
        """The back-edges, as the engine would find them."""
        forward = [(n, n + 1) for n in range(self.exchanges)]
        return back_edges(range(self.segments), [*forward, *([self.loop] if self.loop else [])])

    def input(self) -> Input:
        """The same for every session."""
        chance, staying = random.Random(f"{self.seed} input"), random.Random(f"{self.seed} staying")
        return tuple(tuple(self._row(chance, staying, split, n) for n in range(self.rows)) for split in range(SPLITS))

    def _row(self, chance: random.Random, staying: random.Random, split: int, offset: int) -> Row:
        keys = tuple(int(chance.random() * KEYS) for _ in range(4))
        rounds = int(chance.random() * 3)
        stays = self.shortcut is not None and staying.random() < 0.5
        if self.shortcut is not None and stays:
            keys = (*[STAYS + split] * (self.shortcut + 1), *keys[self.shortcut + 1 :])
        return Row(split, offset, keys[: self.segments], rounds if self.loop else 0, stays)

    def path(self, row: Row) -> tuple[int, ...]:
        """The segments that a row visits, in order."""
        if self.shortcut is not None and row.stays:
            return (0, *range(self.shortcut, self.segments))
        return _path(self.segments, self.loop, row.rounds)


@cache
def _path(segments: int, loop: tuple[int, int] | None, rounds: int) -> tuple[int, ...]:
    if loop is None:
        return tuple(range(segments))
    tail, head = loop
    return (*range(tail + 1), *(tuple(range(head, tail + 1)) * rounds), *range(tail + 1, segments))


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = random.Random(f"{seed} scenario")
    exchanges = chance.randint(1, 3)
    loop = None
    if chance.random() < 0.4:
        tail = chance.randint(1, exchanges)
        loop = (tail, chance.randint(1, tail))
    forward = random.Random(f"{seed} forward")
    shortcut = forward.randint(1, exchanges) if loop is None and forward.random() < 0.4 else None
    mode = chance.choice(
        [
            CheckpointMode.ALIGNED,
            CheckpointMode.ALIGNED,
            CheckpointMode.UNALIGNED,
            CheckpointMode.UNALIGNED,
            CheckpointMode.AT_LEAST_ONCE,
        ]
    )
    return Scenario(
        seed=seed,
        parallelism=tuple(chance.randint(1, 3) for _ in range(3)),
        exchanges=exchanges,
        loop=loop,
        shortcut=shortcut,
        mode=mode,
        aligned_timeout=chance.choice([0.0, 0.0, 40.0, 150.0]),
        interval=chance.randint(20, 120),
        rows=chance.randint(5, 16),
        slow=chance.choice([0.0, 0.3]),
        pace=chance.choice([0.1, 0.3, 1.0]),
        saves=random.Random(f"{seed} saves").choice([0.0, 0.0, 0.4]),
        retained=random.Random(f"{seed} retained").randint(1, 3),
        faults=_faults(chance, chance.randint(0, 7)),
        endings=_endings(random.Random(f"{seed} endings")),
        renamed=random.Random(f"{seed} renamed").random() < 0.3,
    )


def _endings(chance: random.Random) -> tuple[Fault, ...]:
    """In three of ten scenarios, from a source of its own: the schedules of the others stay as they were."""
    if chance.random() >= 0.3:
        return ()
    return (Fault(chance.randint(100, LAST_FAULT), "fail job", chance.randrange(1000)),)


def _faults(chance: random.Random, number: int) -> tuple[Fault, ...]:
    """Half of them come soon after another one: what matters is often the second blow."""
    faults: list[Fault] = []
    for _ in range(number):
        at = chance.randint(20, LAST_FAULT)
        if faults and chance.random() < 0.5:
            at = faults[-1].at + chance.randint(5, 150)
        faults.append(Fault(at, chance.choice(FAULTS), chance.randrange(1000)))
    return tuple(sorted(faults, key=lambda fault: fault.at))
