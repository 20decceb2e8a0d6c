"""The one open transaction per epoch that all Kafka sinks of a worker share.

Writers count their own epochs: writer A may have sealed epoch n while B still writes to it. The transaction of n is
complete when the last writer has sealed; that writer's pre-commit returns the committable.
Rule: a row of epoch n+1 is produced only after all rows of n were acknowledged, because two producers do not preserve
the order between them. The pre-commit or the next write, whichever comes first, flushes.

After a crash: as long as no manifest names the transaction, the next start fences its id, which aborts it. A prepared
transaction needs nothing from this process. Any process that has the committable commits it, until its timeout.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.committer import Committable, Spread, UnstoredCommittable
from kafka_eos.abc.storage import FileRef
from kafka_eos.connectors.kafka.client.access_rights import AclOperation, Permission, ResourceType, reads
from kafka_eos.connectors.kafka.client.librdkafka import (
    KafkaException,
    TopicPartition,
    map_errors,
    run_with_deadline,
    until_done,
)
from kafka_eos.connectors.kafka.rpc import KafkaRequests, TopicMetadata
from kafka_eos.connectors.kafka.rpc.transaction_status import KafkaCommittable
from kafka_eos.connectors.kafka.sink.broker_refusals import AbortedTryOut, RefusalSearch, record_refusals
from kafka_eos.connectors.kafka.sink.marker_groups import MarkerGroup
from kafka_eos.connectors.kafka.sink.producer_pool import ProducerPool, WarmProducer
from kafka_eos.connectors.kafka.sink.record_sizes import TopicLimits
from kafka_eos.connectors.kafka.sink.sticky_partitioner import StickyPartitioner
from kafka_eos.core.errors import Bug, ConfigError, EnvironmentFailed, RestartFromCheckpoint, Retryable
from kafka_eos.core.ids import EpochId
from kafka_eos.core.provenance_blocks import ProvenanceRecorder, encode

_REASON_SECONDS: Final = 2.0
"""Seconds for which the reason of a failed transaction is awaited."""
_ABANDON_SECONDS: Final = 0.1
"""Most seconds that abandoning a transaction takes: enough for the client itself, also without a broker."""


class TransactionSettings(msgspec.Struct, frozen=True):
    """The settings that all shared transactions of a worker have in common."""

    scope: str
    term: int
    timeout_ms: int
    deadline: float
    """Seconds that a flush or a pre-commit may take before the attempt fails."""
    partitions: dict[str, int] = msgspec.field(default_factory=dict)
    """The partition counts of topics, as last queried: lower bounds."""


class _SinkStart(msgspec.Struct, frozen=True):
    """A sink with rows in a transaction, and its topic's partition count at the first row."""

    topic: str
    partitioner: str | None
    fewest: int


