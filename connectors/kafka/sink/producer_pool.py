"""Warm transactional producers: one instance, one ``init_transactions``, one transaction.

``init_transactions`` takes 55 ms, or 510 ms when librdkafka misses its own timer (about every other time on a quiet
broker), so threads do it ahead of need; how far ahead follows from how often it came too late. A slot is the last
part of a transactional id; it is used again only when the epoch that used it is finished for good.

librdkafka keeps its statistics, about 100 KB a second and without bound, until somebody polls. So a thread polls the
producers that nobody uses: those that are ready, and those that have prepared. One in use is polled by its writer,
which is attended to while it has nothing to write.

Rule: a prepared producer is dropped, never closed: ``close`` would abort its transaction.
Rule: a producer with rows under way is polled by its writer only, who must not miss a failed delivery.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from kafka_eos.connectors.kafka.client.access_rights import Kind, Operation, Right, lacking, writes
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import (
    BrokerWatch,
    Explain,
    KafkaError,
    Message,
    Producer,
    kafka_errors,
    not_let_in,
    purged,
    undelivered,
    until_done,
)
from kafka_eos.core.errors import KafkaEosError, LoginRefused, RestartFromCheckpoint, Retryable
from kafka_eos.core.limits import LIMITS

SPARE: Final = 1
"""Producers kept warm beyond the one in use, at first."""
WARMERS: Final = 4
"""Threads that start producers."""
MAX_SLOTS: Final = 64
"""Transactions that may wait for their receipts; more means that nobody finishes epochs."""
_INIT_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 0.5
"""Pause before a producer that did not come up is started anew."""
_LISTEN_SECONDS: Final = 1.0
"""Pause between two polls of the producers that nobody uses."""
_STATISTICS_MS = 100
"""Often, because the identity of a producer that starts is in them."""
_SELDOM = 10
"""Of so many statistics one is read once the identity is known: a second is soon enough to miss the brokers."""


class _Told:
    """What librdkafka told of one producer through its callbacks.

    Apart from ``Warm``: callbacks that knew the producer would keep it alive until the garbage collector comes by.
    """

    def __init__(self) -> None:
        self.producer_id = self.producer_epoch = -1
        self.failures: list[str] = []
        self.refused = ""
        """Why a broker does not let this client in, if one has not."""
        self.purged = False
        self._brokers = BrokerWatch()
        self._told = 0

    def learn(self, statistics: str) -> None:
        self._told += 1
        if self.producer_id >= 0 and self._told % _SELDOM:
            return
        known = json.loads(statistics)
        self._brokers.learn(known)
        if self._brokers.forgotten:
            self._fail("the client has forgotten every broker and will not find one again")
        # The identity is fixed for this instance: it carries one transaction and never bumps its epoch.
        if self.producer_id < 0:
            identity = known.get("eos", {})
            self.producer_epoch = identity.get("producer_epoch", -1)
            self.producer_id = identity.get("producer_id", -1)

    def failed(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.purged = self.purged or purged(error)
            self._fail(undelivered(error, message))

    def error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fail(error.str())
        elif not_let_in(error):
            self.refused = error.str()

    def _fail(self, reason: str) -> None:
        if len(self.failures) < 5 and reason not in self.failures:
            self.failures.append(reason)


class Warm:
    """A producer that can begin its one transaction. Its identity comes from librdkafka's own statistics."""

    def __init__(self, transactional_id: str, slot: int, config: Mapping[str, Any]) -> None:
        self.transactional_id, self.slot = transactional_id, slot
        self._where = Cluster(config["bootstrap.servers"], config)
        self._told = told = _Told()
        self.producer = Producer(
            {
                **config,
                "transactional.id": transactional_id,
                "statistics.interval.ms": _STATISTICS_MS,
                "stats_cb": told.learn,
                "on_delivery": told.failed,
                "error_cb": told.error,
                "delivery.report.only.error": True,
            }
        )

    @property
    def producer_id(self) -> int:
        """-1 before ``init``."""
        return self._told.producer_id

    @property
    def producer_epoch(self) -> int:
        return self._told.producer_epoch

    @property
    def failures(self) -> list[str]:
        """One line a failed delivery or fatal error, the first few."""
        return self._told.failures

    def needing(self, *rights: Right) -> Explain:
        """What to say of an answer that something is not allowed, which takes these rights and that to the id."""
        needed = (Right(Operation.WRITE, Kind.TRANSACTIONAL_ID, self.transactional_id), *rights)
        return lambda code: lacking(self._where, needed, code)

    def expect_welcome(self) -> None:
        """LoginRefused if a broker does not let this client in: it has the secrets of when it was made."""
        if self._told.refused:
            raise LoginRefused(f"{self.transactional_id}: {self._told.refused}")

    def expect_unrefused(self, topics: Collection[str]) -> None:
        """ConfigError if records were thrown away because the user may not write to one of these topics.

        Asks the client alone: to begin a transaction that has begun has no effect, and of one that has failed it says
        why.
        """
        if not self._told.purged:
            return
        with suppress(RestartFromCheckpoint, Retryable), kafka_errors("write", self.needing(*map(writes, topics))):
            self.producer.begin_transaction()

    def init(self, seconds: float) -> None:
        """Get a producer id and epoch, fencing whoever had this id before. RestartFromCheckpoint if it cannot."""
        until_done(self.producer.init_transactions, seconds, "init_transactions", self.expect_welcome, self.needing())
        deadline = time.monotonic() + seconds
        while self.producer_id < 0:
            self.producer.poll(_STATISTICS_MS / 1000)
            if time.monotonic() > deadline:
                raise RestartFromCheckpoint(f"{self.transactional_id}: no producer id in the statistics")

    def begin(self) -> None:
        with kafka_errors("begin_transaction"):
            self.producer.begin_transaction()


