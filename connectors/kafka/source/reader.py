"""Reads the assigned partitions of its topics, committed records only.

Rule: a position moves past a record only when ``poll`` has returned it, or it is left out by the source's filter, and
past the control records at the end of a partition when librdkafka reports the end; nothing else moves it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from kafka_eos.abc.source import total_lag
from kafka_eos.connectors.kafka.client.access_rights import Kind, Operation, Right, lacking, reads
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.credentials import texts
from kafka_eos.connectors.kafka.client.librdkafka import (
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
from kafka_eos.connectors.kafka.source.decoding import Decoding, Reject
from kafka_eos.connectors.kafka.source.positions import moved, offset_of, partition_of, split_id, topic_of, until_of
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Position, Positions
from kafka_eos.core.records import Batch

T = TypeVar("T")
Place: TypeAlias = tuple[str, int]
"""Topic and partition."""

_STATISTICS_MS = 1_000
"""Seldom: librdkafka keeps them, some 10 KB each, while nobody polls: until the last worker has restored its state, and
while there is no room for more rows. An hour of that takes 36 MB."""
_offset: Callable[[Message], int] = Message.offset  # type: ignore[assignment]
_partition: Callable[[Message], int] = Message.partition  # type: ignore[assignment]
_topic: Callable[[Message], str] = Message.topic  # type: ignore[assignment]
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
        what: str,
        positions: Positions,
        decoding: Decoding,
        reject: Reject,
        left_out: Callable[[int], None],
        is_let_go: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """``config``: of a consumer that is made now, with the secrets of now.

        ``what`` is read, for people. Of a topic that ``is_let_go`` nothing is read: its positions stay.
        """
        self._client, self._source, self._what = _Client(config), source, what
        self._decoding, self._reject, self._left_out, self._is_let_go = decoding, reject, left_out, is_let_go
        asked = config()
        self._cluster = Cluster(asked["bootstrap.servers"], asked)
        self._group = Right(Operation.READ, Kind.GROUP, asked["group.id"])
        self._next: dict[Place, int] = {}
        self._given: dict[Place, Position] = {}
        self._until: dict[Place, int] = {}
        self._over: set[Place] = set()
        """Partitions that are read to their end for good, and topics that were let go: the client has them no more."""
        self._paused: frozenset[Place] = frozenset()
        self._at_end: set[Place] = set()
        self._fetched: list[list[Message]] = []
        """Records that are to be returned, of one topic each: a batch is of one topic."""
        self._ends: dict[Place, int] = {}
        """Ends of partitions behind them."""
        self.assign(positions)

    def assign(self, positions: Positions) -> None:
        added = {_place(split): at for split, at in positions.items()}
        self._given.update(added)
        self._next.update({place: offset_of(at) for place, at in added.items()})
        self._until.update({place: until for place, at in added.items() if (until := until_of(at)) is not None})
        self._over.update(place for place in added if self._is_over(place))
        topics = {topic for topic, _ in self._next}
        self._topic = topics.pop() if len(topics) == 1 else None
        """The only one, if there is one."""
        self._fetch_from(added)

    def _is_over(self, place: Place) -> bool:
        until = self._until.get(place)
        return self._is_let_go(place[0]) or (until is not None and self._next[place] >= until)

    def _fetch_from(self, places: Iterable[Place]) -> None:
        wanted = [TopicPartition(*place, self._next[place]) for place in places if place not in self._over]
        if wanted:
            with kafka_errors(f"assign {self._what}"):
                self._client.consumer.incremental_assign(wanted)

    def poll(self, max_records: int, timeout: float) -> Batch[T] | None:
        if self._client.lost or self._is_outdated():
            # What the old consumer had buffered is fetched again: nothing was returned of it.
            self._client = self._client.successor()
            self._fetched, self._ends = [], {}
            self._fetch_from(self._next)
            self._switch(self._client.consumer.pause, self._paused)
        messages = self._next_of_one_topic(max_records)
        if not messages:
            self._fetch(max_records, timeout)
            messages = self._next_of_one_topic(max_records)
        batch = self._decoded(messages) if messages else None
        # Only now: had a record been refused, nothing may have moved.
        self._settle()
        return batch

    def _is_outdated(self) -> bool:
        """Whether the consumer is to be replaced; raises LoginRefused if another one would not be let in either."""
        refusal = self._client.refusal()
        if refusal is None:
            return False
        if self._client.outdated():
            return True
        raise mapped(refusal, f"read {self._what}", partial(self._rights, None))

    def _next_of_one_topic(self, most: int) -> list[Message]:
        """The next records that may be returned; those of partitions that are paused stay."""
        for index, messages in enumerate(self._fetched):
            if not self._paused and len(messages) <= most:
                return self._fetched.pop(index)
            free = [at for at, message in enumerate(messages) if _place_of(message) not in self._paused][:most]
            if free:
                taken = frozenset(free)
                left = [message for at, message in enumerate(messages) if at not in taken]
                self._fetched[index : index + 1] = [left] if left else []
                return [messages[at] for at in free]
        return []

    def _decoded(self, messages: list[Message]) -> Batch[T] | None:
        topic = _topic(messages[0])
        batch: Batch[T]
        try:
            batch, left_out = self._decoding.batch(self._source, topic, messages, self._reject)
        except BaseException:
            self._fetched.insert(0, messages)
            raise
        if left_out:
            self._left_out(left_out)
        # The dict keeps the last offset of each partition: records of one partition arrive in order.
        for partition, offset in dict(zip(batch.origin.partitions, batch.origin.offsets, strict=True)).items():
            self._next[topic, partition] = offset + 1
        return batch if batch.values else None

    def _settle(self) -> None:
        """Move past the ends of partitions of which everything before has been returned."""
        if not self._ends:
            return
        waiting = {_place_of(message) for messages in self._fetched for message in messages}
        for place in self._ends.keys() - waiting:
            self._next[place] = max(self._ends.pop(place), self._next[place])
            if place not in self._over and self._is_over(place):
                self._over.add(place)
                with kafka_errors(f"end {self._what}"):
                    self._client.consumer.incremental_unassign([TopicPartition(*place)])

    def _fetch(self, max_records: int, timeout: float) -> None:
        """More records, and the ends that were reached."""
        # consume() with a timeout waits for all max_records; so take what is there, else wait for the first.
        consume = self._client.consumer.consume
        with kafka_errors(f"read {self._what}"):
            messages: list[Message] = consume(max_records, 0)
            if not messages:
                messages = consume(1, timeout) + consume(max_records - 1, 0)
        if any(map(_error, messages)):
            messages = self._sorted_out(messages)
        elif self._at_end:
            self._at_end.difference_update(zip(map(_topic, messages), map(_partition, messages), strict=True))
        if self._until:
            messages = self._before_the_end(messages)
        # What the client had handed out before it was told to pause: it stays here, and is not asked for again.
        by_topic: dict[str, list[Message]] = defaultdict(list)
        if self._topic is not None:
            by_topic[self._topic] = messages
        else:
            for message in messages:
                by_topic[_topic(message)].append(message)
        self._fetched += [each for each in by_topic.values() if each]

    def _before_the_end(self, messages: Sequence[Message]) -> list[Message]:
        """Without records behind the end of a partition, which is reached when the first of them comes."""
        kept: list[Message] = []
        for message in messages:
            place = _place_of(message)
            until = self._until.get(place)
            if until is None or _offset(message) < until:
                kept.append(message)
                if until is not None and _offset(message) == until - 1:
                    self._ends[place] = until
            else:
                self._ends[place] = until
        for place, end in self._ends.items():
            self._ends[place] = min(end, self._until.get(place, end))
        return kept

    def _sorted_out(self, messages: Sequence[Message]) -> list[Message]:
        """Take out what came in place of records. The end of a partition lies past its control records."""
        records: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                self._at_end.discard(_place_of(message))
            elif error.code() == EOF:
                self._ends[_place_of(message)] = _offset(message)
                self._at_end.add(_place_of(message))
            elif (problem := consumed(error, self._where(message), partial(self._rights, message.topic()))) is not None:
                raise problem
        return records

    def _rights(self, topic: str | None, code: int) -> str:
        """What to tell a user who lacks a right to read on: of a topic, or of the group if it is of none."""
        return lacking(self._cluster, [self._group, *([] if topic is None else [reads(topic)])], code)

    def _where(self, message: Message) -> str:
        """Where an error arose: its own offset if it has one, else where the reader goes on."""
        if message.topic() is None:  # of the client itself, as when its group is refused
            return f"read {self._what}"
        place, offset = _place_of(message), message.offset()
        at = self._next.get(place) if offset is None else offset
        return f"read {place[0]}/{place[1]} at offset {at}"

    def positions(self) -> Positions:
        return {split_id(*place): moved(self._given[place], offset) for place, offset in self._next.items()}

    def pause(self, splits: Collection[SplitId]) -> None:
        paused = frozenset(map(_place, splits))
        self._switch(self._client.consumer.resume, self._paused - paused)
        self._switch(self._client.consumer.pause, paused - self._paused)
        self._paused = paused

    def _switch(self, how: Callable[[list[TopicPartition]], None], places: Collection[Place]) -> None:
        if wanted := [TopicPartition(*place) for place in places if place not in self._over]:
            with kafka_errors(f"pause and resume {self._what}"):
                how(wanted)

    def at_end(self) -> Collection[SplitId]:
        waiting = {_place_of(message) for messages in self._fetched for message in messages}
        return [split_id(*place) for place in (self._at_end | self._over) - waiting]

    def lag(self) -> int | None:
        return total_lag(self.lags().values())

    def lags(self) -> Mapping[SplitId, int | None]:
        # Only a fetch tells an end, and of what is paused nothing is fetched.
        return {
            split_id(*place): 0 if place in self._over else None if place in self._paused else self._behind(place, at)
            for place, at in self._next.items()
        }

    def _behind(self, place: Place, offset: int) -> int | None:
        """Records from ``offset`` to the end that the last fetch told; it is negative before the first."""
        with kafka_errors(f"lag of {self._what}"):
            known: tuple[int, int] | None = self._client.consumer.get_watermark_offsets(
                TopicPartition(*place), cached=True
            )
        if not known or known[1] < 0:
            return None
        return max(0, min(known[1], self._until.get(place, known[1])) - offset)

    def reached(self, ends: Positions) -> bool:
        wanted = {_place(split): offset_of(at) for split, at in ends.items()}
        # A partition that was added after the start is in ``ends`` before it is assigned.
        return all(place in self._next and self._next[place] >= end for place, end in wanted.items())

    def close(self) -> None:
        self._client.consumer.close()


def _place(split: SplitId) -> Place:
    return topic_of(split), partition_of(split)


def _place_of(message: Message) -> Place:
    return _topic(message), _partition(message)
