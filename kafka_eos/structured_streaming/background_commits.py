"""The thread that ends the transactions of each batch once Spark has decided it.

    foreachBatch(N)    promise(N) is durable, then returns
    Spark              writes commits/N: the decision
    this thread        sees it, commits promise(N), aborts other open transactions, writes the receipt
    foreachBatch(N+1)  waits at the gate until then

A file ``commits/<batch>`` does not name its writer. Where another driver promised the same batch, this thread goes by
what Spark reports of this query. Until this driver's Spark begins a batch, this thread also watches for a decision of
the driver before, and makes that visible.

Rule: at the gate nothing of the query is open. A failure here stops the query: no batch passes the gate again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafka_eos._util.retry import Interrupted
from kafka_eos.core.errors import Bug
from kafka_eos.protocol.micro_batches import Verdict, Waiting, conclude
from kafka_eos.structured_streaming.batch_ledger import Promise
from kafka_eos.structured_streaming.transaction_recovery import Recovered, Settling, log, replaced


class Finaliser:
    """Ends transactions behind the query's back, in the order of the batches."""

    def __init__(self, settling: Settling, recovered: Recovered, close: Callable[[], None]) -> None:
        """``close`` is called when the query is over and all is done."""
        self._settling, self._close = settling, close
        self._changed = threading.Condition()
        self._pending: Promise | None = None
        self._finalised = recovered.newest
        self._watched = recovered.undecided
        self._adopting = threading.Lock()
        self._failure: BaseException | None = None
        self._stop: Callable[[], None] = lambda: None
        self._reported: Callable[[], int | None] = lambda: None
        self._stopping = False
        self._over = threading.Event()
        self._done = threading.Event()

    def start(self, stop: Callable[[], None], reported: Callable[[], int | None]) -> None:
        """``stop`` ends the query; called if a batch cannot be finalised. ``reported``: the last batch that it did."""
        self._stop, self._reported = stop, reported
        threading.Thread(target=self._run, name="kafka-eos-finaliser", daemon=True).start()

    @contextmanager
    def given_up_unless_started(self) -> Iterator[None]:
        """Around the start of the query: if Spark refuses it, let go of everything."""
        try:
            yield
        except BaseException:
            self._close()
            raise

    @property
    def finalised(self) -> int | None:
        """The last batch whose output is visible."""
        return self._finalised

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    def begins(self, batch: int) -> None:
        """Spark begins ``batch``: pass the gate. From here on this driver decides, and no earlier one is watched.

        If the one before has decided something, it is made visible first.
        """
        self.gate()
        with self._adopting:
            self._adopt()
            self._watched = None

    def gate(self) -> None:
        """Wait until everything before is finalised; raises what made that impossible, Interrupted on the way out."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is None or self._failure is not None or self._stopping)
            if self._failure is not None:
                raise self._failure
            if self._pending is not None:
                raise Interrupted(f"the query was stopped before batch {self._pending.batch} was finalised")

    def open_gate(self) -> None:
        """The query is about to be stopped: no batch waits here any more, and none begins that would have to."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def hand_over(self, promise: Promise) -> None:
        """The promise is durable and Spark may decide it from now on."""
        with self._changed:
            if self._pending is not None:
                raise Bug(f"batch {promise.batch} was promised before batch {self._pending.batch} was finalised")
            self._pending = promise
            self._changed.notify_all()

    def query_is_over(self) -> None:
        """Spark decides nothing any more."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float | None) -> bool:
        """Until the query is over and all it decided is visible. False if ``seconds`` pass before."""
        return self._done.wait(seconds)

    def _run(self) -> None:
        try:
            self._watch()
            while (promise := self._next()) is not None:
                self._end(promise)
                self._settle()
            self._settling.leave()
        except BaseException as error:  # noqa: BLE001 - kept for whoever waits, and the query is stopped
            self._fail(error)
        finally:
            # Not before: whoever is let in next must know that this driver's Spark decides nothing any more.
            self._over.wait()
            self._close()
            self._done.set()

    def _watch(self) -> None:
        """Until Spark begins a batch, or ends: an earlier driver's Spark may still decide what that driver promised."""
        over = False
        while self._watched is not None and not over:
            over = self._over.wait(self._settling.decisions.pause)
            with self._adopting:
                self._adopt()

    def _adopt(self) -> None:
        """Make visible what an earlier driver's Spark has decided after all. Only for who holds ``_adopting``."""
        batch = self._watched
        if batch is not None and self._settling.decided(batch):
            self._settling.finish_decided(batch)
            self._settling.abort_others()
            self._watched, self._finalised = None, batch

    def _end(self, promise: Promise) -> None:
        """Wait for Spark's decision, and do what follows from it."""
        settling = self._settling
        match self._conclusion(promise):
            case Verdict.MINE:
                settling.finish(promise)
                settling.abort_others(promise.ids)
                self._finalised = promise.batch
            case Verdict.UNCLEAR:
                raise replaced(promise.batch, settling.checkpoint)
            case _:
                settling.withdraw(promise)

    def _conclusion(self, promise: Promise) -> Verdict:
        settling = self._settling
        rivals = settling.ledger.attempts(promise.batch) != [promise.id]
        while True:
            over = self._over.is_set()  # before the look: what is not decided then never will be
            reported = rivals and (last := self._reported()) is not None and last >= promise.batch
            verdict = conclude(Waiting(settling.decided(promise.batch), reported, over, rivals))
            if verdict is not Verdict.WAIT:
                return verdict
            self._over.wait(settling.decisions.pause)

    def _next(self) -> Promise | None:
        """The next promise; None once the query is over and there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is not None or self._over.is_set())
            return self._pending

    def _settle(self) -> None:
        with self._changed:
            self._pending = None
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        log.error("the query cannot go on: %s", error)
        with self._changed:
            self._failure = error
            self._changed.notify_all()
        try:
            self._stop()
        except Exception:  # noqa: BLE001 - said in the log; the failure that brought us here is what counts
            log.exception("the query could not be stopped; no batch of it passes the gate")
