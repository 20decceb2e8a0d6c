"""Warm transactional producers: one instance, one ``init_transactions``, one transaction.

``init_transactions`` takes 55 ms, or 510 ms if librdkafka misses its own timer (about every other time on a quiet
broker). So threads call it ahead of need; how far ahead depends on how often it was late. A slot is the last part of a
transactional id; it is reused only when the epoch that used it is finished for good.

librdkafka buffers its statistics, about 100 KB a second without a limit, until the client is polled. So a thread polls
the producers that are not in use: those that are ready, and those that have prepared. A producer in use is polled by
its writer, which also does so when it has nothing to write.
Rule: a prepared producer is dropped, never closed, because ``close`` would abort its transaction.
Rule: a producer with in-flight rows is polled only by its writer, which must not miss a failed delivery.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from kafka_eos.connectors.kafka.client.access_rights import (
    AclOperation,
    Permission,
    ResourceType,
    describe_missing,
    writes,
)
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import (
    BrokerWatch,
    Explain,
    KafkaError,
    Message,
    Producer,
    is_login_error,
    is_refusal,
    map_errors,
    purged,
    undelivered,
    until_done,
)
from kafka_eos.connectors.kafka.sink.record_senders import open_sender
from kafka_eos.core.errors import KafkaEosError, LoginRefused, RestartFromCheckpoint, Retryable
from kafka_eos.core.limits import LIMITS

SPARE: Final = 1
"""The initial number of producers kept warm besides the one in use."""
WARMERS: Final = 4
"""Threads that start producers."""
MAX_SLOTS: Final = 64
"""Most transactions that may wait for their receipts; more means that epochs are not being finished."""
_INIT_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 0.5
"""Seconds before a producer that did not start is started again."""
_LISTEN_SECONDS: Final = 1.0
"""Seconds between two polls of the producers that are not in use."""
_STATISTICS_MS = 100
"""The statistics interval: short, because the statistics contain the identity of a starting producer."""
_SELDOM = 10
"""Once the identity is known, one in this many statistics is read: one second suffices to detect lost brokers."""


class _ProducerEvents:
    """The reports of librdkafka's callbacks about one producer.

    Separate from ``WarmProducer``: callbacks that reference the producer would keep it alive until the garbage
    collector runs.
    """

    def __init__(self) -> None:
        self.producer_id = self.producer_epoch = -1
        self.failures: list[str] = []
        self.refusing_topics: set[str] = set()
        """Topics for which a broker has refused a record."""
        self.refused = ""
        """The reason for which a broker has rejected this client's login, or ""."""
        self.purged = False
        self.has_cause = False
        """Whether a failure is known that is more than a purged record, which is a consequence of another failure."""
        self._brokers = BrokerWatch()
        self._statistics_count = 0

    def learn(self, statistics: str) -> None:
        self._statistics_count += 1
        if self.producer_id >= 0 and self._statistics_count % _SELDOM:
            return
        known = json.loads(statistics)
        self._brokers.learn(known)
        if self._brokers.forgotten:
            self._fail("the client has forgotten every broker and will not find one again")
        # The identity is fixed for this instance: it runs one transaction and never bumps its epoch.
        if self.producer_id < 0:
            identity = known.get("eos", {})
            self.producer_epoch = identity.get("producer_epoch", -1)
            self.producer_id = identity.get("producer_id", -1)

    def failed(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.add_failure(error, message.topic())

    def add_failure(self, error: KafkaError, topic: str | None) -> None:
        if is_refusal(error):
            self.refusing_topics.add(topic or "")
        self._fail(undelivered(error, topic), was_purged=purged(error))

    def error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fail(error.str())
        elif is_login_error(error):
            self.refused = error.str()

    def _fail(self, reason: str, *, was_purged: bool = False) -> None:
        self.purged = self.purged or was_purged
        self.has_cause = self.has_cause or not was_purged
        if len(self.failures) < 5 and reason not in self.failures:
            self.failures.append(reason)


class WarmProducer:
    """An initialized producer that can begin its only transaction.

    Its identity comes from librdkafka's own statistics.
    """

    def __init__(self, transactional_id: str, slot: int, config: Mapping[str, Any]) -> None:
        self.transactional_id, self.slot = transactional_id, slot
        self._where = Cluster(config["bootstrap.servers"], config)
        self._events = events = _ProducerEvents()
        self.sender = open_sender(
            {
                **config,
                "transactional.id": transactional_id,
                "statistics.interval.ms": _STATISTICS_MS,
                "stats_cb": events.learn,
                "on_delivery": events.failed,
                "error_cb": events.error,
                "delivery.report.only.error": True,
            }
        )

    @property
    def producer(self) -> Producer:
        return self.sender.producer

    @property
    def producer_id(self) -> int:
        """Return the producer id; -1 before ``init``."""
        return self._events.producer_id

    @property
    def producer_epoch(self) -> int:
        return self._events.producer_epoch

    @property
    def failures(self) -> list[str]:
        """Return the first few failed deliveries and fatal errors, one line each."""
        return self._collect_failures().failures

    @property
    def has_cause(self) -> bool:
        """Return whether ``failures`` has more than records that were purged because of another failure."""
        return self._collect_failures().has_cause

    @property
    def refusing_topics(self) -> frozenset[str]:
        """Return the topics for which a broker has refused a record."""
        return frozenset(self._collect_failures().refusing_topics)

    def _collect_failures(self) -> _ProducerEvents:
        """Return the events, with the failed deliveries that no callback reports.

        librdkafka's own commit would refuse a transaction that has one. But a prepared transaction is committed without
        librdkafka, so each check has to see them.
        """
        for error, topic in self.sender.list_failures():
            self._events.add_failure(error, topic)
        return self._events

    def explain_permissions(self, *rights: Permission) -> Explain:
        """Return an error hint that names the permissions that a rejected call needs."""
        needed = (Permission(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, self.transactional_id), *rights)
        return lambda code: describe_missing(self._where, needed, code)

    def ensure_login(self) -> None:
        """Raise LoginRefused if a broker has rejected this client."""
        if self._events.refused:
            raise LoginRefused(f"{self.transactional_id}: {self._events.refused}")

    def expect_unrefused(self, topics: Collection[str]) -> None:
        """Raise ConfigError if records were dropped because the user may not write to one of these topics.

        Only the client is asked: beginning a transaction again has no effect, and after a failure the call gives its
        cause.
        """
        if not self._collect_failures().purged:
            return
        with (
            suppress(RestartFromCheckpoint, Retryable),
            map_errors("write", self.explain_permissions(*map(writes, topics))),
        ):
            self.producer.begin_transaction()

    def init(self, seconds: float) -> None:
        """Get a producer id and epoch, which fences earlier producers of this id. Raise RestartFromCheckpoint on a
        timeout."""
        until_done(
            self.producer.init_transactions, seconds, "init_transactions", self.ensure_login, self.explain_permissions()
        )
        deadline = time.monotonic() + seconds
        while self.producer_id < 0:
            self.producer.poll(_STATISTICS_MS / 1000)
            if time.monotonic() > deadline:
                raise RestartFromCheckpoint(f"{self.transactional_id}: no producer id in the statistics")

    def begin(self) -> None:
        with map_errors("begin_transaction"):
            self.producer.begin_transaction()


class ProducerPool:
    """A pool of initialized producers; background threads keep some ready. Call from one thread."""

    def __init__(
        self,
        name: Callable[[int], str],
        slots: Callable[[], int],
        config: Callable[[], Mapping[str, Any]],
        patience: float = _INIT_SECONDS,
        most: int = MAX_SLOTS,
    ) -> None:
        """Create the pool.

        ``slots``: returns a number that no other slot of the process has.
        ``config``: returns the settings of a new producer, with the present secrets.
        ``patience``: seconds after which a producer that has not started is started again.
        ``most``: the number of slots.
        """
        self._most = most
        self._name = name
        self._new_slot = slots
        self._config = config
        self._patience = patience
        self._ready: queue.Queue[WarmProducer | KafkaEosError] = queue.Queue()
        self._resting: weakref.WeakSet[WarmProducer] = weakref.WeakSet()
        self._orders: queue.SimpleQueue[int | WarmProducer | None] = queue.SimpleQueue()
        self._free: list[int] = []
        self._slots, self._spares = 0, SPARE
        self._closed = threading.Event()
        self._trouble = ""
        for _ in range(WARMERS):
            threading.Thread(target=self._warm_up, name="kafka-warm-up", daemon=True).start()
        threading.Thread(target=self._listen, name="kafka-listen", daemon=True).start()
        for _ in range(SPARE + 1):
            self._order()

    def acquire(self, seconds: float) -> WarmProducer:
        """Return the next ready producer.

        Raises RestartFromCheckpoint if none is ready in time, ConfigError if none can ever start.
        """
        if self._ready.empty() and self._spares < LIMITS.spare_producers:
            self._spares += 1
            self._order()
        try:
            found = self._ready.get(timeout=seconds)
        except queue.Empty:
            raise RestartFromCheckpoint(
                f"no transactional producer became ready within {seconds:g} s. {self._trouble}".rstrip()
            ) from None
        if isinstance(found, KafkaEosError):
            raise found
        self._order()
        return found

    def poll_idle(self, used: WarmProducer) -> None:
        """Let the pool's thread poll a producer without in-flight rows. Thread-safe."""
        with self._ready.mutex:
            self._resting.add(used)

    def stop_polling(self, used: WarmProducer) -> None:
        """Return when the pool's thread does not poll the producer any more. Thread-safe."""
        with self._ready.mutex:
            self._resting.discard(used)

    def release(self, used: WarmProducer) -> None:
        """Drop a producer whose transaction is finished for good, and reuse its slot."""
        self.retire(used)
        self.free(used.slot)

    def retire(self, used: WarmProducer) -> None:
        """Drop a producer whose transaction is prepared; its slot stays in use."""
        self._orders.put(used)

    def free(self, slot: int) -> None:
        """Reuse a slot whose transaction is finished for good."""
        self._free.append(slot)

    def close(self) -> None:
        """Stop starting producers."""
        self._closed.set()
        for _ in range(WARMERS):
            self._orders.put(None)

    def _listen(self) -> None:
        while not self._closed.wait(_LISTEN_SECONDS):
            self._poll_unused()

    def _poll_unused(self) -> None:
        """Poll unused producers under the lock of the queue, so that none is acquired meanwhile."""
        with self._ready.mutex:
            unused = [*self._ready.queue, *self._resting]  # outlives the lock, because destroying a client takes time
            for found in unused:
                if isinstance(found, WarmProducer):
                    found.producer.poll(0)

    def _order(self) -> None:
        if self._free:
            self._orders.put(self._free.pop(0))
        elif self._slots < self._most:
            self._slots += 1
            self._orders.put(self._new_slot())
        else:
            raise RestartFromCheckpoint(f"{self._most} epochs are prepared and none is finished")

    def _warm_up(self) -> None:
        while (order := self._orders.get()) is not None and not self._closed.is_set():
            if isinstance(order, WarmProducer):
                # Dropping the last reference destroys the client here, off the hot path, and sends nothing.
                del order
                continue
            try:
                warm = self._started(order)
            except KafkaEosError as error:
                self._ready.put(error)
            except Exception as error:  # noqa: BLE001 - raised for the caller that acquires the next producer
                self._ready.put(RestartFromCheckpoint(f"a transactional producer could not start: {error}"))
            else:
                if warm is not None:
                    self._ready.put(warm)
                del warm

    def _started(self, slot: int) -> WarmProducer | None:
        """Return a warm producer, however long the brokers are down; None once the pool is closed."""
        while not self._closed.is_set():
            warm = None
            try:
                warm = WarmProducer(self._name(slot), slot, self._config())
                warm.init(self._patience)
                return warm
            except (RestartFromCheckpoint, Retryable) as error:
                self._trouble = str(error)
            del warm
            self._closed.wait(_RETRY_SECONDS)
        return None
