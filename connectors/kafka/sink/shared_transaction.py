"""The one open transaction that all Kafka sinks of a worker share, epoch after epoch.

Writers count their own epochs: writer A may have sealed epoch n while B still writes to it. The transaction of n
is complete when the last writer has sealed; that writer's pre-commit carries the committable.

Rule: a row of epoch n+1 is produced only after all rows of n were acknowledged, because two producers do not
keep an order between them. Whoever needs that first (the pre-commit or the next write) does the flush.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.committer import Committable, Spread, Unstored
from kafka_eos.abc.storage import FileRef
from kafka_eos.connectors.kafka.client.access_rights import Kind, Operation, Right, reads
from kafka_eos.connectors.kafka.client.librdkafka import TopicPartition, bounded, kafka_errors, until_done
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.transaction_status import Transaction
from kafka_eos.connectors.kafka.sink.marker_groups import MarkerGroup
from kafka_eos.connectors.kafka.sink.partitioning import Places
from kafka_eos.connectors.kafka.sink.producer_pool import Warm, WarmPool
from kafka_eos.connectors.kafka.sink.record_sizes import Target
from kafka_eos.core.errors import Bug, ConfigError, RestartFromCheckpoint, Retryable
from kafka_eos.core.ids import EpochId
from kafka_eos.core.provenance_blocks import Recording, encode


class Partitions:
    """How many partitions topics have at least: as many as they had when somebody last asked."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def at_least(self, to: Target) -> int:
        return self._known.get(to.topic, to.partitions)

    def asked(self, requests: KafkaRequests, topics: Collection[str]) -> dict[str, int]:
        """How many they have now; of a topic that nobody can tell, nothing. Raises Retryable."""
        found = {topic: facts.partitions for topic, facts in requests.topics(topics).items() if facts is not None}
        self._known |= found
        return found


@dataclass(frozen=True, slots=True)
class Terms:
    """What all shared transactions of a worker have in common."""

    scope: str
    term: int
    timeout_ms: int
    deadline: float
    """Seconds that a flush or a pre-commit may take before the attempt is given up."""
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class _Begun:
    """A sink with rows in a transaction; ``fewest``: its topic had as many partitions when the first one came."""

    topic: str
    partitioner: str | None
    fewest: int


@dataclass(eq=False)
class EpochOutput:
    """One epoch's transaction: open, then flushed, then prepared. ``records`` counts by sink, or by topic.

    ``recordings``: by topic, where its records came from, of topics whose records do not say it themselves.
    """

    warm: Warm
    topic: str
    terms: Terms
    records: Counter[str] = field(default_factory=Counter)
    recordings: dict[str, Recording] = field(default_factory=dict)
    _begun: dict[str, _Begun] = field(default_factory=dict)
    epoch: EpochId | None = None
    _flushed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, sink: str, to: Target, partitioner: str | None) -> None:
        """Rows of a sink come next."""
        self._begun[sink] = _Begun(to.topic, partitioner, self.partitions(to))

    def partitions(self, to: Target) -> int:
        """How many a topic had when somebody last asked."""
        return self.terms.partitions.at_least(to)

    def check(self) -> None:
        """RestartFromCheckpoint as soon as a delivery is known to have failed; ConfigError if it is not allowed.

        LoginRefused if the client is not let in any more: its records would wait for their timeout.
        """
        self.warm.expect_welcome()
        if self.warm.failures:
            self.warm.expect_unrefused({begun.topic for begun in self._begun.values()})
            raise RestartFromCheckpoint(
                f"{self.warm.transactional_id}: records were not delivered: {'; '.join(self.warm.failures)}"
            )

    def flush(self, final: bool) -> None:
        """Return when all rows written so far are acknowledged; with ``final`` no further row will come.

        Raises RestartFromCheckpoint if one failed. May be called by both threads.
        """
        with self._lock:
            if not self._flushed:
                self._drain(self.terms.deadline)
                self._flushed = final

    def _drain(self, seconds: float) -> None:
        with kafka_errors("flush"):
            left = bounded(lambda: self.warm.producer.flush(seconds), seconds + 5.0, "flush", self.check)
        self.check()
        if left:
            name = self.warm.transactional_id
            raise RestartFromCheckpoint(f"{name}: {left} records were not acknowledged in {seconds:g} s")

    def look(self) -> None:
        """Hear what the client has to say, and raise if that is why it will never be done."""
        with kafka_errors("poll"):
            self.warm.producer.poll(0)
        self.check()

    def prepare(self, requests: KafkaRequests, group: MarkerGroup) -> Committable:
        """The pre-commit. On return any process can commit it; until then nobody has to."""
        terms, warm = self.terms, self.warm
        hit("sink.flush.before")
        self.flush(final=True)
        hit("sink.flush.after")
        marker = str(uuid.uuid4())
        offset = TopicPartition(self.topic, 0, 0 if self.epoch is None else self.epoch.epoch.n, marker)
        hit("sink.prepare.before")
        # With all the time there is: a timeout of this call spoils the transaction.
        until_done(
            lambda left: warm.producer.send_offsets_to_transaction([offset], group.metadata, left),
            terms.deadline,
            "send_offsets_to_transaction",
            self.look,
            warm.needing(Right(Operation.READ, Kind.GROUP, group.name), reads(self.topic)),
        )
        committable = Transaction(
            transactional_id=warm.transactional_id,
            producer_id=warm.producer_id,
            producer_epoch=warm.producer_epoch,
            end_txn_version=_check_ongoing(requests, warm),
            uuid=marker,
            marker_group=group.name,
            marker_topic=self.topic,
            marker_partition=0,
            prepared_at=int(time.time() * 1000),
            timeout_ms=terms.timeout_ms,
            term=terms.term,
        )
        hit("sink.prepare.after")
        told = terms.scope, committable.payload(), self.records.total(), dict(self.records), self._spread(requests)
        return self._with_provenance(Committable(*told))

    def _with_provenance(self, prepared: Committable) -> Committable:
        if not self.recordings or self.epoch is None:
            return prepared
        warm, epoch = self.warm, self.epoch
        content = encode(epoch.term, epoch.epoch, warm.producer_id, warm.producer_epoch, self.recordings)
        name = f"{warm.producer_id}-{warm.producer_epoch}"
        ref = FileRef(name, hashlib.sha256(content).hexdigest(), len(content))
        told = prepared.scope, prepared.payload, prepared.records, prepared.by_sink, prepared.spread
        return Unstored(*told, ref, content)

    def _spread(self, requests: KafkaRequests) -> dict[str, Spread]:
        """For the books: partitions are only ever added, so there were as many as before at least, as now at most."""
        topics = {begun.topic for begun in self._begun.values()}
        try:
            now = self.terms.partitions.asked(requests, topics) if topics else {}
        except Retryable:
            return {}  # the transaction is prepared: the audit goes by the records then
        return {
            sink: Spread(begun.topic, begun.partitioner, begun.fewest, now[begun.topic])
            for sink, begun in self._begun.items()
            if begun.topic in now
        }


