"""Ends transactions: commits what Spark decided, aborts what it did not.

The same steps while the query runs and when a driver starts again, so there is one recovery and no special case.

Rule: a promise is committed only if ``commits/<batch>`` exists and can be no other driver's
(``protocol.micro_batches``), or if some of the promise is committed already, which proves both. A transaction that no
promise names which may be decided is aborted, never left to its timeout; those of a later term are left to the driver
that has it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Patience
from kafka_eos.abc.committer import Standing
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.coordination import terms
from kafka_eos.coordination.epochs import Finisher
from kafka_eos.core.errors import CommittableLost, ConfigError, CorruptCheckpoint, Fatal, Fenced, RestartFromCheckpoint
from kafka_eos.core.ids import Term
from kafka_eos.protocol.commit import COMMIT_MARGIN, Commit, Revoke, authorize, undecidable
from kafka_eos.protocol.micro_batches import Attempt, may_be_decided, owner
from kafka_eos.structured_streaming.batch_ledger import Ledger, Promise
from kafka_eos.structured_streaming.spark_checkpoint import OURS, Decisions

log = logging.getLogger("kafka_eos.spark")


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

    def finish_decided(self, batch: int) -> None:
        """Make visible the attempt that Spark's decision of ``batch`` belongs to; there is a promise, and no receipt.

        Raises Fatal if the decision may belong to one of several attempts.
        """
        promises = self.promises(batch)
        if not promises:
            raise CorruptCheckpoint(f"batch {batch} of {self.checkpoint} is decided, and no promise for it is stored")
        if len(promises) > 1:
            probed = [Attempt(promise.id.term, self.is_visible(promise)) for promise in promises]
            chosen = owner(probed)
            if chosen is None:
                raise unclear(self.checkpoint, promises, visible=any(attempt.visible for attempt in probed))
            promises = [promise for promise in promises if promise.id.term == chosen]
        for promise in promises:
            self.finish(promise)

    def promises(self, batch: int) -> list[Promise]:
        """Those for ``batch`` that nobody has taken back."""
        found = (self.ledger.stored(attempt) for attempt in self.ledger.attempts(batch))
        return [promise for promise in found if promise is not None]

    def is_visible(self, promise: Promise) -> bool:
        """Whether some of it is committed: nothing is before a decision, so that proves that there was one."""
        probes = self._finisher(promise).probe(promise.committables)
        committed = any(probe.standing is Standing.COMMITTED for probe in probes)
        if not committed and (doubt := undecidable(probes)):
            raise Fatal(
                f"whether a part of batch {promise.batch} (term {promise.term}) is visible cannot be told: {doubt}. If "
                f"nothing of it is visible, delete {self.checkpoint}/{OURS}/{promise.name} and start again: Spark "
                "replays the batch."
            )
        return committed

    def finish(self, promise: Promise) -> None:
        """Make a decided batch visible and write its receipt. Raises CommittableLost if that is impossible."""
        self.check_term()
        hit("micro-batch.decided")
        finisher = self._finisher(promise)
        decision = authorize(promise.id, finisher.probe(promise.committables), COMMIT_MARGIN)
        if not isinstance(decision, Commit):
            raise CommittableLost(self._lost(promise, decision.reason, visible=not isinstance(decision, Revoke)))
        try:
            outcomes = finisher.commit(promise.committables, decision)
        except RestartFromCheckpoint as error:
            raise CommittableLost(self._lost(promise, str(error), visible=True)) from error
        self.patience.until_answered("write the receipt", lambda: self.ledger.receipt(promise, outcomes))
        self.patience.until_answered("forget old batches", lambda: self.ledger.prune(promise.batch))

    def withdraw(self, promise: Promise) -> None:
        """Take a promise back: its driver's Spark decides it no more, and has not."""
        self.patience.until_answered("take a promise back", lambda: self.ledger.withdraw(promise))

    def leave(self) -> None:
        """Spark has ended: abort whatever it did not decide.

        What another driver promised stays for the next start if it is decided, or if its Spark may yet decide it.
        """
        self.check_term()
        kept = [promise.ids for promise in self.unsettled(self.newest())]
        self.abort_others(frozenset().union(*kept))

    def unsettled(self, newest: int | None) -> list[Promise]:
        """Promises that are decided and not visible, or may yet be decided; ``newest`` is the last decided batch."""
        settled = self.ledger.settled()
        batches = [batch for batch in self.ledger.batches() if may_be_decided(batch, newest, settled)]
        return [promise for batch in batches for promise in self.promises(batch)]

    def newest(self) -> int | None:
        """The last batch in Spark's commits."""
        return self.patience.until_answered("read Spark's commits", self.decisions.newest)

    def abort_others(self, kept: Collection[str] = ()) -> None:
        """Abort every open transaction of the query that is not ``kept``: task attempts that Spark gave up.

        Not those of later terms: since the last look at the terms another driver may have taken over, and its Spark
        may have decided them.
        """
        own = self.ctx.term

        def abort() -> None:
            found = self.committer.staged(self.ctx)
            strays = [staged.name for staged in found if staged.term <= own and staged.name not in kept]
            self.committer.abort(strays)
            if strays:
                log.info("aborted %s: task attempts that Spark did not accept", ", ".join(strays))

        self.patience.until_answered("abort what Spark did not decide", abort)

    def check_term(self) -> None:
        """Fenced if another driver has taken over the query."""
        self.patience.until_answered("read terms", lambda: terms.check(self.ledger.storage, self.ctx.term))

    def _finisher(self, promise: Promise) -> Finisher:
        return Finisher(self.ledger.storage, {promise.scope: self.committer}, self.patience)

    def _lost(self, promise: Promise, reason: str, *, visible: bool) -> str:
        advice = (
            "Part of the batch may be visible already, so it cannot be replayed: compare the output with the input of "
            f"batch {promise.batch} before going on."
            if visible
            else "Nothing of the batch is visible. To have Spark replay it, "
            f"{forget(self.checkpoint, promise.batch)}, and start the query again; raise transaction_timeout so that "
            "it covers an outage."
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


@dataclass(frozen=True)
class Recovered:
    """Where a driver begins."""

    newest: int | None
    """The last batch that Spark had decided; it is settled, or adopted. None: there is none."""
    undecided: int | None = None
    """A batch that an earlier driver promised, and whose Spark may decide it yet."""


def recover(settling: Settling, *, adopt: bool, alone: bool) -> Recovered:
    """Before the query starts: finish what Spark decided, abort what nobody can decide any more.

    ``alone``: no earlier driver's Spark lives. Otherwise what such a driver promised last stays prepared: it may have
    looked at its term before this driver claimed the query, and its Spark writes the decision after that look.
    Raises ConfigError if Spark decided a batch that the sink knows nothing of, unless told to ``adopt`` it.
    """
    hit("recovery.claimed")
    newest = settling.newest()
    if newest is not None:
        _finish_newest(settling, newest, adopt=adopt)
    open_promises = _undecided(settling, newest)
    if alone:
        for promise in open_promises:
            settling.withdraw(promise)
        open_promises = []
    hit("recovery.committed")
    kept = frozenset[str]().union(*(promise.ids for promise in open_promises))
    settling.patience.until_answered("abort orphans", lambda: settling.committer.abort_orphans(settling.ctx, kept))
    hit("recovery.aborted")
    return Recovered(newest, max((promise.batch for promise in open_promises), default=None))


def _finish_newest(settling: Settling, newest: int, *, adopt: bool) -> None:
    """Only the newest can be unfinished: a batch begins when the one before it is settled."""
    ledger = settling.ledger
    if ledger.attempts(newest):
        if newest not in ledger.settled():
            settling.finish_decided(newest)
    elif not adopt:
        raise ConfigError(
            f"Spark committed batch {newest} in {settling.checkpoint}, and kafka-eos has no record of its output. "
            "If another sink wrote it (the plain Kafka sink, say), pass adopt=True once to go on after it; "
            "that sink's duplicates stay. If the directory kafka_eos was lost, restore it."
        )
    else:
        log.warning("adopting batch %d, written by another sink: nothing is known about its output", newest)


def _undecided(settling: Settling, newest: int | None) -> list[Promise]:
    """What may yet be decided after ``newest``. A batch whose decision was lost is finished here."""
    batches = dict.fromkeys(promise.batch for promise in settling.unsettled(newest))
    for batch in batches:
        if any(settling.is_visible(promise) for promise in settling.promises(batch)):
            settling.finish_decided(batch)
    return settling.unsettled(newest)


def unclear(checkpoint: str, promises: Collection[Promise], *, visible: bool) -> Fatal:
    """A batch is decided, and several drivers promised it."""
    batch = max(promise.batch for promise in promises)
    held = ", ".join(str(promise.term) for promise in promises)
    advice = (
        "Parts of more than one are visible: compare the output with the input of the batch before going on."
        if visible
        else f"Nothing of the batch is visible. Make sure that no other driver of this query runs, "
        f"{forget(checkpoint, batch)}, and start the query again: Spark replays the batch."
    )
    return Fatal(
        f"Spark decided batch {batch}, for which the drivers of terms {held} had each prepared an attempt, and nobody "
        f"can tell to which of them Spark's state belongs. {advice}"
    )


def forget(checkpoint: str, batch: int) -> str:
    """What a person does to have Spark replay a decided batch. Spark may have planned the next one, and go on there."""
    return f"delete {checkpoint}/commits/{batch} and, if it is there, {checkpoint}/offsets/{batch + 1}"


def replaced(batch: int, checkpoint: str) -> Fenced:
    """Spark begins ``batch``, and another driver has decided it, or decided the one before it unseen."""
    return Fenced(
        f"Spark begins batch {batch}, but another driver has decided it, or decided the batch before it while this one "
        f"took over: two drivers run the query of {checkpoint}. Nothing was written. Start one of them again: it "
        f"finishes what was decided. (If you deleted commits/{batch - 1} to have that batch replayed, delete "
        f"offsets/{batch} too.)"
    )


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
