"""Has everything that was under way been processed? Decided by counting, with the sources at a halt.

Pure. Mattern 1987, the four-counter method: workers are asked in rounds how many frames they have sent to each other
and processed. Rule: it is quiet when two rounds in a row found every worker idle, and all four totals are equal; one
round is not enough, because its answers are not of one moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Counts:
    """One worker's answer: totals since its session began, and whether nothing waits in it."""

    idle: bool
    sent: int
    processed: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round of questions. ``before`` is the total of the round before if all were idle then."""

    number: int
    expected: frozenset[int]
    before: tuple[int, int] | None = None
    answers: Mapping[int, Counts] = field(default_factory=dict)

    def answer(self, number: int, subtask: int, counts: Counts) -> Round:
        """The round with one more answer; unchanged if the answer is to another one."""
        if number != self.number or subtask not in self.expected:
            return self
        return replace(self, answers={**self.answers, subtask: counts})

    @property
    def complete(self) -> bool:
        return self.answers.keys() == self.expected

    @property
    def total(self) -> tuple[int, int] | None:
        """Frames sent and processed by all, if all are idle."""
        if not self.complete or not all(counts.idle for counts in self.answers.values()):
            return None
        return sum(c.sent for c in self.answers.values()), sum(c.processed for c in self.answers.values())

    @property
    def quiet(self) -> bool:
        total = self.total
        return total is not None and total[0] == total[1] and total == self.before

    def following(self) -> Round:
        """The next round."""
        return Round(self.number + 1, self.expected, self.total)


@dataclass(frozen=True, slots=True)
class Standstill:
    """The job at a halt, for an epoch that must find nothing under way: halted, asked round after round, quiet."""

    round: Round | None = None
    """The questions that are asked now."""
    quiet: bool = False
    served: bool = False
    """Has an epoch begun since it is quiet?"""

    @property
    def begun(self) -> bool:
        return self.round is not None or self.quiet

    def counted(self, number: int, subtask: int, counts: Counts) -> Standstill:
        """One more answer. If that ends a round, and it is not quiet, the next one is to be asked."""
        if self.round is None:
            return self
        answered = self.round.answer(number, subtask, counts)
        if answered.quiet:
            return Standstill(quiet=True)
        return Standstill(round=answered.following() if answered.complete else answered)