@dataclass(eq=False)
class EpochTransaction:
    """One epoch's transaction: open, flushed, then prepared. ``records``: counts by sink, or by topic.

    ``recordings``: the origins of records, by topic, for topics whose records do not contain them.
    """

    warm: WarmProducer
    topic: str
    terms: TransactionSettings
    records: Counter[str] = field(default_factory=Counter)
    recordings: dict[str, ProvenanceRecorder] = field(default_factory=dict)
    _begun: dict[str, _SinkStart] = field(default_factory=dict)
    epoch: EpochId | None = None
    _flushed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, sink: str, to: TopicLimits, partitioner: str | None) -> None:
        """Register a sink whose rows follow."""
        self._begun[sink] = _SinkStart(to.topic, partitioner, self.partitions(to))

    def partitions(self, to: TopicLimits) -> int:
        """Return the topic's partition count as last queried."""
        return self.terms.partitions.get(to.topic, to.partitions)

    def check(self) -> None:
        """Raise an error as soon as a failure is known.

        RestartFromCheckpoint: a delivery has failed. EnvironmentFailed: a broker has refused a record. ConfigError: a
        permission is missing. LoginRefused: the client's login is rejected now, so its records would wait until their
        timeout.
        """
        self.warm.ensure_login()
        if self.warm.failures:
            self.warm.expect_unrefused({begun.topic for begun in self._begun.values()})
            text = f"{self.warm.transactional_id}: records were not delivered: {'; '.join(self.warm.failures)}"
            if refusing := self.warm.refusing_topics:
                record_refusals(self.terms.scope, refusing)
                raise EnvironmentFailed(text)
            raise RestartFromCheckpoint(text)

    def flush(self, final: bool) -> None:
        """Return when all rows written so far are acknowledged; with ``final`` no further row follows.

        Raises RestartFromCheckpoint if a delivery failed. Both threads may call it.
        """
        with self._lock:
            if not self._flushed:
                self._drain(self.terms.deadline)
                self._flushed = final

    def _drain(self, seconds: float) -> None:
        with map_errors("flush"):
            left = run_with_deadline(lambda: self.warm.producer.flush(seconds), seconds + 5.0, "flush", self.check)
        self.check()
        if left:
            name = self.warm.transactional_id
            raise RestartFromCheckpoint(f"{name}: {left} records were not acknowledged in {seconds:g} s")

    def poll_errors(self, wait: float = 0) -> None:
        """Poll the client once; raise if the transaction has failed."""
        self._poll(wait)
        self.check()

    def _poll(self, wait: float) -> None:
        with map_errors("poll"):
            self.warm.producer.poll(wait)

    @contextmanager
    def explain_failure(self) -> Iterator[None]:
        """Raise the reason for which the transaction has failed, instead of the client's error.

        The client refuses rows of a failed transaction. It reports the reason, a failed delivery, at about that time,
        and possibly after records that it has purged, which are no reason.
        """
        try:
            yield
        except RestartFromCheckpoint as error:
            if not isinstance(error.__cause__, KafkaException):
                raise
            deadline = time.monotonic() + _REASON_SECONDS
            while time.monotonic() < deadline and not self.warm.has_cause:
                self._poll(_REASON_SECONDS / 10)
                self.warm.ensure_login()
            self.check()
            raise

    def prepare(self, requests: KafkaRequests, group: MarkerGroup) -> Committable:
        """Prepare the transaction. On return any process can commit it; before that none has to."""
        terms, warm = self.terms, self.warm
        hit("sink.flush.before")
        self.flush(final=True)
        hit("sink.flush.after")
        found = self._describe_topics(requests)
        marker = str(uuid.uuid4())
        offset = TopicPartition(self.topic, 0, 0 if self.epoch is None else self.epoch.epoch.n, marker)
        hit("sink.prepare.before")
        # Use the longest timeout: if this call times out, the transaction cannot be used any more.
        until_done(
            lambda left: warm.producer.send_offsets_to_transaction([offset], group.metadata, left),
            terms.deadline,
            "send_offsets_to_transaction",
            self.poll_errors,
            warm.explain_permissions(Permission(AclOperation.READ, ResourceType.GROUP, group.name), reads(self.topic)),
        )
        committable = KafkaCommittable(
            transactional_id=warm.transactional_id,
            producer_id=warm.producer_id,
            producer_epoch=warm.producer_epoch,
            end_txn_version=_check_ongoing(requests, warm),
            uuid=marker,
            marker_group=group.name,
            marker_topic=self.topic,
            marker_topic_id=found[self.topic].topic_id,
            marker_partition=0,
            prepared_at=int(time.time() * 1000),
            timeout_ms=terms.timeout_ms,
            term=terms.term,
            cluster_id=requests.cluster_id(),
        )
        hit("sink.prepare.after")
        fields = terms.scope, committable.payload(), self.records.total(), dict(self.records), self._spread(found)
        return self._with_provenance(Committable(*fields))

    def _with_provenance(self, prepared: Committable) -> Committable:
        if not self.recordings or self.epoch is None:
            return prepared
        warm, epoch = self.warm, self.epoch
        content = encode(epoch.term, epoch.epoch, warm.producer_id, warm.producer_epoch, self.recordings)
        name = f"{warm.producer_id}-{warm.producer_epoch}"
        ref = FileRef(name, hashlib.sha256(content).hexdigest(), len(content))
        fields = prepared.scope, prepared.payload, prepared.records, prepared.by_sink, prepared.spread
        return UnstoredCommittable(*fields, ref, content)

    def abandon(self) -> None:
        """Begin to abort the transaction, unless it is prepared or another thread prepares it.

        librdkafka, from 2.10 on, may end the process (``Assertion txn_req_cnt > 0``) if a client is destroyed at the
        moment at which it registers a partition. A client that aborts registers none. Recovery aborts what remains.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._flushed:
                with suppress(KafkaException):  # it has failed, or no broker has answered in this short time
                    self.warm.producer.abort_transaction(_ABANDON_SECONDS)
        finally:
            self._lock.release()

    def _describe_topics(self, requests: KafkaRequests) -> Mapping[str, TopicMetadata]:
        """Return the metadata of each topic, after all its records and before the marker."""
        try:
            found = requests.topics({self.topic, *(begun.topic for begun in self._begun.values())})
        except Retryable as error:
            raise RestartFromCheckpoint(f"the topics of the prepared transaction are unknown: {error}") from error
        known = {topic: facts for topic, facts in found.items() if facts is not None}
        if missing := sorted(found.keys() - known.keys()):
            raise RestartFromCheckpoint(
                f"{', '.join(missing)}: the topic does not exist any more, although records were written to it"
            )
        self.terms.partitions.update((topic, facts.partitions) for topic, facts in known.items())
        return known

    def _spread(self, found: Mapping[str, TopicMetadata]) -> dict[str, Spread]:
        """Return bounds of each topic's partition count for the ledger: partitions are only ever added."""
        return {
            sink: Spread(begun.topic, begun.partitioner, begun.fewest, found[begun.topic].partitions)
            for sink, begun in self._begun.items()
        }


