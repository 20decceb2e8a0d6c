"""The writers of a Kafka sink: in a shared transaction, or plainly for at-least-once.

Rule: the loop over rows only produces; all other work is done once per batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.sink import Writer
from kafka_eos.connectors._shared.row_errors import encode_or_reject
from kafka_eos.connectors.kafka.client.librdkafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    is_login_error,
    is_refusal,
    map_errors,
    run_with_deadline,
    too_large,
    undelivered,
)
from kafka_eos.connectors.kafka.sink.broker_refusals import RefusalSearch, record_refusals, send
from kafka_eos.connectors.kafka.sink.cluster_limits import CurrentLimits
from kafka_eos.connectors.kafka.sink.record_encoders import Encoder, ProducerColumns, take_rows
from kafka_eos.connectors.kafka.sink.record_senders import RecordSender, Row, iter_rows, open_sender
from kafka_eos.connectors.kafka.sink.record_sizes import (
    ProvenanceHeaders,
    TopicLimits,
    batch_bytes,
    oversized,
    shorten_oversized,
)
from kafka_eos.connectors.kafka.sink.shared_transaction import EpochTransaction, SharedTransactions
from kafka_eos.connectors.kafka.sink.sticky_partitioner import StickyPartitioner
from kafka_eos.core.error_messages import UnfitValue
from kafka_eos.core.errors import EnvironmentFailed, LoginRefused, RestartFromCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.provenance import fans_out, number_outputs, prefix
from kafka_eos.core.provenance_blocks import ProvenanceRecorder
from kafka_eos.core.records import Batch

T = TypeVar("T")
_NUMBERS: Final = 200
"""An upper bound of a header's bytes besides its prefix and the branch: its name, and numbers."""
_MAX_FAILURES: Final = 5
"""Failed deliveries that an error names."""
_FULL_WAIT = 0.05
"""Seconds to let deliveries drain when the producer's queue is full."""


class _ProvenanceBuilder:
    """The builder of provenance headers, which caches the common prefix of each partition."""

    def __init__(self, ctx: TaskContext) -> None:
        self._job, self._term = ctx.job.job, ctx.job.term
        self._epoch = ctx.first_epoch
        self._starts: dict[tuple[str, str], _Prefixes] = {}

    def next(self, sealed: EpochId) -> None:
        self._epoch = sealed.epoch.next()
        self._starts.clear()

    def column(self, batch: Batch[Any]) -> ProvenanceHeaders:
        """Return one header per row."""
        origin, rows = batch.origin, batch.origin_rows
        fresh = _Prefixes(self._job, self._term, self._epoch, origin)
        starts = self._starts.setdefault((origin.source, origin.topic), fresh)
        prefixes = tuple(map(starts.__getitem__, take_rows(origin.partitions, rows)))
        offsets = tuple(take_rows(origin.offsets, rows))
        branch = max(map(len, batch.branch), default=0) if batch.branch is not None else 0
        return ProvenanceHeaders(prefixes, offsets, *_number_rows(batch), starts.longest + branch + _NUMBERS)


class _Prefixes(dict[int, str]):
    """The prefix of the provenance by partition, built on first use."""

    def __init__(self, job: str, term: Term, epoch: Epoch, origin: Any) -> None:
        super().__init__()
        self._of = (job, term, epoch, origin.source, origin.topic)
        self.longest = 0

    def __missing__(self, partition: int) -> str:
        found = self[partition] = prefix(*self._of, partition)
        self.longest = max(self.longest, len(found.encode()))
        return found


def _number_rows(batch: Batch[Any]) -> tuple[str, Sequence[str | int] | None]:
    """Return the text after the offset that all rows have in common, and the ending of each row if they have any."""
    lane, updates = f"/{batch.lane}.", batch.updates
    if batch.branch is None and not fans_out(batch):
        return (f"{lane}0", None) if updates is None else (f"{lane}0/", updates)
    numbers: Sequence[str | int] = number_outputs(batch)
    if batch.branch is not None:
        numbers = [f"{b}{n}" for b, n in zip(batch.branch, numbers, strict=True)]
    return lane, numbers if updates is None else [f"{n}/{update}" for n, update in zip(numbers, updates, strict=True)]


