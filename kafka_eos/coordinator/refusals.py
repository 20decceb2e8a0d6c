"""The dead letters of one run, over all its attempts: shown, and kept within the job's limit.

Rule: an epoch counts when it is decided. What a failed attempt had refused is refused again, or is not, by the next.
"""

from __future__ import annotations

from collections.abc import Callable

from kafka_eos.errors import TooManyDeadLetters
from kafka_eos.ids import EpochId
from kafka_eos.protocol.dead_letters import Books, Excess, Limit
from kafka_eos.records import Tally


class Refusals:
    """``limit``: as the setting ``max_dead_letters``; ``observe`` is told of each epoch that has dead letters."""

    def __init__(self, limit: str, window: int, observe: Callable[..., None]) -> None:
        self._said, self._limit, self._observe = limit, Limit.parse(limit, window), observe
        self._books = Books()

    def expect_few(self, epoch: Tally) -> None:
        """TooManyDeadLetters if the epoch must not be decided."""
        excess = self._books.excess(epoch, self._limit)
        if excess is not None:
            raise TooManyDeadLetters(_sentence(excess, self._said, share=self._limit.share is not None))

    def decided(self, epoch: EpochId, tally: Tally) -> None:
        """The epoch is decided."""
        self._books = self._books.after(tally, self._limit)
        if any(tally.refused.values()):
            total = self._books.total.refused
            self._observe("dead-letters", epoch=epoch.epoch.n, counts=tally.refused, total=total)


def _sentence(excess: Excess, limit: str, *, share: bool) -> str:
    by = ", ".join(f"{count} by operator {operator!r}" for operator, count in excess.by.items())
    first = "; ".join(f"{refusal.where} in {refusal.operator!r}: {refusal.reason}" for refusal in excess.first)
    of = f"of the newest {excess.read} records" if share else f"of {excess.read} records in this run"
    return (
        f"{excess.refused} {of} of source {excess.source!r} were refused, more than max_dead_letters={limit} allows: "
        f"{by}. The first: {first}. Nothing is lost: the epoch with the newest of them is not decided, and the job "
        "goes on at its last checkpoint when it is started again. Repair the code or what writes the records, or raise "
        "max_dead_letters"
    )
