"""Ends transactions: commits what Spark decided, aborts what it did not.

The same steps run while the query runs and when a driver restarts, so there is one recovery and no special case.

Rule: a prepared batch is committed in one of two cases: ``commits/<batch>`` exists and no other driver can have written
it (``protocol.micro_batches``); or some of its transactions are committed already, which proves both. A transaction
that belongs to no batch that may be decided is aborted, never left to its timeout. Transactions of a later term are
left to the driver of that term.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import CommitStatus
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.coordination import terms
from kafka_eos.coordination.epochs import EpochCommitter
from kafka_eos.core.errors import CommittableLost, ConfigError, CorruptCheckpoint, Fatal, Fenced, RestartFromCheckpoint
from kafka_eos.core.ids import Term
from kafka_eos.protocol.commit import COMMIT_MARGIN, CommitAuthorized, EpochRevoked, authorize, describe_unknown
from kafka_eos.protocol.micro_batches import MicroBatchAttempt, find_owner, may_be_decided
from kafka_eos.structured_streaming.batch_ledger import BatchLedger, PreparedBatch
from kafka_eos.structured_streaming.spark_checkpoint import OURS, CommitLog

log = logging.getLogger("kafka_eos.spark")


def patient() -> Retrier:
    """Return a retrier without a time limit, which logs what it waits for."""
    return Retrier(threading.Event(), log.warning)


@dataclass(frozen=True)
class TransactionResolver:
    """Ends the transactions of one query: commits the decided, aborts the rest."""

    ctx: JobContext
    ledger: BatchLedger
    decisions: CommitLog
    committer: KafkaCommitter
    checkpoint: str
    patience: Retrier = field(default_factory=patient)

    def decided(self, batch: int) -> bool:
        return self.patience.retry("read Spark's commits", lambda: self.decisions.has(batch))

    def commit_decided(self, batch: int) -> None:
        """Commit the attempt that the decision of a batch belongs to.

        Raises Fatal if the decision may belong to one of several attempts.
        """
        prepared_batches = self.list_prepared(batch)
        if not prepared_batches:
            raise CorruptCheckpoint(
                f"batch {batch} of {self.checkpoint} is decided, but no prepared batch is stored for it"
            )
        if len(prepared_batches) > 1:
            probed = [MicroBatchAttempt(each.id.term, self.is_partly_visible(each)) for each in prepared_batches]
            chosen = find_owner(probed)
            if chosen is None:
                raise explain_ambiguous_decision(
                    self.checkpoint, prepared_batches, visible=any(attempt.visible for attempt in probed)
                )
            prepared_batches = [each for each in prepared_batches if each.id.term == chosen]
        for prepared in prepared_batches:
            self.commit(prepared)

    def list_prepared(self, batch: int) -> list[PreparedBatch]:
        """Return the prepared attempts of ``batch`` that were not withdrawn.

        Raises CorruptCheckpoint if one names output that is not of this query.
        """
        found = (self.ledger.find(attempt) for attempt in self.ledger.attempts(batch))
        prepared_batches = [each for each in found if each is not None]
        for prepared in prepared_batches:
            self._finisher(prepared).expect_own(self.ctx, prepared.id, prepared.committables)
        return prepared_batches

    def is_partly_visible(self, prepared: PreparedBatch) -> bool:
        """Return whether any part of a prepared batch is committed."""
        probes = self._finisher(prepared).probe(prepared.committables)
        committed = any(probe.status is CommitStatus.COMMITTED for probe in probes)
        if not committed and (doubt := describe_unknown(probes)):
            raise Fatal(
                f"it is unknown whether a part of batch {prepared.batch} (term {prepared.term}) is visible: {doubt}. "
                f"If nothing of it is visible, delete {self.checkpoint}/{OURS}/{prepared.name} and start again: Spark "
                "replays the batch."
            )
        return committed

    def commit(self, prepared: PreparedBatch) -> None:
        """Commit a decided batch and write its receipt. Raises CommittableLost if that is impossible."""
        self.check_term()
        hit("micro-batch.decided")
        finisher = self._finisher(prepared)
        decision = authorize(prepared.id, finisher.probe(prepared.committables), COMMIT_MARGIN)
        if not isinstance(decision, CommitAuthorized):
            raise CommittableLost(self._lost(prepared, decision.reason, visible=not isinstance(decision, EpochRevoked)))
        try:
            outcomes = finisher.commit(prepared.committables, decision)
        except RestartFromCheckpoint as error:
            raise CommittableLost(self._lost(prepared, str(error), visible=True)) from error
        self.patience.retry("write the receipt", lambda: self.ledger.write_receipt(prepared, outcomes))
        self.patience.retry("forget old batches", lambda: self.ledger.prune(prepared.batch))

    def withdraw(self, prepared: PreparedBatch) -> None:
        """Withdraw a prepared batch that its driver's Spark has not decided and cannot decide any more."""
        self.patience.retry("withdraw a prepared batch", lambda: self.ledger.withdraw(prepared))

    def abort_undecided(self) -> None:
        """Abort what Spark did not decide, after the query has ended.

        What another driver prepared stays for the next start if it is decided, or if its Spark may yet decide it.
        """
        self.check_term()
        kept = [prepared.ids for prepared in self.unsettled(self.newest())]
        self.abort_others(frozenset().union(*kept))

    def unsettled(self, newest: int | None) -> list[PreparedBatch]:
        """Return committables that are decided and not visible, or may yet be decided. ``newest``: the last decided
        batch.
        """
        settled = self.ledger.list_committed()
        batches = [batch for batch in self.ledger.batches() if may_be_decided(batch, newest, settled)]
        return [prepared for batch in batches for prepared in self.list_prepared(batch)]

    def newest(self) -> int | None:
        """Return the last batch in Spark's commits."""
        return self.patience.retry("read Spark's commits", self.decisions.find_latest_batch)

    def abort_others(self, kept: Collection[str] = ()) -> None:
        """Abort every open transaction of the query that is not ``kept``: task attempts that Spark gave up.

        Not those of later terms: since the last look at the terms another driver may have taken over, and its Spark
        may have decided them.
        """
        own = self.ctx.term

        def abort() -> None:
            found = self.committer.list_staged(self.ctx)
            strays = [staged.name for staged in found if staged.term <= own and staged.name not in kept]
            self.committer.abort(strays)
            if strays:
                log.info("aborted %s: task attempts that Spark did not accept", ", ".join(strays))

        self.patience.retry("abort output that Spark did not decide", abort)

    def check_term(self) -> None:
        """Raise Fenced if another driver has taken over the query."""
        self.patience.retry("read terms", lambda: terms.ensure_newest(self.ledger.storage, self.ctx.term))

    def _finisher(self, prepared: PreparedBatch) -> EpochCommitter:
        return EpochCommitter(self.ledger.storage, {prepared.scope: self.committer}, self.patience)

    def _lost(self, prepared: PreparedBatch, reason: str, *, visible: bool) -> str:
        advice = (
            "Part of the batch may be visible already, so it cannot be replayed: compare the output with the input "
            f"of batch {prepared.batch} before you continue."
            if visible
            else "Nothing of the batch is visible. To have Spark replay it, "
            f"{advise_replay(self.checkpoint, prepared.batch)}, and start the query again; raise "
            "transaction_timeout so that "
            "it covers an outage."
        )
        return (
            f"batch {prepared.batch} is decided by Spark, but its output in {prepared.scope} cannot be committed: "
            f"{reason}. {advice}"
        )