def produce_all(
    sender: RecordSender,
    limits: CurrentLimits,
    columns: ProducerColumns,
    stamps: ProvenanceHeaders | None,
    refuse: Callable[[int, Exception], None],
    search: RefusalSearch,
) -> Collection[int]:
    """Pass every row to librdkafka; return the indices of those that it did not accept. Wait while the queue is full.

    ``refuse`` receives the index of a row that can never be sent: too large for the topic or the producer, against the
    topic's rules, of a wrong type, or found by ``search``. Raises RestartFromCheckpoint if librdkafka rejects a row for
    another reason.
    """
    if columns.shorten is not None:
        columns = limits.latest.rules.with_permitted_times(columns, round(time.time() * 1000))
    if shorten_oversized(columns, stamps, limits.latest.most) is not columns:
        columns = shorten_oversized(columns, stamps, limits.reread().most)
    reasons = _find_refused(limits.latest, columns, stamps)
    if reasons:
        reasons = _find_refused(limits.reread(), columns, stamps)
    to = limits.latest
    tried = search.find_refused(to.topic, iter_rows(columns, stamps, reasons))
    refused = {*reasons, *tried}
    for index, reason in sorted({**dict.fromkeys(tried, _refused_by_broker(to.topic)), **reasons}.items()):
        refuse(index, UnfitValue(reason))
    produce, topic = sender.producer.produce, to.topic
    with map_errors(f"produce to {topic}"):
        for index, (value, key, at, header, place) in sender.send(topic, columns, stamps, frozenset(refused)):
            try:
                produce(topic, value, key, place, None, None, at, header)
            except BufferError:
                _retry(sender.producer, (topic, value, key, place, None, None, at, header))
            except (KafkaException, TypeError, ValueError, OverflowError) as error:
                refuse(index, _the_rows_fault(error, to, value, key, header))
                refused.add(index)
        sender.producer.poll(0)
    return refused


def _find_refused(to: TopicLimits, columns: ProducerColumns, stamps: ProvenanceHeaders | None) -> Mapping[int, str]:
    """Return the reason for each row that a topic with these limits refuses."""
    large = {} if to.limit is None else oversized(columns, stamps, to.limit)
    against = to.rules.find_refused(to.topic, columns, round(time.time() * 1000))
    return against | {index: to.refusal(size) for index, size in large.items()}


def _refused_by_broker(topic: str) -> str:
    return (
        f"the broker rejected this output by a rule for the topic {topic} that the sink "
        "cannot read, such as schema validation. Look for the rule in the broker's log"
    )


def _the_rows_fault(error: Exception, to: TopicLimits, value: object, key: object, headers: Any) -> Exception:
    """Return the error to report for a row; raise ``error`` itself if it is not about the row."""
    if not isinstance(error, KafkaException):
        return error
    if not too_large(error.args[0]):
        raise error
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    return UnfitValue(to.refusal(batch_bytes(value, key, pairs)))


def _retry(producer: Producer, row: tuple[Any, ...]) -> None:
    while True:
        # Failed deliveries end the wait: librdkafka drops a message after message.timeout.ms.
        producer.poll(_FULL_WAIT)
        try:
            return producer.produce(*row)
        except BufferError:
            continue


class TransactionalWriter(Writer[T]):
    """The exactly-once writer: it writes into the transaction that all Kafka sinks of a worker share."""

    def __init__(
        self,
        ctx: TaskContext,
        limits: CurrentLimits,
        encoder: Encoder,
        transactions: SharedTransactions,
        provenance: Literal["header"] | StickyPartitioner | None,
        partitioner: str | None,
    ) -> None:
        """Create a writer.

        ``provenance``: where the origin of rows is stored; a ``StickyPartitioner`` means in the ledger.
        ``partitioner``: the name of the client's partitioner; None if it is not known.
        """
        self._operator = ctx.operator
        self._limits = limits
        self._encode = encoder
        self._transactions = transactions
        self._partitioner = partitioner
        self._reject = ctx.services.reject_row
        self._stamps = _ProvenanceBuilder(ctx) if provenance == "header" else None
        self._staged: EpochTransaction | None = None
        self._turn = 0
        self._places = transactions.join(
            limits.latest.topic, provenance if isinstance(provenance, StickyPartitioner) else None
        )

    def write(self, batch: Batch[T]) -> None:
        kept, columns = encode_or_reject(self._encode, batch, self._operator, self._reject)
        if not kept.values:
            return
        stamps = None if self._stamps is None else self._stamps.column(kept)
        to = self._limits.latest
        if self._staged is None:
            self._staged = self._transactions.get_transaction(self._turn, to.topic)
            self._staged.begin(self._operator, to, self._partitioner)
        staged = self._staged
        places: list[int] = []
        if self._places is not None:
            columns.partitions = places = self._places.of(columns.keys, len(kept), staged.partitions(to))
        with staged.explain_failure():
            refused = produce_all(
                staged.warm.sender,
                self._limits,
                columns,
                stamps,
                lambda index, error: self._reject(kept, index, self._operator, error),
                self._transactions.refusal_search,
            )
        staged.records[self._operator] += len(kept) - len(refused)
        if self._places is not None:
            recording = staged.recordings.setdefault(to.topic, ProvenanceRecorder())
            recording.add(self._operator, kept, places, refused)
        staged.check()

    def poll(self) -> None:
        """Poll the client between rows, because statistics accumulate and failed deliveries would be noticed late."""
        self._transactions.poll_errors()

    def seal(self, epoch: EpochId) -> Callable[[], Sequence[Committable]]:
        """Handle the barrier; see ``Writer.seal``."""
        precommit = self._transactions.seal(self._turn, epoch)
        self._turn, self._staged = self._turn + 1, None
        if self._stamps is not None:
            self._stamps.next(epoch)
        return precommit

    def notify_committed(self, epoch: EpochId) -> None:
        self._transactions.committed(epoch)

    def discard(self) -> None:
        self._staged = None
        self._transactions.discard()


