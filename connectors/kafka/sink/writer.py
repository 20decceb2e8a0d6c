"""Writers of a Kafka sink: staged in a shared transaction, or plainly for at-least-once.

Rule: the loop over rows does nothing but produce; all that can be done once a batch is done once a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, Generic, Literal, TypeVar

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import TaskContext
from kafka_eos.connectors._shared.row_errors import encoded
from kafka_eos.connectors.kafka.client.librdkafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    bounded,
    kafka_errors,
    not_let_in,
    too_large,
    undelivered,
)
from kafka_eos.connectors.kafka.sink.encoding import Columns, Encoder
from kafka_eos.connectors.kafka.sink.partitioning import Places
from kafka_eos.connectors.kafka.sink.record_sizes import Stamps, Target, batch_bytes, oversized
from kafka_eos.connectors.kafka.sink.shared_transaction import EpochOutput, SharedTransactions
from kafka_eos.core.errors import LoginRefused, RestartFromCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.provenance import HEADER, fans_out, ordinals, prefix
from kafka_eos.core.provenance_blocks import Recording
from kafka_eos.core.records import Batch

T = TypeVar("T")
_NUMBERS: Final = 200
"""More bytes than a header takes besides the start of its text and the branch: its name, and numbers."""
_FULL_WAIT = 0.05
"""Seconds to let deliveries drain when the producer's queue is full."""


class _Provenance:
    """The provenance of rows, with what rows of one partition have in common formed once an epoch."""

    def __init__(self, ctx: TaskContext) -> None:
        self._term, self._epoch = ctx.job.term, ctx.first_epoch
        self._starts: dict[tuple[str, str], _Prefixes] = {}

    def next(self, sealed: EpochId) -> None:
        self._epoch = sealed.epoch.next()
        self._starts.clear()

    def column(self, batch: Batch[Any]) -> Stamps:
        """One header a row. As dicts of strings: cheap to make, and the garbage collector does not track them."""
        origin = batch.origin
        starts = self._starts.setdefault((origin.source, origin.topic), _Prefixes(self._term, self._epoch, origin))
        rows = self._rows(batch, starts)
        branch = max(map(len, batch.branch), default=0) if batch.branch is not None else 0
        return Stamps(rows, starts.longest + branch + _NUMBERS)

    @staticmethod
    def _rows(batch: Batch[Any], starts: Mapping[int, str]) -> list[dict[str, str]]:
        origin, rows, updates = batch.origin, batch.rows, batch.updates
        places = zip(map(origin.partitions.__getitem__, rows), map(origin.offsets.__getitem__, rows), strict=True)
        if batch.branch is not None or fans_out(batch):
            numbers: Sequence[Any] = ordinals(batch)
            if batch.branch is not None:
                numbers = [f"{b}{n}" for b, n in zip(batch.branch, numbers, strict=True)]
            ends = numbers if updates is None else [f"{n}/{u}" for n, u in zip(numbers, updates, strict=True)]
            middle = f"/{batch.lane}."
        elif updates is not None:
            ends, middle = updates, f"/{batch.lane}.0/"
        else:
            end = f"/{batch.lane}.0"
            return [{HEADER: f"{starts[p]}{o}{end}"} for p, o in places]
        return [{HEADER: f"{starts[p]}{o}{middle}{e}"} for (p, o), e in zip(places, ends, strict=True)]


class _Prefixes(dict[int, str]):
    """Start of the provenance by partition, formed on first use."""

    def __init__(self, term: Term, epoch: Epoch, origin: Any) -> None:
        super().__init__()
        self._of = (term, epoch, origin.source, origin.topic)
        self.longest = 0

    def __missing__(self, partition: int) -> str:
        found = self[partition] = prefix(*self._of, partition)
        self.longest = max(self.longest, len(found.encode()))
        return found


def produce_all(
    producer: Producer,
    to: Target,
    columns: Columns,
    stamps: Stamps | None,
    refuse: Callable[[int, Exception], None],
) -> Collection[int]:
    """Hand every row to librdkafka; returns the indices of those that it did not take.

    A full queue waits for deliveries.
    ``refuse`` gets the index of a row that can never be sent: too large for the topic or the producer, or of a wrong
    type. Raises RestartFromCheckpoint if librdkafka refuses for another reason.
    """
    large = {} if to.limit is None else oversized(columns, stamps, to.limit)
    for index, size in large.items():
        refuse(index, ValueError(to.refusal(size)))
    refused = set(large)
    produce, topic = producer.produce, to.topic
    with kafka_errors(f"produce to {topic}"):
        for index, (value, key, time, header, place) in _rows(columns, stamps, large):
            try:
                produce(topic, value, key, place, None, None, time, header)
            except BufferError:
                _retry(producer, (topic, value, key, place, None, None, time, header))
            except (KafkaException, TypeError, ValueError, OverflowError) as error:
                refuse(index, _the_rows_fault(error, to, value, key, header))
                refused.add(index)
        producer.poll(0)
    return refused


def _rows(columns: Columns, stamps: Stamps | None, without: Collection[int]) -> Iterable[tuple[int, tuple[Any, ...]]]:
    marks = None if stamps is None else stamps.rows
    headers: Any = marks if columns.headers is None else _joined(columns.headers, marks)
    places: Iterable[int] = repeat(-1) if columns.partitions is None else columns.partitions
    rows = zip(columns.values, columns.keys, columns.timestamps, headers or repeat(None), places, strict=False)
    return ((index, row) for index, row in enumerate(rows) if index not in without) if without else enumerate(rows)


