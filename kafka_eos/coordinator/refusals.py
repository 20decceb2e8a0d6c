"""The dead letters of one run, over all its attempts: shown, and kept within the job's limit.

Rule: an epoch counts when it is decided, and no longer once it is undone. What was refused in an epoch that does not
count is refused again, or is not, when its input is read again.
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
        self._newest: tuple[EpochId, Books] | None = None
        """The epoch that was decided last, and the books before it: only this one may be undone."""

    def expect_few(self, epoch: Tally) -> None:
        """TooManyDeadLetters if the epoch must not be decided."""
        excess = self._books.excess(epoch, self._limit)
        if excess is not None:
            raise TooManyDeadLetters(_sentence(excess, self._said, share=self._limit.share is not None))

    def decided(self, epoch: EpochId, tally: Tally) -> None:
        """The epoch is decided."""
        self._newest, self._books = (epoch, self._books), self._books.after(tally, self._limit)
        if any(tally.refused.values()):
            self._tell(epoch, tally)

    def goes_on_from(self, base: EpochId | None) -> None:
        """The job goes on from this epoch: if another one was decided last, that is undone."""
        if self._newest is None or self._newest[0] == base:
            return
        (undone, before), after = self._newest, self._books
        self._newest, self._books = None, before
        if before.total.refused != after.total.refused:
            self._tell(undone, Tally())

    def _tell(self, epoch: EpochId, tally: Tally) -> None:
        self._observe("dead-letters", epoch=epoch.epoch.n, counts=tally.refused, total=self._books.total.refused)


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
