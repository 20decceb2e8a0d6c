"""Which batch of a Structured Streaming query may begin, and whose decision Spark's ``commits/<batch>`` is.

Spark decides a batch by a file that does not name the driver that wrote it, and a driver that was replaced may still
write it. So the file is never evidence enough by itself: these functions say what it proves together with the promises.

Pure: reads nothing, waits for nothing. Rules: batch n begins only if n-1 is settled (its output is visible) by this
driver or by one before it; nobody commits an attempt for a decision that may belong to another attempt.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from kafka_eos.core.ids import Term


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is known when Spark begins ``batch``."""

    batch: int
    decided: bool
    """``commits/<batch>`` exists."""
    settled: Collection[int]
    """Batches that have a receipt which this driver has seen or written."""
    base: int | None
    """The last batch that was decided when this driver had recovered, or that it took up since; None: there is none."""


class Begin(enum.Enum):
    """What to do with a batch that Spark begins."""

    PREPARE = "prepare"
    """Its turn has come."""
    COMPARE = "compare"
    """Its output is visible and its decision was lost: the replay must come out the same, and is not written."""
    REPLACED = "replaced"
    """Another driver has decided this batch or the one before it: go no further."""
    OUTLIVED = "outlived"
    """A later batch is visible, and of this one nothing is known any more."""


def begin(facts: Beginning) -> Begin:
    """What to do with ``facts.batch``."""
    if facts.decided:
        return Begin.REPLACED
    if facts.batch in facts.settled:
        return Begin.COMPARE
    if any(batch > facts.batch for batch in facts.settled):
        return Begin.OUTLIVED
    first = facts.base is None and facts.batch == 0
    follows = facts.batch - 1 in facts.settled or facts.batch - 1 == facts.base
    return Begin.PREPARE if first or follows else Begin.REPLACED


@dataclass(frozen=True, slots=True)
class Attempt:
    """One promise for a batch that is decided and has no receipt."""

    term: Term
    visible: bool
    """Some of its output is committed: that happens only after it was known to be the one that was decided."""


def owner(attempts: Collection[Attempt]) -> Term | None:
    """Whose attempt the decision of a batch belongs to; None if nobody can tell.

    A driver's Spark writes the decision only after that driver has promised. So one promise alone is the one.
    """
    if len(attempts) == 1:
        return next(iter(attempts)).term
    visible = [attempt.term for attempt in attempts if attempt.visible]
    return visible[0] if len(visible) == 1 else None


def may_be_decided(batch: int, newest: int | None, settled: Collection[int]) -> bool:
    """Whether what drivers promised for ``batch`` is decided and not visible, or may yet be decided: it stays prepared.

    ``newest`` is the last batch with a decision, None if there is none; ``settled`` are the batches with a receipt.
    """
    # A driver looks at its term after it has promised and before its Spark decides. It may sleep in between while the
    # next driver takes over, runs, and ends: its Spark then decides all the same. So a promise outlives the drivers
    # that come after it, until the batch is settled (by whichever attempt), or the promise is taken back: by its own
    # driver, or by one that knows that no earlier Spark lives. Batches before the newest decision are over: a batch
    # begins when the one before it is settled or adopted.
    return batch not in settled and (newest is None or batch >= newest)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a driver knows of the batch that it promised."""

    decided: bool
    """``commits/<batch>`` exists, whoever wrote it. Looked at after ``over``."""
    reported: bool
    """This driver's own Spark says that it has finished the batch; it does so after it has written the decision."""
    over: bool
    """This driver's own Spark has ended, and decides nothing any more."""
    rivals: bool
    """Another driver's promise for the same batch is known."""


class Verdict(enum.Enum):
    """What a driver concludes about the batch that it promised."""

    WAIT = "wait"
    MINE = "mine"
    """This driver's Spark has decided it: commit."""
    UNDECIDED = "undecided"
    """Nobody has decided it, and this driver's Spark never will: abort, and take the promise back."""
    UNCLEAR = "unclear"
    """It is decided, perhaps by another driver: commit nothing, and leave everything as it is."""


def conclude(facts: Waiting) -> Verdict:
    """Whether the promised batch may be committed."""
    if facts.reported or (facts.decided and not facts.rivals):
        return Verdict.MINE
    if not facts.over:
        return Verdict.WAIT
    return Verdict.UNCLEAR if facts.decided else Verdict.UNDECIDED
