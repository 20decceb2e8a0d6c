"""The search for outputs that a broker refuses, such as those that break a schema rule of the broker.

A refused record fails its batch, and the batch its transaction. Often the report names no record. So once a record of a
topic was refused, the writers of this process try out the rows for this topic before they write them, for some minutes
of the next attempt. An exactly-once writer does so in a transaction that it aborts. All refused rows of an epoch thus
cost one attempt.

Rule: a row is rejected only if the broker has refused it while it was sent alone.

A crash may leave such a transaction open: no manifest names it, so the next start aborts it. It also forgets which
topics have refused a record, which costs one more attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from kafka_eos.connectors.kafka.client.librdkafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    is_refusal,
    map_errors,
    too_large,
    until_done,
)
from kafka_eos.connectors.kafka.sink.producer_pool import ProducerPool, WarmProducer
from kafka_eos.connectors.kafka.sink.record_senders import Row
from kafka_eos.core.errors import EnvironmentFailed, RestartFromCheckpoint

_POLL_SECONDS: Final = 0.05
_SEARCH_SECONDS: Final = 60.0
"""The longest search in one batch: a worker that took longer would count as hung (``worker_timeout``)."""


class RefusalSearch:
    """The search of one writer, or of the writers that share transactions.

    ``scope``: the cluster and user. ``is_refused``: sends rows to a topic, and returns whether the broker refused one.
    """

    def __init__(self, scope: str, is_refused: Callable[[str, Sequence[Row]], bool]) -> None:
        self._scope, self._is_refused = scope, is_refused

    def find_refused(self, topic: str, rows: Iterable[Row]) -> frozenset[int]:
        """Return the indices of the refused rows. Nothing is sent unless the topic has refused a record lately."""
        if not _is_doubted(self._scope, topic):
            return frozenset()
        tried = list(rows)
        if not tried or not self._is_refused(topic, tried):
            return frozenset()
        record_refusals(self._scope, [topic])
        found, deadline = set[int](), time.monotonic() + _SEARCH_SECONDS
        for index in self._halve(topic, tried):
            found.add(index)
            if time.monotonic() > deadline:
                raise EnvironmentFailed(
                    f"brokers refuse many outputs for the topic {topic}: {len(found):,} of a batch of {len(tried):,} "
                    f"were found in {_SEARCH_SECONDS:g} s. Look for the rule in the broker's log. If it is right, "
                    "lower batch_size: then fewer outputs are tried out at a time"
                )
        return frozenset(found)

    def _halve(self, topic: str, rows: Sequence[Row]) -> Iterator[int]:
        """Yield the refused rows of a group with at least one; none if only several together are refused."""
        if len(rows) == 1:
            yield rows[0][0]
            return
        middle = len(rows) // 2
        for half in (rows[:middle], rows[middle:]):
            if self._is_refused(topic, half):
                yield from self._halve(topic, half)


class AbortedTryOut:
    """Sends rows in transactions that are aborted, with producers of the pool.

    ``seconds``: the longest time for the delivery of the rows.
    """

    def __init__(self, pool: ProducerPool, seconds: float) -> None:
        self._pool, self._seconds = pool, seconds
        self._idle: WarmProducer | None = None

    def __call__(self, topic: str, rows: Sequence[Row]) -> bool:
        """Return whether the broker refused a row. No transaction is open afterwards."""
        warm, self._idle = self._idle or self._pool.acquire(self._seconds), None
        failures = None
        try:
            self._pool.stop_polling(warm)
            warm.begin()
            failures = send(warm.producer, self._seconds, warm.ensure_login, topic, rows)
            until_done(warm.producer.abort_transaction, self._seconds, "abort_transaction", warm.ensure_login)
        finally:
            if failures == []:
                self._idle = warm
                self._pool.poll_idle(warm)
            else:  # librdkafka leaves a gap in its sequence, and takes half a second to begin a new one
                self._pool.release(warm)
        if failures and not any(map(is_refusal, failures)):
            raise RestartFromCheckpoint(
                f"records for {topic} were not delivered in a test transaction: {failures[0].str()}"
            )
        return bool(failures)

    def close(self) -> None:
        """Release the producer. May be called repeatedly."""
        warm, self._idle = self._idle, None
        if warm is not None:
            self._pool.release(warm)


def send(
    producer: Producer, seconds: float, check: Callable[[], None], topic: str, rows: Sequence[Row]
) -> list[KafkaError]:
    """Send rows after all earlier ones, and wait until they are acknowledged or one has failed. Return the errors.

    Rows that the client does not accept are skipped. Raises RestartFromCheckpoint after ``seconds``.
    """
    failures: list[KafkaError] = []
    deadline = time.monotonic() + seconds

    def poll(wait: float) -> None:
        producer.poll(wait)
        check()
        if time.monotonic() > deadline:
            raise RestartFromCheckpoint(f"records for {topic} were not acknowledged in {seconds:g} s")

    with map_errors(f"produce to {topic}"):
        while len(producer):  # a refused row would fail earlier rows in its batch
            poll(_POLL_SECONDS)
        for _, row in rows:
            if failures or not _produce(producer, topic, row, partial(_report, failures), poll):
                break
        while len(producer) and not failures:
            poll(_POLL_SECONDS)
    return failures


def _report(failures: list[KafkaError], error: KafkaError | None, message: Message) -> None:
    if error is not None:
        failures.append(error)


def _produce(
    producer: Producer,
    topic: str,
    row: tuple[Any, ...],
    report: Callable[[KafkaError | None, Message], None],
    poll: Callable[[float], None],
) -> bool:
    """Pass a row to the client; wait while its queue is full. Return False if the transaction has failed."""
    value, key, at, headers, place = row
    while True:
        try:
            producer.produce(topic, value, key, place, report, None, at, headers)
        except BufferError:
            poll(_POLL_SECONDS)
        except (TypeError, ValueError, OverflowError):
            return True
        except KafkaException as error:
            if not too_large(error.args[0]) and error.args[0].code() != KafkaError._STATE:
                raise
            return too_large(error.args[0])
        else:
            return True


# ---------------------------------------------------------------- topics of which a record was refused


_DOUBTED_SECONDS: Final = 900.0
"""Seconds for which the rows for a topic are tried out after a refusal. By default no epoch takes longer, because of
the transaction timeout."""
_DOUBTS: Final[dict[tuple[str, str], float | None]] = {}
"""By scope and topic: since when, by the monotonic clock, rows have been tried out after the last refusal; None before
the first one. It outlives the attempt, and the next one may take any time to restore."""


def record_refusals(scope: str, topics: Iterable[str]) -> None:
    """Record that a record of each of these topics was refused just now. Thread-safe."""
    _DOUBTS.update({(scope, topic): None for topic in topics})


def _is_doubted(scope: str, topic: str) -> bool:
    """Return whether rows for the topic must be tried out now."""
    if (scope, topic) not in _DOUBTS:
        return False
    now = time.monotonic()
    since = _DOUBTS[scope, topic] = _DOUBTS[scope, topic] or now
    return now < since + _DOUBTED_SECONDS