def claim_term(ledger: BatchLedger, committer: KafkaCommitter) -> Term:
    """Claim the next term of the query, which fences earlier drivers."""
    patience, ctx = patient(), JobContext(ledger.job, Term(0), {})
    staged = patience.retry("list transactions", lambda: committer.list_staged(ctx))
    seen = max((found.term for found in staged), default=Term(0))
    term = patience.retry("claim a term", lambda: terms.claim(ledger.storage, ledger.job, seen))
    ledger.refresh()
    return term


@dataclass(frozen=True)
class RecoveredQuery:
    """The batches that a driver starts from: the last decided one, and one still undecided."""

    newest: int | None
    """The last batch that Spark had decided; it has its receipt or was adopted. None if there is none."""
    undecided: int | None = None
    """A batch that an earlier driver prepared, and whose Spark may decide it yet."""


def recover(settling: TransactionResolver, *, adopt: bool, alone: bool) -> RecoveredQuery:
    """Finish what Spark decided and abort what can no longer be decided, before the query starts.

    ``alone``: no Spark of an earlier driver runs. Otherwise the last batch that such a driver prepared stays prepared:
    the driver may have checked its term before this driver claimed the query, and its Spark writes the decision after
    that check.
    Raises ConfigError if Spark decided a batch that the sink does not know, unless ``adopt`` is set.
    """
    hit("recovery.claimed")
    newest = settling.newest()
    if newest is not None:
        _finish_newest(settling, newest, adopt=adopt)
    undecided = _undecided(settling, newest)
    if alone:
        for prepared in undecided:
            settling.withdraw(prepared)
        undecided = []
    hit("recovery.committed")
    kept = frozenset[str]().union(*(prepared.ids for prepared in undecided))
    settling.patience.retry("abort left-over output", lambda: settling.committer.abort_leftovers(settling.ctx, kept))
    hit("recovery.aborted")
    return RecoveredQuery(newest, max((prepared.batch for prepared in undecided), default=None))


