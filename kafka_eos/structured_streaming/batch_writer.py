"""What Spark calls for each micro-batch: prepare in the tasks, promise in the driver, and nothing else.

Rule: exactly one action on the batch, so that Spark's state is computed once; and no transaction is ended here,
because the batch is not decided before this function has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kafka_eos._util.failpoints import hit
from kafka_eos.connectors.kafka.rpc.transaction_status import Transaction
from kafka_eos.coordination.terms import now_ms
from kafka_eos.protocol.micro_batches import Begin, Beginning, begin
from kafka_eos.spark.spark_errors import of_environment
from kafka_eos.structured_streaming import partition_writer as task
from kafka_eos.structured_streaming.background_commits import Finaliser
from kafka_eos.structured_streaming.batch_ledger import Promise
from kafka_eos.structured_streaming.transaction_recovery import Settling, log, lost_decision, outlived, replaced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


class Batch:
    """The function for ``foreachBatch``. ``failure`` is what went wrong last, before Spark made text of it."""

    def __init__(self, assignment: Callable[[int], task.Assignment], settling: Settling, finaliser: Finaliser) -> None:
        self._assignment, self._settling, self._finaliser = assignment, settling, finaliser
        self.failure: BaseException | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        try:
            self._deliver(rows, batch)
        except BaseException as error:
            self.failure = of_environment(error) or error
            raise

    def _deliver(self, rows: DataFrame, batch: int) -> None:
        settling, ledger = self._settling, self._settling.ledger
        self._finaliser.begins(batch)
        facts = Beginning(batch, settling.decided(batch), ledger.settled(), self._finaliser.finalised)
        match begin(facts):
            case Begin.PREPARE:
                self._prepare(rows, batch)
            case Begin.COMPARE:
                self._compare(rows, ledger.visible(batch))
            case Begin.OUTLIVED:
                raise outlived(settling.checkpoint, batch, max(facts.settled))
            case Begin.REPLACED:
                raise replaced(batch, settling.checkpoint)

    def _prepare(self, rows: DataFrame, batch: int) -> None:
        settling = self._settling
        prepared = rows.mapInArrow(partial(task.deliver, self._assignment(batch)), task.RESULT).collect()
        hit("micro-batch.collected")
        if settling.decided(batch):
            raise replaced(batch, settling.checkpoint)
        promise = self._promised(batch, prepared)
        try:
            settling.ledger.promise(promise)
            hit("micro-batch.promised")
            # After publishing: a driver that claims the query later lists promises after its claim: one of us sees it.
            settling.check_term()
        except BaseException:
            # Raised from here, this goes back to Spark, which then decides nothing.
            settling.withdraw(promise)
            raise
        self._finaliser.hand_over(promise)
        hit("micro-batch.returned")

    def _promised(self, batch: int, prepared: list[Row]) -> Promise:
        ctx = self._settling.ctx
        return Promise(
            job=ctx.job,
            batch=batch,
            term=ctx.term.n,
            created_at=now_ms(),
            scope=self._assignment(batch).cluster.scope,
            records=sum(row.records for row in prepared),
            digest=_sum(prepared),
            transactions=tuple(map(Transaction.from_payload, task.transactions(row.asDict() for row in prepared))),
        )

    def _compare(self, rows: DataFrame, committed: Promise) -> None:
        """The batch is visible, and Spark computes it again because its commit file is gone.

        Spark's state comes from this replay. If the replay would write the very same records, then the visible output
        is this attempt's as well, and there is nothing to write. If not, output and state have come apart.
        """
        counted = rows.mapInArrow(task.recount, task.RESULT).collect()
        found = (sum(row.records for row in counted), _sum(counted))
        if found != (committed.records, committed.digest):
            newest = max(self._settling.ledger.settled())
            if newest > committed.batch:
                raise outlived(self._settling.checkpoint, committed.batch, newest)
            raise lost_decision(self._settling.checkpoint, committed, found)
        self._settling.check_term()
        log.warning("batch %d was committed before; its replay is the same and was not written again", committed.batch)


def _sum(rows: list[Row]) -> int:
    """Of the tasks' digests, in 64 bits."""
    total: int = sum(row.digest for row in rows)
    return (total + 2**63) % 2**64 - 2**63
