"""Ends transactions: commits what Spark decided, aborts what it did not.

The same steps while the query runs and when a driver starts again, so there is one recovery and no special case.

Rule: a promise is committed only if ``commits/<batch>`` exists, or if some of it is committed already, which proves
that it existed. A transaction that no decided promise names is aborted, never left to its timeout.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from kafka_eos.connectors.kafka.committer import KafkaCommitter
from kafka_eos.coordinator import term as terms
from kafka_eos.coordinator.commits import Finisher
from kafka_eos.coordinator.patience import Patience
from kafka_eos.errors import CommittableLost, ConfigError, Fatal, Fenced, RestartFromCheckpoint
from kafka_eos.failpoints import hit
from kafka_eos.ids import EpochId, Term
from kafka_eos.interfaces import JobContext, Standing
from kafka_eos.protocol.commit import Commit, Revoke, authorize
from kafka_eos.spark.door.hadoop import OURS, Decisions
from kafka_eos.spark.door.ledger import Ledger, Promise

log = logging.getLogger("kafka_eos.spark")

COMMIT_MARGIN: Final = 10.0
"""Seconds: transactions that may expire sooner are not begun to be committed one after the other."""


def patient() -> Patience:
    """Asks again for as long as it takes; what it waits for goes to the log."""
    return Patience(threading.Event(), log.warning)


@dataclass(frozen=True)
class Settling:
    """One driver's means to end transactions of one query."""

    ctx: JobContext
    ledger: Ledger
    decisions: Decisions
    committer: KafkaCommitter
    checkpoint: str
    patience: Patience = field(default_factory=patient)

    def decided(self, batch: int) -> bool:
        return self.patience.until_answered("read Spark's commits", lambda: self.decisions.has(batch))

    def finish(self, promise: Promise) -> None:
        """Make a decided batch visible and write its receipt. Raises CommittableLost if that is impossible."""
        self.check_term()
        hit("door.decided")
        finisher = Finisher(self.ledger.storage, {promise.scope: self.committer}, self.patience)
        decision = authorize(promise.id, finisher.probe(promise.committables), COMMIT_MARGIN)
        if not isinstance(decision, Commit):
            raise CommittableLost(self._lost(promise, decision.reason, visible=not isinstance(decision, Revoke)))
        try:
            outcomes = finisher.commit(promise.committables, decision)
        except RestartFromCheckpoint as error:
            raise CommittableLost(self._lost(promise, str(error), visible=True)) from error
        self.patience.until_answered("write the receipt", lambda: self.ledger.receipt(promise, outcomes))
        self.patience.until_answered("forget old batches", lambda: self.ledger.prune(promise.batch))

    def abort_others(self, kept: Collection[str] = ()) -> None:
        """Abort every open transaction of the query that is not ``kept``: task attempts that Spark gave up."""

        def abort() -> None:
            strays = [staged.name for staged in self.committer.staged(self.ctx) if staged.name not in kept]
            self.committer.abort(strays)
            if strays:
                log.info("aborted %s: task attempts that Spark did not accept", ", ".join(strays))

        self.patience.until_answered("abort what Spark did not decide", abort)

    def check_term(self) -> None:
        """Fenced if another driver has taken over the query."""
        self.patience.until_answered("read terms", lambda: terms.check(self.ledger.storage, self.ctx.term))

    def _lost(self, promise: Promise, reason: str, *, visible: bool) -> str:
        advice = (
            "Part of the batch may be visible already, so it cannot be replayed: compare the output with the input of "
            f"batch {promise.batch} before going on."
            if visible
            else f"Nothing of the batch is visible. To have Spark replay it, delete {self.checkpoint}/commits/"
            f"{promise.batch} and start the query again; raise transaction_timeout so that it covers an outage."
        )
        return (
            f"batch {promise.batch} is decided by Spark, but its output in {promise.scope} cannot be committed: "
            f"{reason}. {advice}"
        )


