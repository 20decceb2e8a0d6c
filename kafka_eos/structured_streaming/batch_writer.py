"""The function that Spark calls per micro-batch: it prepares in the tasks, and publishes the list in the driver.

Rule: exactly one action on the batch, so that Spark computes its state once. No transaction is ended here, because the
batch is not decided before this function has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kafka_eos._util.failpoints import hit
from kafka_eos.connectors.kafka.rpc.transaction_status import KafkaCommittable
from kafka_eos.coordination.terms import now_ms
from kafka_eos.protocol.micro_batches import MicroBatchStart, StartDecision, decide_start
from kafka_eos.spark.spark_errors import advise_on_setup
from kafka_eos.structured_streaming import partition_writer as task
from kafka_eos.structured_streaming.background_commits import BatchCommitter
from kafka_eos.structured_streaming.batch_ledger import PreparedBatch
from kafka_eos.structured_streaming.transaction_recovery import (
    TransactionResolver,
    explain_replaced_driver,
    explain_replay_mismatch,
    explain_stale_checkpoint,
    log,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


class MicroBatchWriter:
    """The function for foreachBatch: prepares a batch or verifies its replay.

    ``failure`` is what went wrong last, before Spark made text of it.
    """

    def __init__(
        self,
        assignment: Callable[[int], task.BatchSpec],
        settling: TransactionResolver,
        batch_committer: BatchCommitter,
    ) -> None:
        self._assignment = assignment
        self._settling = settling
        self._batch_committer = batch_committer
        self.failure: BaseException | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        try:
            self._write(rows, batch)
        except BaseException as error:
            self.failure = advise_on_setup(error) or error
            raise

    def _write(self, rows: DataFrame, batch: int) -> None:
        settling, ledger = self._settling, self._settling.ledger
        self._batch_committer.on_batch_start(batch)
        facts = MicroBatchStart(
            batch, settling.decided(batch), ledger.list_committed(), self._batch_committer.last_visible_batch
        )
        match decide_start(facts):
            case StartDecision.PREPARE:
                self._prepare(rows, batch)
            case StartDecision.COMPARE:
                self._verify_replay(rows, ledger.load_committed(batch))
            case StartDecision.OUTDATED:
                raise explain_stale_checkpoint(settling.checkpoint, batch, max(facts.with_receipt))
            case StartDecision.FENCED:
                raise explain_replaced_driver(batch, settling.checkpoint)

    def _prepare(self, rows: DataFrame, batch: int) -> None:
        settling = self._settling
        results = rows.mapInArrow(partial(task.write_partition, self._assignment(batch)), task.RESULT).collect()
        hit("micro-batch.collected")
        if settling.decided(batch):
            raise explain_replaced_driver(batch, settling.checkpoint)
        prepared = self._build_prepared_batch(batch, results)
        try:
            settling.ledger.publish(prepared)
            hit("micro-batch.published")
            # After publishing: a driver that claims the query later lists batches after its claim: one sees the other.
            settling.check_term()
        except BaseException:
            # Raised from here, this goes back to Spark, which then decides nothing.
            settling.withdraw(prepared)
            raise
        self._batch_committer.submit(prepared)
        hit("micro-batch.returned")

    def _build_prepared_batch(self, batch: int, results: list[Row]) -> PreparedBatch:
        ctx = self._settling.ctx
        return PreparedBatch(
            job=ctx.job,
            batch=batch,
            term=ctx.term.n,
            created_at=now_ms(),
            scope=self._assignment(batch).cluster.scope,
            records=sum(row.records for row in results),
            digest=_sum(results),
            transactions=tuple(map(KafkaCommittable.from_payload, task.transactions(row.asDict() for row in results))),
        )

    def _verify_replay(self, rows: DataFrame, committed: PreparedBatch) -> None:
        """Check that a replay of a committed batch writes the same records.

        Spark's state comes from this replay. If the replay would write the very same records, then the visible output
        is this attempt's as well, and there is nothing to write. If not, output and state have come apart.
        """
        counted = rows.mapInArrow(task.recount, task.RESULT).collect()
        found = (sum(row.records for row in counted), _sum(counted))
        if found != (committed.records, committed.digest):
            newest = max(self._settling.ledger.list_committed())
            if newest > committed.batch:
                raise explain_stale_checkpoint(self._settling.checkpoint, committed.batch, newest)
            raise explain_replay_mismatch(self._settling.checkpoint, committed, found)
        self._settling.check_term()
        log.warning(
            ("batch %d was already committed; its replay is identical and was not written again"), committed.batch
        )


def _sum(rows: list[Row]) -> int:
    """Sum the digests of the tasks, in 64 bits."""
    total: int = sum(row.digest for row in rows)
    return (total + 2**63) % 2**64 - 2**63
