"""Detect whether all in-flight rows were processed, by counting frames while the sources are paused.

Pure. This is the four-counter method of Mattern 1987. Workers are asked in rounds how many frames they have sent to
each other and processed. Rule: the job is quiescent when two consecutive rounds found every worker idle, and all four
totals are equal. One round is not enough, because its counts are not taken at one moment.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace


class FrameCounts(Struct, frozen=True):
    """The frames that a worker has sent and processed, and whether it is idle."""

    idle: bool
    sent: int
    processed: int


class CountingRound(Struct, frozen=True):
    """One round of counting frames in flight.

    ``previous_total`` is the total of the previous round if all workers were idle then.
    """

    number: int
    expected: frozenset[int]
    previous_total: tuple[int, int] | None = None
    answers: Mapping[int, FrameCounts] = field(default_factory=dict)

    def answer(self, number: int, subtask: int, counts: FrameCounts) -> CountingRound:
        """Return the round with one more worker's counts; unchanged if they belong to another round."""
        if number != self.number or subtask not in self.expected:
            return self
        return replace(self, answers={**self.answers, subtask: counts})

    @property
    def complete(self) -> bool:
        return self.answers.keys() == self.expected

    @property
    def total(self) -> tuple[int, int] | None:
        """Return the frames sent and processed by all workers, if all are idle."""
        if not self.complete or not all(counts.idle for counts in self.answers.values()):
            return None
        return sum(c.sent for c in self.answers.values()), sum(c.processed for c in self.answers.values())

    @property
    def is_quiescent(self) -> bool:
        total = self.total
        return total is not None and total[0] == total[1] and total == self.previous_total

    def next_round(self) -> CountingRound:
        return CountingRound(self.number + 1, self.expected, self.total)


class Quiescence(Struct, frozen=True):
    """The progress of pausing the sources until nothing is in flight."""

    round: CountingRound | None = None
    """The current counting round."""
    is_reached: bool = False
    is_used: bool = False
    """True once an epoch has started since."""

    @property
    def is_started(self) -> bool:
        return self.round is not None or self.is_reached

    def add_counts(self, number: int, subtask: int, counts: FrameCounts) -> Quiescence:
        """Add one worker's counts. A round that is complete and not quiescent is followed by the next one."""
        if self.round is None:
            return self
        answered = self.round.answer(number, subtask, counts)
        if answered.is_quiescent:
            return Quiescence(is_reached=True)
        return Quiescence(round=answered.next_round() if answered.complete else answered)