class AtLeastOnceWriter(Writer[T]):
    """The at-least-once writer: an idempotent producer that is flushed at each barrier."""

    def __init__(
        self,
        ctx: TaskContext,
        limits: CurrentLimits,
        encoder: Encoder,
        config: dict[str, Any],
        deadline: float,
        provenance: bool,
        scope: str,
    ) -> None:
        self._operator = ctx.operator
        self._limits = limits
        self._encode = encoder
        self._deadline = deadline
        self._reject = ctx.services.reject_row
        self._stamps = _ProvenanceBuilder(ctx) if provenance else None
        self._failures: list[str] = []
        self._is_refusal = False
        self._scope = scope
        self._search = RefusalSearch(scope, self._is_refused_by_broker)
        self._refused = ""
        callbacks = {"on_delivery": self._failed, "delivery.report.only.error": True, "error_cb": self._on_error}
        with map_errors("producer"):
            self._sender: RecordSender | None = open_sender({**config, **callbacks})

    def _on_error(self, error: KafkaError) -> None:
        if is_login_error(error):
            self._refused = error.str()

    def _failed(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._add_failure(error, message.topic())

    def _add_failure(self, error: KafkaError, topic: str | None) -> None:
        self._is_refusal = self._is_refusal or is_refusal(error)
        self._failures = [*dict.fromkeys((*self._failures, undelivered(error, topic)))][:_MAX_FAILURES]

    def write(self, batch: Batch[T]) -> None:
        kept, columns = encode_or_reject(self._encode, batch, self._operator, self._reject)
        if kept.values and self._sender is not None:
            stamps = None if self._stamps is None else self._stamps.column(kept)
            produce_all(
                self._sender,
                self._limits,
                columns,
                stamps,
                lambda index, error: self._reject(kept, index, self._operator, error),
                self._search,
            )
            self._check(0)

    def _is_refused_by_broker(self, topic: str, rows: Sequence[Row]) -> bool:
        """Write rows, which are written again if the broker refuses none of them."""
        assert self._sender is not None
        failures = send(self._sender.producer, self._deadline, self._ensure_login, topic, rows)
        if failures and not any(map(is_refusal, failures)):
            raise RestartFromCheckpoint(f"records for {topic} were not delivered: {failures[0].str()}")
        return bool(failures)

    def seal(self, epoch: EpochId) -> Callable[[], Sequence[Committable]]:
        """Flush at the barrier. Later the producer also holds rows of the next epoch, and would never be empty."""
        if self._sender is not None:
            producer = self._sender.producer
            hit("sink.flush.before")
            with map_errors("flush"):
                left = run_with_deadline(lambda: producer.flush(self._deadline), self._deadline + 5.0, "flush")
            self._check(left)
            hit("sink.flush.after")
        if self._stamps is not None:
            self._stamps.next(epoch)
        return tuple

    def _ensure_login(self) -> None:
        if self._refused:
            raise LoginRefused(f"records for {self._limits.latest.topic}: {self._refused}")

    def _check(self, left: int) -> None:
        self._ensure_login()
        for error, of in self._sender.list_failures() if self._sender is not None else ():
            self._add_failure(error, of)
        topic = self._limits.latest.topic
        if self._failures or left:
            reason = "; ".join(self._failures) or f"{left} not acknowledged in {self._deadline:g} s"
            if self._is_refusal:
                record_refusals(self._scope, [topic])
            kind = EnvironmentFailed if self._is_refusal else RestartFromCheckpoint
            raise kind(f"records for {topic} were not delivered: {reason}")

    def discard(self) -> None:
        self._sender = None
