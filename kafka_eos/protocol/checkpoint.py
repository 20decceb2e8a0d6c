"""When to take a checkpoint, and when one is complete.

Pure: time is an argument. Rule: an epoch is complete when every expected subtask has acknowledged exactly
this epoch of exactly this term; late, repeated and foreign answers change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kafka_eos.ids import EpochId


@dataclass(frozen=True, slots=True)
class Pending:
    """A triggered epoch that is not decided yet."""

    id: EpochId
    expected: frozenset[int]
    triggered_at: float
    acked: frozenset[int] = frozenset()

    def ack(self, epoch: EpochId, subtask: int) -> Pending:
        """The same epoch with one more answer; unchanged if the answer is not for it."""
        if epoch != self.id or subtask not in self.expected:
            return self
        return replace(self, acked=self.acked | {subtask})

    @property
    def complete(self) -> bool:
        return self.acked == self.expected


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often: seconds between triggers, least pause after a completion, most time for one epoch."""

    interval: float
    min_pause: float
    timeout: float

    def next_trigger(self, last_triggered: float, last_completed: float) -> float:
        """The earliest time of the next trigger, in the clock of the arguments."""
        return max(last_triggered + self.interval, last_completed + self.min_pause)

    def expired(self, pending: Pending, now: float) -> bool:
        return now - pending.triggered_at > self.timeout


@dataclass(frozen=True, slots=True)
class Failures:
    """Consecutive failed checkpoints, and how many of them the job bears."""

    tolerated: int
    seen: int = 0

    def failed(self) -> Failures:
        return replace(self, seen=self.seen + 1)

    def succeeded(self) -> Failures:
        return replace(self, seen=0)

    @property
    def too_many(self) -> bool:
        return self.seen > self.tolerated
