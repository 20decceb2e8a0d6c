"""Reads the assigned partitions of a topic, committed records only.

Rule: a position moves past a record only when ``poll`` has returned it, and past the control records at the end
of a partition when librdkafka reports the end; nothing else moves it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from kafka_eos.connectors.kafka.client import (
    EOF,
    BrokerWatch,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
    consumed,
    kafka_errors,
    mapped,
    not_let_in,
)
from kafka_eos.connectors.kafka.credentials import texts
from kafka_eos.connectors.kafka.decoding import Columns, Reject, decoded
from kafka_eos.connectors.kafka.positions import moved, offset_of, partition_of, split_id
from kafka_eos.connectors.kafka.rights import Kind, Operation, Right, lacking, reads
from kafka_eos.connectors.kafka.settings import Cluster
from kafka_eos.errors import Retryable
from kafka_eos.ids import SplitId
from kafka_eos.interfaces import Position, Positions, total_lag
from kafka_eos.records import Batch

T = TypeVar("T")

_STATISTICS_MS = 1_000
"""Seldom: librdkafka keeps them, some 10 KB each, while nobody polls: until the last worker has restored its state, and
while there is no room for more rows. An hour of that takes 36 MB."""
_offset: Callable[[Message], int] = Message.offset  # type: ignore[assignment]
_partition: Callable[[Message], int] = Message.partition  # type: ignore[assignment]
_error = Message.error


class _Client:
    """A consumer that is replaced by a new one when it has forgotten every broker, or its secrets were changed."""

    def __init__(self, settings: Callable[[], Mapping[str, Any]]) -> None:
        config = settings()
        self._brokers = brokers = BrokerWatch()
        self._refusals: list[KafkaError] = []
        # The callbacks must not know the consumer: each would keep the other alive.
        told = {
            "statistics.interval.ms": _STATISTICS_MS,
            "stats_cb": lambda statistics: brokers.learn(json.loads(statistics)),
            "error_cb": partial(_keep_refusal, self._refusals),
        }
        self._settings, self._secrets = settings, texts(config)
        with kafka_errors("consumer"):
            self.consumer = Consumer({**config, **told})

    @property
    def lost(self) -> bool:
        return self._brokers.forgotten

    def refusal(self) -> KafkaError | None:
        """Why brokers do not let this consumer in, if they do not: it asks them for ever, and returns no records.

        Told once.
        """
        return self._refusals.pop() if self._refusals else None

    def outdated(self) -> bool:
        """Are the secrets others by now?"""
        with suppress(Retryable):  # a file is being written
            return texts(self._settings()) != self._secrets
        return False

    def successor(self) -> _Client:
        self.consumer.close()
        return _Client(self._settings)


def _keep_refusal(found: list[KafkaError], error: KafkaError) -> None:
    if not_let_in(error):
        found[:] = [error]


class KafkaReader(Generic[T]):
    """One consumer over the partitions of one subtask. Not thread-safe."""

    def __init__(
        self,
        config: Callable[[], Mapping[str, Any]],
        source: str,
        topic: str,
        positions: Positions,
        columns: Columns,
        reject: Reject,
    ) -> None:
        """``config``: of a consumer that is made now, with the secrets of now."""
        self._client, self._source, self._topic = _Client(config), source, topic
        asked = config()
        needed = reads(topic), Right(Operation.READ, Kind.GROUP, asked["group.id"])
        self._explain = partial(lacking, Cluster(asked["bootstrap.servers"], asked), needed)
        self._columns, self._reject = columns, reject
        self._next: dict[int, int] = {}
        self._given: dict[int, Position] = {}
        self._paused: frozenset[int] = frozenset()
        self._at_end: set[int] = set()
        self.assign(positions)

    def assign(self, positions: Positions) -> None:
        added = {partition_of(split): at for split, at in positions.items()}
        self._next.update({p: offset_of(at) for p, at in added.items()})
        self._given.update(added)
        self._fetch_from({p: offset_of(at) for p, at in added.items()})

    def _fetch_from(self, offsets: Mapping[int, int]) -> None:
        with kafka_errors(f"assign {self._topic}"):
            self._client.consumer.incremental_assign([TopicPartition(self._topic, p, o) for p, o in offsets.items()])

    def poll(self, max_records: int, timeout: float) -> Batch[T] | None:
        if self._client.lost or self._is_outdated():
            # What the old consumer had buffered is fetched again: nothing was returned of it.
            self._client = self._client.successor()
            self._fetch_from(self._next)
            self._switch(self._client.consumer.pause, self._paused)
        messages, ends = self._fetch(max_records, timeout)
        batch = self._decoded(messages)
        # Only now: had a record been refused, nothing may have moved.
        for partition, end in ends.items():
            self._next[partition] = max(end, self._next.get(partition, end))
        return batch

    def _is_outdated(self) -> bool:
        """Whether the consumer is to be replaced; raises LoginRefused if another one would not be let in either."""
        refusal = self._client.refusal()
        if refusal is None:
            return False
        if self._client.outdated():
            return True
        raise mapped(refusal, f"read {self._topic}", self._explain)

    def _decoded(self, messages: Sequence[Message]) -> Batch[T] | None:
        batch: Batch[T] = decoded(self._source, self._topic, messages, self._columns, self._reject)
        # The dict keeps the last offset of each partition: records of one partition arrive in order.
        for partition, offset in dict(zip(batch.origin.partitions, batch.origin.offsets, strict=True)).items():
            self._next[partition] = offset + 1
        return batch if batch.values else None

    def _fetch(self, max_records: int, timeout: float) -> tuple[list[Message], Mapping[int, int]]:
        """Records, and by partition the end that was reached."""
        # consume() with a timeout waits for all max_records; so take what is there, else wait for the first.
        consume = self._client.consumer.consume
        with kafka_errors(f"read {self._topic}"):
            messages: list[Message] = consume(max_records, 0)
            if not messages:
                messages = consume(1, timeout) + consume(max_records - 1, 0)
        if any(map(_error, messages)):
            return self._sorted_out(messages)
        if self._at_end:
            self._at_end.difference_update(map(_partition, messages))
        return messages, {}

    def _sorted_out(self, messages: Sequence[Message]) -> tuple[list[Message], Mapping[int, int]]:
        """Take out what came in place of records. The end of a partition lies past its control records."""
        records: list[Message] = []
        ends: dict[int, int] = {}
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                self._at_end.discard(_partition(message))
            elif error.code() == EOF:
                ends[_partition(message)] = _offset(message)
                self._at_end.add(_partition(message))
            elif (problem := consumed(error, self._place(message), self._explain)) is not None:
                raise problem
        return records, ends

    def _place(self, message: Message) -> str:
        """Where an error arose: its own offset if it has one, else where the reader goes on."""
        if message.topic() is None:  # of the client itself, as when its group is refused
            return f"read {self._topic}"
        partition, offset = _partition(message), message.offset()
        at = self._next.get(partition) if offset is None else offset
        return f"read {self._topic}/{partition} at offset {at}"

    def positions(self) -> Positions:
        return {split_id(self._topic, p): moved(self._given[p], o) for p, o in self._next.items()}

    def pause(self, splits: Collection[SplitId]) -> None:
        paused = frozenset(map(partition_of, splits))
        self._switch(self._client.consumer.resume, self._paused - paused)
        self._switch(self._client.consumer.pause, paused - self._paused)
        self._paused = paused

    def _switch(self, how: Callable[[list[TopicPartition]], None], partitions: Collection[int]) -> None:
        if partitions:
            with kafka_errors(f"pause and resume {self._topic}"):
                how([TopicPartition(self._topic, partition) for partition in partitions])

    def at_end(self) -> Collection[SplitId]:
        return [split_id(self._topic, partition) for partition in self._at_end]

    def lag(self) -> int | None:
        return total_lag(self.lags().values())

    def lags(self) -> Mapping[SplitId, int | None]:
        # Only a fetch tells an end, and of what is paused nothing is fetched.
        return {
            split_id(self._topic, partition): None if partition in self._paused else self._behind(partition, offset)
            for partition, offset in self._next.items()
        }

    def _behind(self, partition: int, offset: int) -> int | None:
        """Records from ``offset`` to the end that the last fetch told; it is negative before the first."""
        at = TopicPartition(self._topic, partition)
        with kafka_errors(f"lag of {self._topic}"):
            known: tuple[int, int] | None = self._client.consumer.get_watermark_offsets(at, cached=True)
        return max(0, known[1] - offset) if known and known[1] >= 0 else None

    def reached(self, ends: Positions) -> bool:
        wanted = {partition_of(split): offset_of(at) for split, at in ends.items()}
        # A partition that was added after the start is in ``ends`` before it is assigned.
        return all(p in self._next and self._next[p] >= end for p, end in wanted.items())

    def close(self) -> None:
        self._client.consumer.close()
