"""Drivers of one Structured Streaming query, in this process and without Spark: whoever tests them plays Spark.

All classes are those of the sink. Spark's part is what it does around ``foreachBatch``: it runs the tasks of a batch
one after the other in one Python process, and writes its decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from kafka_eos.abc.committer import CommitPermit, Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.core.ids import Term
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.structured_streaming.background_commits import BatchCommitter
from kafka_eos.structured_streaming.batch_ledger import BatchLedger, PreparedBatch
from kafka_eos.structured_streaming.batch_writer import MicroBatchWriter
from kafka_eos.structured_streaming.partition_writer import BatchSpec
from kafka_eos.structured_streaming.spark_checkpoint import OURS, LocalCommitLog
from kafka_eos.structured_streaming.transaction_recovery import RecoveredQuery, TransactionResolver, claim_term, recover
from tests.waiting import PATIENCE

NAME: Final = "totals"
TIMEOUT_MS: Final = 3_600_000


def rows(*values: bytes | None, **columns: Sequence[Any]) -> pa.RecordBatch:
    """As ``columns.projected`` makes them. The hash of a row is the sum of its bytes."""
    fixed = {
        "value": pa.array(values, pa.binary()),
        "key": pa.array([None] * len(values), pa.binary()),
        "digest": pa.array([sum(value or b"") for value in values], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(fixed | {name: pa.array(given) for name, given in columns.items()})


@dataclass(frozen=True)
class Returned:
    """One row of a task."""

    records: int
    digest: int
    transaction: str | None

    def asDict(self) -> Mapping[str, Any]:  # noqa: N802 - as Spark's Row has it
        return {"records": self.records, "digest": self.digest, "transaction": self.transaction}


Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class MicroBatch:
    """The DataFrame of one batch: its partitions, each of Arrow batches. What it maps runs at ``collect``."""

    def __init__(self, *partitions: Sequence[pa.RecordBatch]) -> None:
        self._partitions, self._task = partitions, None
        self._meanwhile: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, *values: bytes) -> MicroBatch:
        """One row a partition."""
        return cls(*([rows(value)] for value in values))

    def while_collected(self, meanwhile: Callable[[], None]) -> MicroBatch:
        """The same, and ``meanwhile`` happens after its tasks have run."""
        self._meanwhile = meanwhile
        return self

    def mapInArrow(self, task: Task, schema: str) -> MicroBatch:  # noqa: N802 - as Spark's DataFrame has it
        mapped = MicroBatch(*self._partitions)
        mapped._task, mapped._meanwhile = task, self._meanwhile
        return mapped

    def collect(self) -> list[Returned]:
        assert self._task is not None
        batches = [batch for partition in self._partitions for batch in self._task(iter(partition))]
        self._meanwhile()
        return [Returned(**row) for batch in batches for row in batch.to_pylist()]


class Driver:
    """One driver, which has claimed the query and recovered. Its Spark begins with ``start``."""

    def __init__(
        self, checkpoint: Path, servers: str, *, topic: str | None = "out", adopt: bool = False, alone: bool = False
    ) -> None:
        self._checkpoint, self.started, self.stopped, self.closed = checkpoint, False, False, False
        self.reported: int | None = None
        where = Cluster(servers)
        ledger = BatchLedger(LocalStorage(checkpoint / OURS), NAME)
        with closing(KafkaCommitter(where, JobContext(ledger.job, Term(0), {}))) as looking:
            ctx = JobContext(ledger.job, claim_term(ledger, looking), {})
        committer = KafkaCommitter(where, ctx)
        self.settling = TransactionResolver(ctx, ledger, LocalCommitLog(checkpoint), committer, str(checkpoint))
        self.recovered: RecoveredQuery = recover(self.settling, adopt=adopt, alone=alone)
        self.batch_committer = BatchCommitter(self.settling, self.recovered, self._close)
        self.assignment = lambda n: BatchSpec(ctx.job, ctx.term.n, n, where, TIMEOUT_MS, topic)
        self.batch = MicroBatchWriter(self.assignment, self.settling, self.batch_committer)

    def start(self) -> Driver:
        self.started = True
        self.batch_committer.start(stop=self._stop, reported=lambda: self.reported)
        return self

    def _close(self) -> None:
        self.closed = True
        self.settling.committer.close()

    def _stop(self) -> None:
        """The query goes on until its batch has returned, and the test ends it."""
        self.stopped = True

    def prepare(self, number: int, batch: MicroBatch) -> None:
        """Spark calls ``foreachBatch``."""
        self.batch(batch, number)  # type: ignore[arg-type]

    def decide(self, number: int) -> None:
        """Spark writes its decision. FileExistsError if another Spark has done so."""
        commits = self._checkpoint / "commits"
        commits.mkdir(exist_ok=True)
        (commits / str(number)).touch(exist_ok=False)
        self.reported = number

    def forget(self, number: int) -> None:
        """Spark's decision is deleted."""
        (self._checkpoint / "commits" / str(number)).unlink()

    def run(self, number: int, batch: MicroBatch) -> None:
        """One batch from its beginning to the gate, where its output is visible."""
        self.prepare(number, batch)
        self.decide(number)
        self.batch_committer.wait_until_committed()

    def commit(self, prepared: PreparedBatch, committable: Committable) -> None:
        """One transaction alone, as a driver does that dies after it."""
        self.settling.committer.commit(CommitPermit(prepared.id), committable)

    def end(self) -> BaseException | None:
        """Spark is over. What was the matter, if something was."""
        self.batch_committer.on_query_end()
        assert self.batch_committer.wait(PATIENCE), "the driver does not end"
        return self.batch_committer.failure
