"""The part of the sink that runs in Spark's Python workers: it writes a task's rows into one prepared transaction.

A worker process keeps warm producers for all the tasks it will run. A transactional id names job, term, process (a
random number) and slot. Each transaction has its own marker group, named by that id.

Rule: a task never ends a transaction. It returns the committable, or leaves output that the driver aborts. Two
attempts of a task never share a (producer id, epoch), so the driver can identify the one that Spark does not accept.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kafka_eos._util.failpoints import hit
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.broker_refusals import AbortedTryOut, RefusalSearch
from kafka_eos.connectors.kafka.sink.cluster_limits import CurrentLimits, fetch_topic_limits
from kafka_eos.connectors.kafka.sink.kafka_sink import batching, producer_config
from kafka_eos.connectors.kafka.sink.marker_groups import MarkerGroup, open_marker_group
from kafka_eos.connectors.kafka.sink.producer_pool import ProducerPool
from kafka_eos.connectors.kafka.sink.record_encoders import NOW, ProducerColumns, writable_time
from kafka_eos.connectors.kafka.sink.record_sizes import TopicLimits
from kafka_eos.connectors.kafka.sink.shared_transaction import EpochTransaction, TransactionSettings
from kafka_eos.connectors.kafka.sink.writer import produce_all
from kafka_eos.core.errors import UserError
from kafka_eos.core.ids import Epoch, EpochId, Term

RESULT: Final = "records long, digest long, transaction string"
"""Schema of the one row that a task returns; ``transaction`` is null if it had nothing to write."""

_MOST_TASKS: Final = 10_000
"""Tasks of one batch that may run in one worker process."""


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """The instructions for every task of one batch."""

    job: str
    term: int
    batch: int
    cluster: Cluster
    timeout_ms: int
    topic: str | None
    """None: each row names its topic."""


def write_partition(assignment: BatchSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition into one prepared transaction. For ``mapInArrow``."""
    output: _TaskTransaction | None = None
    counted = _RowDigest()
    try:
        for batch in batches:
            if batch.num_rows:
                output = output or _find_producers(assignment).begin(assignment, batch)
                output.write(batch)
                counted.add(batch)
        text = None if output is None else output.prepare()
    except BaseException:
        if output is not None:
            output.abandon()
        raise
    hit("micro-batch.prepared")
    yield counted.row(text)