def _check_ongoing(requests: KafkaRequests, warm: WarmProducer) -> int:
    """Verify that the coordinator has exactly this transaction open; return the EndTxn version for the commit."""
    try:
        seen = requests.describe(warm.transactional_id)
        version = requests.end_txn_version()
    except Retryable as error:
        raise RestartFromCheckpoint(f"the prepared transaction could not be verified: {error}") from error
    found = None if seen is None else (seen.state, seen.producer_id, seen.producer_epoch)
    if found != ("Ongoing", warm.producer_id, warm.producer_epoch):
        raise RestartFromCheckpoint(
            f"{warm.transactional_id}: the coordinator shows {seen or 'nothing'}, not the "
            f"transaction of producer {warm.producer_id} epoch {warm.producer_epoch}: it timed "
            "out or was fenced"
        )
    return version


class SharedTransactions:
    """The transactions that the writers of one worker share on one cluster. Writers call from one thread."""

    def __init__(
        self,
        pool: ProducerPool,
        terms: TransactionSettings,
        requests: KafkaRequests,
        group: Callable[[int], MarkerGroup],
    ) -> None:
        """Create a worker's transactions. ``group``: returns the marker group of a slot."""
        self._pool = pool
        self._terms = terms
        self._requests = requests
        self._group = group
        self._try_out = AbortedTryOut(pool, terms.deadline)
        self.refusal_search = RefusalSearch(terms.scope, self._try_out)
        self._writers = 0
        self._places: dict[str, StickyPartitioner | None] = {}
        self._started = self._closed = False
        self._open: dict[int, EpochTransaction] = {}
        self._seals: dict[int, int] = {}
        self._prepared: list[EpochTransaction] = []

    def join(self, topic: str, places: StickyPartitioner | None = None) -> StickyPartitioner | None:
        """Add a writer that takes part in every epoch. ``places``: the partitioner of a writer with
        provenance="ledger".

        Returns the partitioner that all writers of the topic share. Raises ConfigError if only some of them record
        provenance, because brokers number the records of all writers together.
        """
        if self._started:
            raise Bug("a Kafka writer was opened after the first barrier of the session")
        if (self._places.setdefault(topic, places) is None) is not (places is None):
            raise ConfigError(
                f'provenance="ledger" is set for some of the sinks that write to {topic}, but not for '
                "all: use the same setting for each"
            )
        self._writers += 1
        return self._places[topic]

    def get_transaction(self, turn: int, topic: str) -> EpochTransaction:
        """Return the transaction of a writer's n-th epoch. Earlier ones are flushed first, to preserve row order."""
        for earlier in sorted(self._open):
            if earlier < turn:
                self._open[earlier].flush(final=self._seals.get(earlier, 0) == self._writers)
        for staged in self._prepared:
            staged.flush(final=True)
        if turn not in self._open:
            warm = self._pool.acquire(self._terms.deadline)
            warm.begin()
            self._open[turn] = EpochTransaction(warm, topic, self._terms)
        return self._open[turn]

    def poll_errors(self) -> None:
        """Poll the clients of open transactions. Raise RestartFromCheckpoint if a delivery has failed."""
        for staged in self._open.values():
            staged.poll_errors()

    def seal(self, turn: int, epoch: EpochId) -> Callable[[], Sequence[Committable]]:
        """Handle a writer's barrier. The pre-commit of the last writer returns the epoch's committable."""
        self._started = True
        self._seals[turn] = self._seals.get(turn, 0) + 1
        if self._seals[turn] < self._writers:
            return _nothing
        del self._seals[turn]
        staged = self._open.pop(turn, None)
        if staged is None:
            return _nothing
        staged.epoch = epoch
        self._prepared.append(staged)
        return lambda: self._prepare(staged)

    def _prepare(self, staged: EpochTransaction) -> Sequence[Committable]:
        committable = staged.prepare(self._requests, self._group(staged.warm.slot))
        self._pool.poll_idle(staged.warm)
        return (committable,)

    def committed(self, epoch: EpochId) -> None:
        """Release the producers of transactions up to ``epoch``, which are finished for good, and reuse their slots."""
        done = [staged for staged in self._prepared if staged.epoch is not None and staged.epoch.epoch <= epoch.epoch]
        self._prepared = [staged for staged in self._prepared if staged not in done]
        for staged in done:
            self._pool.release(staged.warm)

    def discard(self) -> None:
        """Release all clients. Prepared transactions stay as they are, for recovery to handle. May be called
        repeatedly."""
        if self._closed:
            return
        self._closed = True
        for staged in [*self._open.values(), *self._prepared]:
            staged.abandon()
        self._open.clear()
        self._try_out.close()
        self._prepared.clear()
        self._pool.close()
        self._requests.close()


def _nothing() -> Sequence[Committable]:
    return ()