def _the_rows_fault(error: Exception, to: Target, value: object, key: object, headers: Any) -> Exception:
    """The error to report for a row; raises ``error`` itself if it is not about the row."""
    if not isinstance(error, KafkaException):
        return error
    if not too_large(error.args[0]):
        raise error
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    return ValueError(to.refusal(batch_bytes(value, key, pairs)))


def _joined(theirs: Sequence[Any], stamps: Sequence[Any] | None) -> list[list[Any]]:
    if stamps is None:
        return [list(headers) for headers in theirs]
    return [[*headers, *stamp.items()] for headers, stamp in zip(theirs, stamps, strict=True)]


def _retry(producer: Producer, row: tuple[Any, ...]) -> None:
    while True:
        # Failed deliveries end the wait: librdkafka gives up a message after message.timeout.ms.
        producer.poll(_FULL_WAIT)
        try:
            return producer.produce(*row)
        except BufferError:
            continue


class StagedWriter(Generic[T]):
    """Exactly-once: rows go into the transaction that all Kafka sinks of this worker share."""

    def __init__(
        self,
        ctx: TaskContext,
        to: Target,
        encoder: Encoder,
        transactions: SharedTransactions,
        told: Literal["header"] | Places | None,
        partitioner: str | None,
    ) -> None:
        """``told``: how each row says where it comes from; with ``Places`` that is kept beside the data.
        ``partitioner``: how the client divides records by their keys, as it calls it; None if nobody knows.
        """
        self._operator, self._to, self._encode, self._transactions = ctx.operator, to, encoder, transactions
        self._partitioner = partitioner
        self._reject = ctx.services.reject_row
        self._stamps = _Provenance(ctx) if told == "header" else None
        self._staged: EpochOutput | None = None
        self._turn = 0
        self._places = transactions.join(to.topic, told if isinstance(told, Places) else None)

    def write(self, batch: Batch[T]) -> None:
        kept, columns = encoded(self._encode, batch, self._operator, self._reject)
        if not kept.values:
            return
        stamps = None if self._stamps is None else self._stamps.column(kept)
        if self._staged is None:
            self._staged = self._transactions.enter(self._turn, self._to.topic)
            self._staged.begin(self._operator, self._to, self._partitioner)
        staged = self._staged
        places: list[int] = []
        if self._places is not None:
            columns.partitions = places = self._places.of(columns.keys, len(kept), staged.partitions(self._to))
        refused = produce_all(
            staged.warm.producer,
            self._to,
            columns,
            stamps,
            lambda index, error: self._reject(kept, index, self._operator, error),
        )
        staged.records[self._operator] += len(kept) - len(refused)
        if self._places is not None:
            recording = staged.recordings.setdefault(self._to.topic, Recording())
            recording.add(self._operator, kept, places, refused)
        staged.check()

    def attend(self) -> None:
        """See ``abc.Attended``: statistics pile up, and a failed delivery would show at the next row only."""
        self._transactions.attend()

    def seal(self, epoch: EpochId) -> Callable[[], Sequence[Committable]]:
        """The barrier; see ``abc.Writer``."""
        precommit = self._transactions.seal(self._turn, epoch)
        self._turn, self._staged = self._turn + 1, None
        if self._stamps is not None:
            self._stamps.next(epoch)
        return precommit

    def committed(self, epoch: EpochId) -> None:
        self._transactions.committed(epoch)

    def discard(self) -> None:
        self._staged = None
        self._transactions.discard()


class PlainWriter(Generic[T]):
    """At-least-once: an idempotent producer, flushed at each barrier; rows are visible before it."""

    def __init__(
        self, ctx: TaskContext, to: Target, encoder: Encoder, config: dict[str, Any], deadline: float, provenance: bool
    ) -> None:
        self._operator, self._to, self._encode, self._deadline = ctx.operator, to, encoder, deadline
        self._reject = ctx.services.reject_row
        self._stamps = _Provenance(ctx) if provenance else None
        self._failures: list[str] = []
        self._refused = ""
        told = {"on_delivery": self._failed, "delivery.report.only.error": True, "error_cb": self._heard}
        with kafka_errors("producer"):
            self._producer: Producer | None = Producer({**config, **told})

    def _heard(self, error: KafkaError) -> None:
        if not_let_in(error):
            self._refused = error.str()

    def _failed(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and len(self._failures) < 5:
            self._failures.append(undelivered(error, message))

    def write(self, batch: Batch[T]) -> None:
        kept, columns = encoded(self._encode, batch, self._operator, self._reject)
        if kept.values and self._producer is not None:
            stamps = None if self._stamps is None else self._stamps.column(kept)
            produce_all(
                self._producer,
                self._to,
                columns,
                stamps,
                lambda index, error: self._reject(kept, index, self._operator, error),
            )
            self._check(0)

    def seal(self, epoch: EpochId) -> Callable[[], Sequence[Committable]]:
        """Flush here, not later: rows of the next epoch share the producer and would never let it run empty."""
        producer = self._producer
        if producer is not None:
            hit("sink.flush.before")
            with kafka_errors("flush"):
                left = bounded(lambda: producer.flush(self._deadline), self._deadline + 5.0, "flush")
            self._check(left)
            hit("sink.flush.after")
        if self._stamps is not None:
            self._stamps.next(epoch)
        return tuple

    def _check(self, left: int) -> None:
        if self._refused:
            raise LoginRefused(f"records for {self._to.topic}: {self._refused}")
        if self._failures or left:
            reason = "; ".join(self._failures) or f"{left} not acknowledged in {self._deadline:g} s"
            raise RestartFromCheckpoint(f"records for {self._to.topic} were not delivered: {reason}")

    def committed(self, epoch: EpochId) -> None:
        """Nothing was kept."""

    def discard(self) -> None:
        self._producer = None
