"""Decide which micro-batch of a Structured Streaming query may begin, and which attempt ``commits/<batch>`` decided.

Spark decides a batch by writing a file that does not name the driver that wrote it, and a replaced driver may still
write it. So the file alone is never sufficient evidence: these functions state what it proves together with the
prepared batches.
Pure: reads nothing, waits for nothing. Rules:
- Batch n begins only if batch n-1 has a receipt (its output is visible), written by this driver or an earlier one.
- No driver commits an attempt for a decision that may belong to another attempt.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from msgspec import Struct

from kafka_eos.core.ids import Term


class MicroBatchStart(Struct, frozen=True):
    """The facts known when Spark starts a micro-batch."""

    batch: int
    decided: bool
    """``commits/<batch>`` exists."""
    with_receipt: Collection[int]
    """Micro-batches with a receipt that this driver has seen or written."""
    base: int | None
    """The last batch that was decided when this driver had recovered, or that it adopted since; None: no batch."""


class StartDecision(enum.Enum):
    """The treatment of a micro-batch that Spark starts."""

    PREPARE = "prepare"
    """The batch before it is settled: prepare this one."""
    COMPARE = "compare"
    """Its output is visible and its decision was lost: the replay must produce the same output, and is not written."""
    FENCED = "replaced"
    """Another driver has decided this micro-batch or the one before it."""
    OUTDATED = "outlived"
    """A later micro-batch is already visible."""


def decide_start(facts: MicroBatchStart) -> StartDecision:
    """Decide what to do with a micro-batch that Spark starts."""
    if facts.decided:
        return StartDecision.FENCED
    if facts.batch in facts.with_receipt:
        return StartDecision.COMPARE
    if any(batch > facts.batch for batch in facts.with_receipt):
        return StartDecision.OUTDATED
    first = facts.base is None and facts.batch == 0
    follows = facts.batch - 1 in facts.with_receipt or facts.batch - 1 == facts.base
    return StartDecision.PREPARE if first or follows else StartDecision.FENCED


class MicroBatchAttempt(Struct, frozen=True):
    """One prepared attempt at a micro-batch that is decided and has no receipt."""

    term: Term
    visible: bool
    """True if some of its output is committed. That happens only after it was known to be the decided attempt."""


def find_owner(attempts: Collection[MicroBatchAttempt]) -> Term | None:
    """Return the term whose attempt was decided, or None if that is unknown.

    A driver's Spark writes the decision only after that driver has prepared the batch. So a single prepared attempt is
    the decided one.
    """
    if len(attempts) == 1:
        return next(iter(attempts)).term
    visible = [attempt.term for attempt in attempts if attempt.visible]
    return visible[0] if len(visible) == 1 else None


def may_be_decided(batch: int, newest: int | None, settled: Collection[int]) -> bool:
    """Return whether the prepared attempts at ``batch`` must stay prepared.

    They must if the batch is decided and not visible, or may yet be decided. ``newest`` is the last batch with a
    decision, None if there is none; ``settled`` are the batches with a receipt.
    """
    # A driver checks its term after it has prepared the batch and before its Spark decides. In between it may sleep
    # while the next driver takes over, runs, and ends: its Spark then still decides. So a prepared attempt outlives the
    # following drivers until the batch has a receipt (of any attempt), or until the attempt is withdrawn: by its own
    # driver, or by one that knows that no earlier Spark runs. Batches before the newest decision are over: a batch
    # begins when the previous one has a receipt or was adopted.
    return batch not in settled and (newest is None or batch >= newest)


class PreparedBatchFacts(Struct, frozen=True):
    """The facts that a driver knows about the micro-batch it has prepared."""

    decided: bool
    """``commits/<batch>`` exists, whichever driver wrote it. Checked after ``spark_ended``."""
    reported: bool
    """This driver's own Spark reports the batch as finished, which it does after it has written the decision."""
    spark_ended: bool
    """This driver's Spark has ended and decides nothing more."""
    has_rivals: bool
    """Another driver has prepared the same micro-batch."""


class BatchDecision(enum.Enum):
    """A driver's conclusion about the micro-batch it has prepared."""

    WAIT = "wait"
    DECIDED_HERE = "mine"
    """This driver's Spark has decided it: commit."""
    UNDECIDED = "undecided"
    """No driver has decided it, and this driver's Spark never will: abort, and withdraw the prepared batch."""
    UNCLEAR = "unclear"
    """The batch is decided, perhaps by another driver: commit nothing and abort nothing."""


def decide_prepared_batch(facts: PreparedBatchFacts) -> BatchDecision:
    """Decide whether the prepared micro-batch may be committed."""
    if facts.reported or (facts.decided and not facts.has_rivals):
        return BatchDecision.DECIDED_HERE
    if not facts.spark_ended:
        return BatchDecision.WAIT
    return BatchDecision.UNCLEAR if facts.decided else BatchDecision.UNDECIDED