def _finish_newest(settling: TransactionResolver, newest: int, *, adopt: bool) -> None:
    """Finish the newest batch.

    Only this one can be unfinished: a batch begins when the previous one has its receipt.
    """
    ledger = settling.ledger
    if ledger.attempts(newest):
        if newest not in ledger.list_committed():
            settling.commit_decided(newest)
    elif not adopt:
        raise ConfigError(
            f"Spark committed batch {newest} in {settling.checkpoint}, and kafka-eos has no "
            "record of its output. If another sink wrote it (the plain Kafka sink, say), pass "
            "adopt=True once to continue after it; that sink's duplicates remain. If the "
            "directory kafka_eos was lost, restore it."
        )
    else:
        log.warning("adopting batch %d, written by another sink: nothing is known about its output", newest)


def _undecided(settling: TransactionResolver, newest: int | None) -> list[PreparedBatch]:
    """Return the batches after ``newest`` that may still be decided. Commit a batch whose decision was lost."""
    batches = dict.fromkeys(prepared.batch for prepared in settling.unsettled(newest))
    for batch in batches:
        if any(settling.is_partly_visible(prepared) for prepared in settling.list_prepared(batch)):
            settling.commit_decided(batch)
    return settling.unsettled(newest)


def explain_ambiguous_decision(checkpoint: str, prepared_batches: Collection[PreparedBatch], *, visible: bool) -> Fatal:
    """Build the error for a decision that several drivers may have made."""
    batch = max(prepared.batch for prepared in prepared_batches)
    held = ", ".join(str(each.term) for each in prepared_batches)
    advice = (
        "Parts of more than one are visible: compare the output with the input of the batch before you continue."
        if visible
        else f"Nothing of the batch is visible. Make sure that no other driver of this query runs, "
        f"{advise_replay(checkpoint, batch)}, and start the query again: Spark replays the batch."
    )
    return Fatal(
        f"Spark decided batch {batch}, for which the drivers of terms {held} had each prepared an attempt, and it is "
        f"unknown to which of them Spark's state belongs. {advice}"
    )


def advise_replay(checkpoint: str, batch: int) -> str:
    """Return which files to delete so that Spark replays a batch.

    The file of the next batch is included: Spark may have planned it, and would resume there.
    """
    return f"delete {checkpoint}/commits/{batch} and, if it exists, {checkpoint}/offsets/{batch + 1}"


def explain_replaced_driver(batch: int, checkpoint: str) -> Fenced:
    """Build the error for a driver that another one has replaced."""
    return Fenced(
        f"Spark starts batch {batch}, but another driver has decided it, or decided the batch before it while this "
        f"one took over: two drivers run the query of {checkpoint}. Nothing was written. Start only one of them "
        f"again: it commits what was decided. (If you deleted commits/{batch - 1} to have that batch replayed, "
        f"delete offsets/{batch} too.)"
    )


def explain_stale_checkpoint(checkpoint: str, batch: int, visible: int) -> Fatal:
    """Build the error for a checkpoint that is older than the visible output."""
    return Fatal(
        f"Spark starts batch {batch}, but the output of batch {visible} is already visible: "
        f"the checkpoint {checkpoint} is older than its output (offsets and commits were "
        "removed, or restored from an old copy). Continuing would write everything since "
        f"batch {batch} again. Restore Spark's part of the checkpoint as of batch {visible}. "
        "If there is no such copy, start the query with a new checkpoint: with "
        "startingOffsets after the input whose output is visible, or with another topic to "
        "write everything again."
    )


def explain_replay_mismatch(checkpoint: str, prepared: PreparedBatch, found: tuple[int, int]) -> Fatal:
    """Build the error for a replay that differs from the committed output."""
    records, digest = found
    return Fatal(
        f"Spark replays batch {prepared.batch}, whose {prepared.records} records are committed already (its file "
        f"{checkpoint}/commits/{prepared.batch} is gone), and the replay would write others: {records} records, hash "
        f"{digest}, not {prepared.digest}. The committed output and Spark's state would belong to different attempts. "
        f"Restore the file commits/{prepared.batch}; or, to keep the output that is visible, make the query "
        "deterministic for that batch."
    )