def _check_ongoing(requests: KafkaRequests, warm: Warm) -> int:
    """Prove that the coordinator holds exactly our transaction open; returns the EndTxn version to commit with."""
    try:
        seen = requests.describe(warm.transactional_id)
        version = requests.end_txn_version()
    except Retryable as error:
        raise RestartFromCheckpoint(f"the prepared transaction could not be verified: {error}") from error
    found = None if seen is None else (seen.state, seen.producer_id, seen.producer_epoch)
    if found != ("Ongoing", warm.producer_id, warm.producer_epoch):
        raise RestartFromCheckpoint(
            f"{warm.transactional_id}: the coordinator shows {seen or 'nothing'}, not our transaction of "
            f"producer {warm.producer_id} epoch {warm.producer_epoch}: it timed out or was fenced"
        )
    return version


class SharedTransactions:
    """Shared by the writers of one worker on one cluster. Writers call from one thread."""

    def __init__(
        self,
        pool: WarmPool,
        terms: Terms,
        requests: KafkaRequests,
        group: Callable[[int], MarkerGroup],
        keep: Callable[[Sequence[EpochOutput]], None] | None = None,
    ) -> None:
        """``group``: the marker group of a slot. ``keep``: takes what is prepared at the end, if the clients are
        somebody else's to close."""
        self._pool, self._terms, self._requests, self._group = pool, terms, requests, group
        self._keep = keep
        self._writers = 0
        self._places: dict[str, Places | None] = {}
        self._started = self._closed = False
        self._open: dict[int, EpochOutput] = {}
        self._seals: dict[int, int] = {}
        self._prepared: list[EpochOutput] = []

    def join(self, topic: str, places: Places | None = None) -> Places | None:
        """One more writer will take part in every epoch. ``places``: of one that records where its output comes from.

        Returns those that all writers of the topic share. ConfigError if some record it and some do not: brokers number
        what all of them write together.
        """
        if self._started:
            raise Bug("a Kafka writer was opened after the first barrier of the session")
        if (self._places.setdefault(topic, places) is None) is not (places is None):
            raise ConfigError(
                f'of the sinks that write to {topic} some have provenance="ledger" and some not: give all the same'
            )
        self._writers += 1
        return self._places[topic]

    def enter(self, turn: int, topic: str) -> EpochOutput:
        """The transaction of a writer's ``turn``-th epoch, for its first row in it. Keeps the order of rows."""
        for earlier in sorted(self._open):
            if earlier < turn:
                self._open[earlier].flush(final=self._seals.get(earlier, 0) == self._writers)
        for staged in self._prepared:
            staged.flush(final=True)
        if turn not in self._open:
            warm = self._pool.take(self._terms.deadline)
            warm.begin()
            self._open[turn] = EpochOutput(warm, topic, self._terms)
        return self._open[turn]

    def attend(self) -> None:
        """Hear what the clients of open transactions have to say. RestartFromCheckpoint if a delivery has failed."""
        for staged in self._open.values():
            staged.look()

    def seal(self, turn: int, epoch: EpochId) -> Callable[[], Sequence[Committable]]:
        """A writer's barrier. The last of them completes the epoch and carries its committable."""
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

    def _prepare(self, staged: EpochOutput) -> Sequence[Committable]:
        committable = staged.prepare(self._requests, self._group(staged.warm.slot))
        self._pool.rest(staged.warm)
        return (committable,)

    def committed(self, epoch: EpochId) -> None:
        """Transactions up to ``epoch`` are finished for good: their producers go, their slots serve again."""
        done = [staged for staged in self._prepared if staged.epoch is not None and staged.epoch.epoch <= epoch.epoch]
        self._prepared = [staged for staged in self._prepared if staged not in done]
        for staged in done:
            self._pool.release(staged.warm)

    def discard(self) -> None:
        """Let go of everything: open transactions stay as they are, for recovery to judge. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._open.clear()
        if self._keep is not None:
            self._keep(self._prepared)
            return
        self._prepared.clear()
        self._pool.close()
        self._requests.close()


def _nothing() -> Sequence[Committable]:
    return ()