def recount(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the row that ``write_partition`` would yield, and write nothing: the batch is committed already."""
    counted = _RowDigest()
    for batch in batches:
        counted.add(batch)
    yield counted.row(None)


class _RowDigest:
    """Row count and order-independent hash of rows."""

    def __init__(self) -> None:
        self._records = self._digest = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._records += batch.num_rows
        self._digest += pc.sum(batch.column("digest")).as_py() or 0  # wraps around in 64 bits

    def row(self, transaction: str | None) -> pa.RecordBatch:
        digest = (self._digest + 2**63) % 2**64 - 2**63
        columns = {"records": pa.array([self._records], pa.int64()), "digest": pa.array([digest], pa.int64())}
        return pa.RecordBatch.from_pydict({**columns, "transaction": pa.array([transaction], pa.string())})


class _TaskTransaction:
    """The Kafka transaction of one task."""

    def __init__(
        self, staged: EpochTransaction, group: MarkerGroup, outlet: WorkerProducers, topic: str | None
    ) -> None:
        self._staged = staged
        self._group = group
        self._find_producers = outlet
        self._topic = topic
        self._targets: dict[str, CurrentLimits] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        for topic, rows in _by_topic(batch, self._topic):
            if topic not in self._targets:
                self._targets[topic] = self._find_producers.limits(topic)
            sender, search = self._staged.warm.sender, self._find_producers.refusal_search
            with self._staged.explain_failure():
                produce_all(sender, self._targets[topic], columns_of(rows), None, _refuse, search)
            self._staged.records[topic] += rows.num_rows
        self._staged.check()

    def prepare(self) -> str:
        """Return the committable, as JSON, and release the producer: a stage of many tasks must not keep as many
        clients.
        """
        prepared = self._staged.prepare(self._find_producers.rpc, self._group)
        self._find_producers.pool.retire(self._staged.warm)
        return msgspec.json.encode(prepared.payload).decode()

    def abandon(self) -> None:
        """Give up a transaction that is not prepared."""
        self._staged.abandon()


def _refuse(index: int, error: Exception) -> None:
    raise UserError(f"row {index} of an Arrow batch can never be sent to Kafka: {error}. Nothing was skipped.")


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if topic is not None:
        yield topic, batch
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise UserError("the column 'topic' is null in a row: give every row a topic, or pass topic=…")
    for name in pc.unique(topics).to_pylist():
        yield name, batch.filter(pc.equal(topics, name))


def columns_of(batch: pa.RecordBatch) -> ProducerColumns:
    """Return the columns to produce for these rows, whose columns are those of ``columns.projected``."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    times = columns["timestamp"].to_pylist() if "timestamp" in columns else itertools.repeat(NOW)
    places = columns["partition"].to_pylist() if "partition" in columns else None
    headers = columns["headers"].to_pylist() if "headers" in columns else None
    return ProducerColumns(
        values=columns["value"].to_pylist(),
        keys=columns["key"].to_pylist(),
        timestamps=[NOW if time is None else writable_time(time) for time in times]
        if "timestamp" in columns
        else times,
        headers=None if headers is None else [[(h["key"], h["value"]) for h in row or ()] for row in headers],
        partitions=None if places is None else [-1 if place is None else place for place in places],
    )


# ---------------------------------------------------------------- one a worker process


class WorkerProducers:
    """The warm producers of one worker process for one job and term."""

    def __init__(self, assignment: BatchSpec) -> None:
        self._cluster, self.term = assignment.cluster, assignment.term
        self.rpc = KafkaRequests(self._cluster)
        limited = self._cluster
        if assignment.topic is not None:
            limited = batching(limited, fetch_topic_limits(self.rpc, assignment.topic, limited.config))
        config = producer_config(limited, assignment.timeout_ms)
        self._batches = int(config["batch.size"])
        self._deadline = config["message.timeout.ms"] / 1000
        process = secrets.randbits(62)
        self.pool = ProducerPool(
            lambda slot: f"{assignment.job}.{assignment.term}.{process}.{slot}",
            itertools.count().__next__,
            lambda: {
                **producer_config(limited, assignment.timeout_ms),
                "transaction.timeout.ms": assignment.timeout_ms,
            },
            most=_MOST_TASKS,
        )
        self.refusal_search = RefusalSearch(self._cluster.scope, AbortedTryOut(self.pool, self._deadline))
        self._used: list[tuple[int, int]] = []
        """Batch and slot of each transaction that may not be committed yet."""
        self._open_group = cache(partial(open_marker_group, self._cluster))

    def begin(self, assignment: BatchSpec, first: pa.RecordBatch) -> _TaskTransaction:
        """Open the transaction of one task, whose first rows are ``first``."""
        self._release(assignment.batch)
        warm = self.pool.acquire(self._deadline)
        self._used.append((assignment.batch, warm.slot))
        warm.begin()
        terms = TransactionSettings(self._cluster.scope, assignment.term, assignment.timeout_ms, self._deadline)
        topic, _ = next(_by_topic(first, assignment.topic))
        staged = EpochTransaction(warm, topic, terms, epoch=EpochId(Epoch(assignment.batch), Term(assignment.term)))
        return _TaskTransaction(staged, self._open_group(warm.transactional_id), self, assignment.topic)

    def limits(self, topic: str) -> CurrentLimits:
        """Return the limits of a topic. Raise UserError if it does not take the batches of this worker's producers."""
        return CurrentLimits(partial(self._fetch_limits, topic))

    def _fetch_limits(self, topic: str) -> TopicLimits:
        to = fetch_topic_limits(self.rpc, topic, self._cluster.config)
        if to.limit is not None and to.limit < self._batches:
            raise UserError(
                f"the topic {topic} accepts batches of at most {to.limit} bytes (max.message.bytes), but those of "
                f"this query have up to {self._batches}: raise that limit, or start the query with "
                f'config={{"batch.size": {to.limit}}}'
            )
        return to

    def _release(self, batch: int) -> None:
        """Release the slots of earlier batches for reuse: a batch begins only after the one before it is finalized."""
        for used, slot in self._used:
            if used < batch:
                self.pool.free(slot)
        self._used = [(used, slot) for used, slot in self._used if used >= batch]

    def close(self) -> None:
        """Release the producers; what they prepared stays prepared."""
        self.pool.close()
        self.rpc.close()


_outlets: dict[str, WorkerProducers] = {}
"""Producers by job. A worker process runs one task at a time."""


def _find_producers(assignment: BatchSpec) -> WorkerProducers:
    found = _outlets.get(assignment.job)
    if found is None or found.term != assignment.term:
        if found is not None:
            found.close()
        found = _outlets[assignment.job] = WorkerProducers(assignment)
    return found


def transactions(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the committables in the rows that the tasks of a batch returned."""
    return [msgspec.json.decode(row["transaction"]) for row in rows if row["transaction"] is not None]