def claimed(ledger: Ledger, committer: KafkaCommitter) -> Term:
    """Take the next term: whoever acted for this query before is fenced from here on, and what it promised is known."""
    patience, ctx = patient(), JobContext(ledger.job, Term(0), {})
    staged = patience.until_answered("list transactions", lambda: committer.staged(ctx))
    seen = max((found.term for found in staged), default=Term(0))
    term = patience.until_answered("claim a term", lambda: terms.claim(ledger.storage, ledger.job, seen))
    ledger.look()
    return term


def recover(settling: Settling, *, adopt: bool) -> int | None:
    """Before the query starts: finish what Spark decided, abort all the rest. Returns the last decided batch.

    Raises ConfigError if Spark decided a batch that the door knows nothing of, unless told to ``adopt`` it.
    """
    ledger = settling.ledger
    hit("recovery.claimed")
    newest = settling.patience.until_answered("read Spark's commits", settling.decisions.newest)
    if newest is not None:
        _finish_decided(settling, newest, adopt=adopt)
    for attempt in ledger.after(-1 if newest is None else newest):
        if not ledger.settled(attempt) and _was_decided(settling, attempt):
            settling.finish(ledger.load(attempt))
    hit("recovery.committed")
    settling.patience.until_answered("abort orphans", lambda: settling.committer.abort_orphans(settling.ctx))
    hit("recovery.aborted")
    if settling.patience.until_answered("read Spark's commits", settling.decisions.newest) != newest:
        raise Fenced("Spark decided a batch while its transactions were being aborted: another driver runs this query")
    return newest


def _finish_decided(settling: Settling, newest: int, *, adopt: bool) -> None:
    """Only the newest can be unfinished: a batch begins when the one before it is finalised."""
    attempt = settling.ledger.newest(newest)
    if attempt is None:
        if not adopt:
            raise ConfigError(
                f"Spark committed batch {newest} in {settling.checkpoint}, and kafka-eos has no record of its output. "
                "If another sink wrote it (the plain Kafka sink, say), pass adopt=True once to go on after it; "
                "that sink's duplicates stay. If the directory kafka_eos was lost, restore it."
            )
        log.warning("adopting batch %d, written by another sink: nothing is known about its output", newest)
    elif not settling.ledger.settled(attempt):
        settling.finish(settling.ledger.load(attempt))


def _was_decided(settling: Settling, attempt: EpochId) -> bool:
    """Whether a batch without ``commits/<batch>`` was decided all the same, and that file lost since.

    Nothing is committed before a decision, so one committed transaction proves that there was one.
    """
    promise = settling.ledger.load(attempt)
    finisher = Finisher(settling.ledger.storage, {promise.scope: settling.committer}, settling.patience)
    try:
        probes = finisher.probe(promise.committables)
    except Fatal as error:
        raise Fatal(
            f"Spark's commits do not hold batch {promise.batch}, and whether a part of it is visible cannot be told: "
            f"{error} If nothing of it is visible, delete {settling.checkpoint}/{OURS}/{promise.name} and start "
            "again: Spark replays the batch."
        ) from error
    return any(probe.standing is Standing.COMMITTED for probe in probes)


def outlived(checkpoint: str, batch: int, visible: int) -> Fatal:
    """Spark goes back behind what is visible, and the replay writes something else, or nobody can tell any more."""
    return Fatal(
        f"Spark begins batch {batch}, and the output of batch {visible} is visible already: the checkpoint "
        f"{checkpoint} is older than its output (offsets and commits were removed, or restored from an old copy). "
        f"To go on would write all since batch {batch} again. Restore Spark's part of the checkpoint as of batch "
        f"{visible}. If there is no such copy, start the query with a new checkpoint, and with startingOffsets behind "
        "the input whose output is visible, or with another topic to write it all again."
    )


def lost_decision(checkpoint: str, promise: Promise, found: tuple[int, int]) -> Fatal:
    """A batch is replayed after its output became visible, and the replay writes something else."""
    records, digest = found
    return Fatal(
        f"Spark replays batch {promise.batch}, whose {promise.records} records are committed already (its file "
        f"{checkpoint}/commits/{promise.batch} is gone), and the replay would write others: {records} records, hash "
        f"{digest}, not {promise.digest}. The committed output and Spark's state would belong to different attempts. "
        f"Restore the file commits/{promise.batch}; or, to keep the output that is visible, make the query "
        "deterministic for that batch."
    )
