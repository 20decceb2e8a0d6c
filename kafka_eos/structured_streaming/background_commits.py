"""The thread that ends the transactions of each batch once Spark has decided it.

    foreachBatch(N)    the list of prepared transactions of batch N is durable, then returns
    Spark              writes commits/N: the decision
    this thread        sees the decision, commits batch N, aborts other open transactions, writes the receipt
    foreachBatch(N+1)  waits at the gate until then

A file ``commits/<batch>`` does not name its writer. If another driver prepared the same batch, this thread uses what
Spark reports of this query. Until this driver's Spark begins a batch, this thread also watches for a decision of the
previous driver, and commits that batch.

Rule: at the gate the query has no open transaction. A failure here stops the query: no batch passes the gate again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.core.errors import Bug
from kafka_eos.protocol.micro_batches import BatchDecision, PreparedBatchFacts, decide_prepared_batch
from kafka_eos.structured_streaming.batch_ledger import PreparedBatch
from kafka_eos.structured_streaming.transaction_recovery import (
    RecoveredQuery,
    TransactionResolver,
    explain_replaced_driver,
    log,
)


class BatchCommitter:
    """Commits batches in order, on its own thread, once Spark has decided them."""

    def __init__(self, settling: TransactionResolver, recovered: RecoveredQuery, close: Callable[[], None]) -> None:
        """``close`` is called when the query is over and all is done."""
        self._settling, self._close = settling, close
        self._changed = threading.Condition()
        self._pending: PreparedBatch | None = None
        self._committed = recovered.newest
        self._undecided_batch = recovered.undecided
        self._adopting = threading.Lock()
        self._failure: BaseException | None = None
        self._stop: Callable[[], None] = lambda: None
        self._reported: Callable[[], int | None] = lambda: None
        self._stopping = False
        self._over = threading.Event()
        self._done = threading.Event()

    def start(self, stop: Callable[[], None], reported: Callable[[], int | None]) -> None:
        """``stop`` ends the query; called if a batch cannot be committed. ``reported``: the last batch that it did."""
        self._stop, self._reported = stop, reported
        threading.Thread(target=self._run, name="kafka-eos-batch_committer", daemon=True).start()

    @contextmanager
    def close_unless_started(self) -> Iterator[None]:
        """Close everything if the query does not start."""
        try:
            yield
        except BaseException:
            self._close()
            raise

    @property
    def last_visible_batch(self) -> int | None:
        """Return the last batch whose output is visible."""
        return self._committed

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    def on_batch_start(self, batch: int) -> None:
        """Handle that Spark starts a batch: wait for the previous one, then stop watching earlier drivers.

        From here on this driver decides. If the previous driver has decided a batch, that is made visible first.
        """
        self.wait_until_committed()
        with self._adopting:
            self._commit_adopted()
            self._undecided_batch = None

    def wait_until_committed(self) -> None:
        """Wait until all earlier batches are visible; raises what prevented that."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is None or self._failure is not None or self._stopping)
            if self._failure is not None:
                raise self._failure
            if self._pending is not None:
                raise RetryInterrupted(f"the query was stopped before batch {self._pending.batch} was committed")

    def release_waiters(self) -> None:
        """Release all waiters because the query is being stopped."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def submit(self, prepared: PreparedBatch) -> None:
        """Submit a prepared batch that Spark may now decide."""
        with self._changed:
            if self._pending is not None:
                raise Bug(f"batch {prepared.batch} was prepared before batch {self._pending.batch} was committed")
            self._pending = prepared
            self._changed.notify_all()

    def on_query_end(self) -> None:
        """Handle that Spark has ended and decides nothing more."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float | None) -> bool:
        """Wait until the query has ended and all it decided is visible. Return False if ``seconds`` pass before."""
        return self._done.wait(seconds)

    def _run(self) -> None:
        try:
            self._watch()
            while (prepared := self._next()) is not None:
                self._end(prepared)
                self._settle()
            self._settling.abort_undecided()
        except BaseException as error:  # noqa: BLE001 - kept for the waiting thread, and the query is stopped
            self._fail(error)
        finally:
            # Not before: the next driver relies on this driver's Spark deciding nothing any more.
            self._over.wait()
            self._close()
            self._done.set()

    def _watch(self) -> None:
        """Watch for decisions of an earlier driver's Spark until this driver's Spark begins a batch or ends."""
        over = False
        while self._undecided_batch is not None and not over:
            over = self._over.wait(self._settling.decisions.pause)
            with self._adopting:
                self._commit_adopted()

    def _commit_adopted(self) -> None:
        """Commit a batch that an earlier driver's Spark has decided after all. Only for who holds ``_adopting``."""
        batch = self._undecided_batch
        if batch is not None and self._settling.decided(batch):
            self._settling.commit_decided(batch)
            self._settling.abort_others()
            self._undecided_batch, self._committed = None, batch

    def _end(self, prepared: PreparedBatch) -> None:
        """Wait for Spark's decision, and do what follows from it."""
        settling = self._settling
        match self._conclusion(prepared):
            case BatchDecision.DECIDED_HERE:
                settling.commit(prepared)
                settling.abort_others(prepared.ids)
                self._committed = prepared.batch
            case BatchDecision.UNCLEAR:
                raise explain_replaced_driver(prepared.batch, settling.checkpoint)
            case _:
                settling.withdraw(prepared)

    def _conclusion(self, prepared: PreparedBatch) -> BatchDecision:
        settling = self._settling
        rivals = settling.ledger.attempts(prepared.batch) != [prepared.id]
        while True:
            over = self._over.is_set()  # before the look: what is not decided then never will be
            reported = rivals and (last := self._reported()) is not None and last >= prepared.batch
            verdict = decide_prepared_batch(
                PreparedBatchFacts(settling.decided(prepared.batch), reported, over, rivals)
            )
            if verdict is not BatchDecision.WAIT:
                return verdict
            self._over.wait(settling.decisions.pause)

    def _next(self) -> PreparedBatch | None:
        """Return the next prepared batch, or None once the query has ended and none is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is not None or self._over.is_set())
            return self._pending

    def _settle(self) -> None:
        with self._changed:
            self._pending = None
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        log.error("the query failed: %s", error)
        with self._changed:
            self._failure = error
            self._changed.notify_all()
        try:
            self._stop()
        except Exception:  # noqa: BLE001 - said in the log; the failure that brought us here is what counts
            log.exception("the query could not be stopped; no further batch will be committed")