class Slots:
    """The numbers of slots, for all pools whose transactional ids differ in nothing else."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def new(self) -> int:
        """A number that no other slot has."""
        return next(self._numbers)


class WarmPool:
    """Hands out warm producers; threads keep some ready. Call from one thread."""

    def __init__(
        self,
        name: Callable[[int], str],
        slots: Callable[[], int],
        config: Callable[[], Mapping[str, Any]],
        patience: float = _INIT_SECONDS,
        most: int = MAX_SLOTS,
    ) -> None:
        """``config``: of a producer that is made now, with the secrets of now.

        ``patience``: seconds after which a producer that has not come up is started anew; ``most``: slots."""
        self._most = most
        self._name, self._new_slot, self._config, self._patience = name, slots, config, patience
        self._ready: queue.Queue[Warm | KafkaEosError] = queue.Queue()
        self._resting: weakref.WeakSet[Warm] = weakref.WeakSet()
        self._orders: queue.SimpleQueue[int | Warm | None] = queue.SimpleQueue()
        self._free: list[int] = []
        self._slots, self._spares = 0, SPARE
        self._closed = threading.Event()
        self._trouble = ""
        for _ in range(WARMERS):
            threading.Thread(target=self._warm_up, name="kafka-warm-up", daemon=True).start()
        threading.Thread(target=self._listen, name="kafka-listen", daemon=True).start()
        for _ in range(SPARE + 1):
            self._order()

    def take(self, seconds: float) -> Warm:
        """The next warm producer. RestartFromCheckpoint if none comes in time, ConfigError if none ever can."""
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

    def rest(self, used: Warm) -> None:
        """The transaction of ``used`` is prepared: nobody polls it any more. May be called from any thread."""
        with self._ready.mutex:
            self._resting.add(used)

    def release(self, used: Warm) -> None:
        """The transaction of ``used`` is finished for good: its slot may serve again."""
        self.retire(used)
        self.free(used.slot)

    def retire(self, used: Warm) -> None:
        """The transaction of ``used`` is prepared and needs no client any more: the producer goes, its slot stays."""
        self._orders.put(used)

    def free(self, slot: int) -> None:
        """What used ``slot`` is finished for good."""
        self._free.append(slot)

    def close(self) -> None:
        """No producer starts after this."""
        self._closed.set()
        for _ in range(WARMERS):
            self._orders.put(None)

    def _listen(self) -> None:
        while not self._closed.wait(_LISTEN_SECONDS):
            self._poll_unused()

    def _poll_unused(self) -> None:
        """Under the lock of the queue, so nobody takes a producer meanwhile."""
        with self._ready.mutex:
            unused = [*self._ready.queue, *self._resting]  # outlives the lock: the last reference takes time to go
            for found in unused:
                if isinstance(found, Warm):
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
            if isinstance(order, Warm):
                # Dropping the last reference destroys the client here, off the hot path, and sends nothing.
                del order
                continue
            try:
                warm = self._started(order)
            except KafkaEosError as error:
                self._ready.put(error)
            except Exception as error:  # noqa: BLE001 - reported to whoever takes the next producer
                self._ready.put(RestartFromCheckpoint(f"a transactional producer could not start: {error}"))
            else:
                if warm is not None:
                    self._ready.put(warm)
                del warm

    def _started(self, slot: int) -> Warm | None:
        """A warm producer, however long the brokers are away; None once the pool is closed."""
        while not self._closed.is_set():
            warm = None
            try:
                warm = Warm(self._name(slot), slot, self._config())
                warm.init(self._patience)
                return warm
            except (RestartFromCheckpoint, Retryable) as error:
                self._trouble = str(error)
            del warm
            self._closed.wait(_RETRY_SECONDS)
        return None
