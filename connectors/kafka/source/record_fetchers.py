"""One consumer and the records that it fetches, as columns by topic, with the errors between them.

Two fetchers behave in the same way: one of confluent_kafka's messages, and one of the batches of ``kafka_eos_native``,
which is used where it can be. Rule: every error that the client returns in place of a record is returned, none dropped.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from kafka_eos.connectors.kafka.client.librdkafka import Consumer, KafkaError, Message, TopicPartition
from kafka_eos.connectors.kafka.client.native_module import NativeModule, load_native_module
from kafka_eos.connectors.kafka.source.fetched_records import FetchedRecords, MessageRecords, NativeRecords
from kafka_eos.core.errors import Bug, RestartFromCheckpoint

Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""

_SERVED: Final = 0.1
"""Seconds after which a fetcher that waits for records calls the client's callbacks."""
_EVENTS: Final = 100
"""The most errors that are taken from the client at once."""


class FetchFailure(NamedTuple):
    """An error in place of a record, or the end of a partition. An error of the client itself has no topic."""

    error: KafkaError
    topic: str | None
    partition: int
    offset: int | None

    @property
    def place(self) -> Place:
        return str(self.topic), self.partition


class FetchResult(NamedTuple):
    """The records of one fetch, and the errors between them."""

    records: Sequence[FetchedRecords]
    failures: Sequence[FetchFailure] = ()


class RecordFetcher(ABC):
    """A consumer that fetches records in columns. Not thread-safe."""

    consumer: Consumer

    @abstractmethod
    def assign(self, wanted: Sequence[TopicPartition]) -> None:
        """Add partitions, to be read from their offsets. Raises the client's errors."""

    @abstractmethod
    def unassign(self, place: Place) -> None:
        """Remove a partition. Raises the client's errors."""

    @abstractmethod
    def fetch(self, most: int, timeout: float) -> FetchResult:
        """Return the records that are there; if there are none, wait for the first. Raises the client's errors."""

    @abstractmethod
    def close(self) -> None:
        """Close the consumer."""


def open_fetcher(config: Mapping[str, Any]) -> RecordFetcher:
    """Open a consumer. Raises the client's errors."""
    native = load_native_module()
    return MessageFetcher(config) if native.module is None else NativeFetcher(config, native)


class MessageFetcher(RecordFetcher):
    """A fetcher of confluent_kafka's messages."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.consumer = Consumer({**config})
        self._topics: set[str] = set()

    def assign(self, wanted: Sequence[TopicPartition]) -> None:
        self._topics.update(each.topic for each in wanted)
        self.consumer.incremental_assign(list(wanted))

    def unassign(self, place: Place) -> None:
        self.consumer.incremental_unassign([TopicPartition(*place)])

    def fetch(self, most: int, timeout: float) -> FetchResult:
        # consume() with a timeout waits for all records; so take what is available, else wait for the first.
        consume = self.consumer.consume
        messages: list[Message] = consume(most, 0)
        if not messages:
            messages = consume(1, timeout) + consume(most - 1, 0)
        failures: list[FetchFailure] = []
        if any(map(Message.error, messages)):
            failures = list(filter(None, map(_failure, messages)))
            messages = [message for message in messages if message.error() is None]
        by_topic: dict[str, list[Message]] = defaultdict(list)
        if len(self._topics) == 1:
            (topic,) = self._topics
            by_topic[topic] = messages
        else:
            for message in messages:
                by_topic[str(message.topic())].append(message)
        return FetchResult([MessageRecords(topic, some) for topic, some in by_topic.items() if some], failures)

    def close(self) -> None:
        self.consumer.close()


class NativeFetcher(RecordFetcher):
    """A fetcher of the batches of ``kafka_eos_native``.

    Partitions are forwarded to a queue of the module before they are assigned. The consumer's own queue is left with
    callbacks and errors.
    """

    def __init__(self, config: Mapping[str, Any], native: NativeModule) -> None:
        self.consumer = Consumer(native.add_plugin(config))
        self._unpack = native.module.unpack_headers
        self._queue = native.module.take_queue()
        if self._queue is None:
            raise Bug("librdkafka has created a consumer without its plugin")

    def assign(self, wanted: Sequence[TopicPartition]) -> None:
        for each in wanted:
            self._queue.forward(each.topic, each.partition)
        self.consumer.incremental_assign(list(wanted))

    def unassign(self, place: Place) -> None:
        self._queue.forget(*place)
        self.consumer.incremental_unassign([TopicPartition(*place)])

    def fetch(self, most: int, timeout: float) -> FetchResult:
        deadline = time.monotonic() + timeout
        while True:
            failures = self._serve()
            left = 0.0 if failures else max(0.0, deadline - time.monotonic())
            batches, failed = self._queue.consume(most, math.ceil(min(left, _SERVED) * 1000))
            failures += [
                FetchFailure(KafkaError(code, text), topic, partition, offset if offset >= 0 else None)
                for code, text, topic, partition, offset in failed
            ]
            if batches or failures or time.monotonic() >= deadline:
                return FetchResult([NativeRecords.of(self._unpack, batch) for batch in batches], failures)

    def _serve(self) -> list[FetchFailure]:
        """Call the client's callbacks, and return its errors."""
        failures: list[FetchFailure] = []
        for message in self.consumer.consume(_EVENTS, 0):
            failure = _failure(message)
            if failure is None:  # its order among the records of the partition is unknown
                raise RestartFromCheckpoint(
                    f"{message.topic()}/{message.partition()}: the client has returned a record outside its queue"
                )
            failures.append(failure)
        return failures

    def close(self) -> None:
        self._queue.close()
        self.consumer.close()


def _failure(message: Message) -> FetchFailure | None:
    error = message.error()
    if error is None:
        return None
    return FetchFailure(error, message.topic(), message.partition() or 0, message.offset())
