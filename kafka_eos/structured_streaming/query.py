"""The running query, as its user sees it: Spark's StreamingQuery, and when its output is visible.

Rule: a batch that has ended here is committed: ``stop``, ``awaitTermination`` and ``processAllAvailable`` return when
all that Spark decided is visible. Nothing of the query is open in Kafka then, except for output that the Spark of a
replaced driver may still decide.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.structured_streaming.background_commits import BatchCommitter
from kafka_eos.structured_streaming.batch_writer import MicroBatchWriter
from kafka_eos.structured_streaming.transaction_recovery import log

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class ExactlyOnceQuery:
    """A query that ``exactly_once_kafka`` started. As a context manager it stops at the end of the block.

    ``query`` is Spark's own handle (progress, status, explain …), ``name`` the beginning of its transactional ids, and
    ``notices`` are the notices of its start.
    """

    def __init__(
        self,
        query: StreamingQuery,
        name: str,
        notices: tuple[str, ...],
        batch: MicroBatchWriter,
        batch_committer: BatchCommitter,
    ) -> None:
        self.query = query
        self.name = name
        self.notices = notices
        self._batch, self._batch_committer = batch, batch_committer
        batch_committer.start(stop=query.stop, reported=self._reported)
        threading.Thread(target=self._watch, name="kafka-eos-watch", daemon=True).start()

    def _reported(self) -> int | None:
        """Return the last batch that this run of the query has finished: Spark reports one after it has decided it."""
        progress = self.query._jsq.lastProgress()
        return None if progress is None else int(progress.batchId())

    def _watch(self) -> None:
        """Notify the batch committer when the query is over, however it ended."""
        try:
            self.query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - Spark keeps it; ``exception`` and ``awaitTermination`` give it
            log.info("query %s ended: %s", self.name, error)
        finally:
            self._batch_committer.on_query_end()

    @property
    def isActive(self) -> bool:  # noqa: N802 - as StreamingQuery has it
        """Return whether the query runs, or its last output is not visible yet."""
        return not self._batch_committer.wait(0)

    @property
    def last_visible_batch(self) -> int | None:
        """Return the last batch whose output is visible; None before the first."""
        return self._batch_committer.last_visible_batch

    def exception(self) -> BaseException | None:
        """Return the error that ended the query, or None if it was stopped or has finished.

        An error of this package is returned as it was raised; any other error is Spark's.
        """
        spark_error = None if isinstance(self._batch.failure, RetryInterrupted) else self.query.exception()
        return self._batch_committer.failure or (spark_error and (self._batch.failure or spark_error))

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until the query has ended and all it decided is visible; False after ``timeout`` seconds.

        While no broker answers this waits. The next start of the query finishes what is left.
        """
        return self._batch_committer.wait(timeout)

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - as StreamingQuery has it
        """Call ``finish``, then raise the error that ended the query, if any."""
        if not self.finish(timeout):
            return False
        error = self.exception()
        if error is not None:
            raise error
        return True

    def processAllAvailable(self) -> None:  # noqa: N802 - as StreamingQuery has it
        """Wait until all input that is available now is processed and its output visible. For tests."""
        self.query.processAllAvailable()
        self._batch_committer.wait_until_committed()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop the query, then ``finish``."""
        self._batch_committer.release_waiters()
        self.query.stop()
        return self.finish(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
