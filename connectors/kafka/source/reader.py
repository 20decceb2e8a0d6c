"""The reader of a subtask's assigned partitions; it reads committed records only.

Rule: a position advances past a record only when ``poll`` has returned it, or the source's filter has dropped it. It
advances past the control records at the end of a partition when librdkafka reports that end. Nothing else advances it.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from kafka_eos.abc.source import Reader, total_lag
from kafka_eos.connectors.kafka.client.access_rights import (
    AclOperation,
    Permission,
    ResourceType,
    describe_missing,
    reads,
)
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.credentials import texts
from kafka_eos.connectors.kafka.client.librdkafka import (
    EOF,
    BrokerWatch,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
    is_login_error,
    map_consumer_error,
    map_error,
    map_errors,
)
from kafka_eos.connectors.kafka.source.decoding_pace import DecodingPace
from kafka_eos.connectors.kafka.source.message_decoder import MessageDecoder, Reject
from kafka_eos.connectors.kafka.source.positions import moved, offset_of, partition_of, split_id, topic_of, until_of
from kafka_eos.core.errors import InputLost, KafkaEosError, LossCause, RestartFromCheckpoint, Retryable
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Position, Positions
from kafka_eos.core.records import Batch

T = TypeVar("T")
Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""

_STATISTICS_MS = 1_000
"""The statistics interval: long, because librdkafka buffers some 10 KB each while the client is not polled: during the
restore of all workers, and under back-pressure. An hour of that takes 36 MB."""
_LOOK = 5.0
"""Seconds to look up where a log begins."""
_offset: Callable[[Message], int] = Message.offset  # type: ignore[assignment]
_partition: Callable[[Message], int] = Message.partition  # type: ignore[assignment]
_topic: Callable[[Message], str] = Message.topic  # type: ignore[assignment]
_error = Message.error


class _ReplaceableConsumer:
    """A consumer that can be replaced when its brokers or its secrets have changed."""

    def __init__(self, settings: Callable[[], Mapping[str, Any]]) -> None:
        config = settings()
        self._brokers = brokers = BrokerWatch()
        self._refusals: list[KafkaError] = []
        # The callbacks must not reference the consumer: each would keep the other alive.
        callbacks = {
            "statistics.interval.ms": _STATISTICS_MS,
            "stats_cb": lambda statistics: brokers.learn(json.loads(statistics)),
            "error_cb": partial(_keep_refusal, self._refusals),
        }
        self._settings, self._secrets = settings, texts(config)
        with map_errors("consumer"):
            self.consumer = Consumer({**config, **callbacks})

    @property
    def lost(self) -> bool:
        return self._brokers.forgotten

    def refusal(self) -> KafkaError | None:
        """Return once why brokers reject this consumer's login, or None: it would retry forever, and return
        no records."""
        return self._refusals.pop() if self._refusals else None

    def outdated(self) -> bool:
        """Return whether the secrets have changed."""
        with suppress(Retryable):  # a secret's file is being rewritten
            return texts(self._settings()) != self._secrets
        return False

    def replace(self) -> _ReplaceableConsumer:
        self.consumer.close()
        return _ReplaceableConsumer(self._settings)


def _keep_refusal(found: list[KafkaError], error: KafkaError) -> None:
    if is_login_error(error):
        found[:] = [error]


class KafkaReader(Reader[T]):
    """One consumer of one subtask's partitions. Not thread-safe."""

    def __init__(
        self,
        config: Callable[[], Mapping[str, Any]],
        source: str,
        what: str,
        positions: Positions,
        decoding: MessageDecoder,
        reject: Reject,
        left_out: Callable[[int], None],
        is_excluded: Callable[[str], bool],
    ) -> None:
        """Create a reader.

        ``config``: returns the settings of a new consumer, with the present secrets.
        ``what``: what is read, for messages.
        ``is_excluded``: whether a topic is excluded: nothing of it is read, and its positions stay.
        """
        self._client = _ReplaceableConsumer(config)
        self._source = source
        self._what = what
        self._decoding = decoding
        self._reject = reject
        self._left_out = left_out
        self._is_excluded = is_excluded
        asked = config()
        self._cluster = Cluster(asked["bootstrap.servers"], asked)
        self._group = Permission(AclOperation.READ, ResourceType.GROUP, asked["group.id"])
        self._next: dict[Place, int] = {}
        self._given: dict[Place, Position] = {}
        self._until: dict[Place, int] = {}
        self._over: set[Place] = set()
        """Partitions that are read to their final end, or whose topic is excluded: the client no longer has them."""
        self._paused: frozenset[Place] = frozenset()
        self._at_end: set[Place] = set()
        self._pace = DecodingPace()
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
        return self._is_excluded(place[0]) or (until is not None and self._next[place] >= until)

    def _fetch_from(self, places: Iterable[Place]) -> None:
        wanted = [TopicPartition(*place, self._next[place]) for place in places if place not in self._over]
        if wanted:
            with map_errors(f"assign {self._what}"):
                self._client.consumer.incremental_assign(wanted)

    def poll(self, max_records: int, timeout: float) -> Batch[T] | None:
        if self._client.lost or self._is_outdated():
            # Records that the old consumer had buffered are fetched again: none of them was returned.
            self._client = self._client.replace()
            self._fetched, self._ends = [], {}
            self._fetch_from(self._next)
            self._switch(self._client.consumer.pause, self._paused)
        most = min(max_records, self._pace.records)
        messages = self._next_of_one_topic(most)
        if not messages:
            self._fetch(max_records, timeout)
            messages = self._next_of_one_topic(most)
        batch = self._decoded(messages) if messages else None
        # Only now: if rejecting a record raises, no position may have advanced.
        self._settle()
        return batch

    def _is_outdated(self) -> bool:
        """Return whether to replace the consumer. Raise LoginRefused if another one would be rejected too."""
        refusal = self._client.refusal()
        if refusal is None:
            return False
        if self._client.outdated():
            return True
        raise map_error(refusal, f"read {self._what}", partial(self._rights, None))

    def _next_of_one_topic(self, most: int) -> list[Message]:
        """Return the next records that may be returned; those of paused partitions stay buffered."""
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
        begun = time.monotonic()
        try:
            batch, left_out = self._decoding.batch(self._source, topic, messages, self._reject)
        except BaseException:
            self._fetched.insert(0, messages)
            raise
        self._pace.adapt(len(messages), time.monotonic() - begun)
        if left_out:
            self._left_out(left_out)
        # The dict keeps the last offset of each partition: records of one partition arrive in order.
        newest = dict(zip(batch.origin.partitions, batch.origin.offsets, strict=True))
        for partition, offset in newest.items():
            self._expect_below_end((topic, partition), offset)
        self._next.update({(topic, partition): offset + 1 for partition, offset in newest.items()})
        return batch if batch.values else None

    def _expect_below_end(self, place: Place, offset: int) -> None:
        """Raise InputLost for an offset that its partition does not have yet.

        A producer states the offsets of records within a batch, and brokers store those of an uncompressed batch
        without a check. Behind an offset that is too high the client would skip records that are written later.
        """
        end = self._known_end(place, cached=True)
        if end is None or offset < end:
            return
        # A new leader may report an earlier end with its records; it does not answer this request until it knows.
        end = self._known_end(place, cached=False)
        if end is not None and offset >= end:
            raise InputLost(
                f"{place[0]}/{place[1]} has a record with the offset {offset}, but the partition ends at {end}: its "
                "producer has stated a false offset, and the records up to there would be skipped. Nothing of its "
                "batch was read. Find the producer, and copy what is right into another topic",
                LossCause.ALTERED,
            )

    def _known_end(self, place: Place, *, cached: bool) -> int | None:
        """Return the end of a partition's log that the last fetch reported, or its present end; None if unknown."""
        options: dict[str, Any] = {"cached": True} if cached else {"timeout": _LOOK}
        with map_errors(f"look up the end of {place[0]}/{place[1]}"):
            known: tuple[int, int] | None = self._client.consumer.get_watermark_offsets(
                TopicPartition(*place), **options
            )
        return None if not known or known[1] < 0 else known[1]

    def _settle(self) -> None:
        """Advance past the ends of partitions whose earlier records have all been returned."""
        if not self._ends:
            return
        waiting = {_place_of(message) for messages in self._fetched for message in messages}
        for place in self._ends.keys() - waiting:
            self._next[place] = max(self._ends.pop(place), self._next[place])
            if place not in self._over and self._is_over(place):
                self._over.add(place)
                with map_errors(f"end {self._what}"):
                    self._client.consumer.incremental_unassign([TopicPartition(*place)])

    def _fetch(self, max_records: int, timeout: float) -> None:
        """Fetch more records, and the ends that were reached."""
        # consume() with a timeout waits for all max_records; so take what is available, else wait for the first.
        consume = self._client.consumer.consume
        with map_errors(f"read {self._what}"):
            messages: list[Message] = consume(max_records, 0)
            if not messages:
                messages = consume(1, timeout) + consume(max_records - 1, 0)
        if any(map(_error, messages)):
            messages = self._sorted_out(messages)
        elif self._at_end:
            self._at_end.difference_update(zip(map(_topic, messages), map(_partition, messages), strict=True))
        if self._until:
            messages = self._before_the_end(messages)
        # Records that the client returned before it was paused: they stay buffered here, and are not fetched again.
        by_topic: dict[str, list[Message]] = defaultdict(list)
        if self._topic is not None:
            by_topic[self._topic] = messages
        else:
            for message in messages:
                by_topic[_topic(message)].append(message)
        self._fetched += [each for each in by_topic.values() if each]

    def _before_the_end(self, messages: Sequence[Message]) -> list[Message]:
        """Return the records without those after the end of a partition, which the first of them marks as reached."""
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
        """Return the records, and handle events between them. The end of a partition is after its control records."""
        records: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                self._at_end.discard(_place_of(message))
            elif error.code() == EOF:
                self._ends[_place_of(message)] = _offset(message)
                self._at_end.add(_place_of(message))
            elif (
                problem := map_consumer_error(error, self._where(message), partial(self._rights, message.topic()))
            ) is not None:
                raise self._with_cause(problem, message)
        return records

    def _with_cause(self, problem: KafkaEosError, message: Message) -> KafkaEosError:
        """Return the error; if the leader refuses an offset because records before the log's start expired, say so."""
        if not isinstance(problem, InputLost) or problem.cause is not LossCause.ALTERED:
            return problem
        place = _place_of(message)
        try:
            with map_errors(f"look up the beginning of {place[0]}/{place[1]}"):
                known: tuple[int, int] | None = self._client.consumer.get_watermark_offsets(
                    TopicPartition(*place), timeout=_LOOK
                )
        except (Retryable, RestartFromCheckpoint):
            return problem
        expired = known is not None and self._next[place] < known[0]
        return InputLost(str(problem), LossCause.EXPIRED) if expired else problem

    def _rights(self, topic: str | None, code: int) -> str:
        """Return the message for a missing permission: on a topic, or on the group if there is no topic."""
        return describe_missing(self._cluster, [self._group, *([] if topic is None else [reads(topic)])], code)

    def _where(self, message: Message) -> str:
        """Return where an error arose: at its own offset if it has one, else at the reader's next offset."""
        if message.topic() is None:  # an error of the client itself, such as a rejected group
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
            with map_errors(f"pause and resume {self._what}"):
                how(wanted)

    def list_splits_at_end(self) -> Collection[SplitId]:
        waiting = {_place_of(message) for messages in self._fetched for message in messages}
        return [split_id(*place) for place in (self._at_end | self._over) - waiting]

    def lag(self) -> int | None:
        return total_lag(self.get_lag_by_split().values())

    def get_lag_by_split(self) -> Mapping[SplitId, int | None]:
        # Only a fetch reports the end of the log, and paused partitions are not fetched.
        return {
            split_id(*place): 0 if place in self._over else None if place in self._paused else self._behind(place, at)
            for place, at in self._next.items()
        }

    def _behind(self, place: Place, offset: int) -> int | None:
        """Return the records from ``offset`` to the end that the last fetch reported; None before the first fetch."""
        end = self._known_end(place, cached=True)
        return None if end is None else max(0, min(end, self._until.get(place, end)) - offset)

    def has_reached(self, ends: Positions) -> bool:
        wanted = {_place(split): offset_of(at) for split, at in ends.items()}
        # A partition that was added after the start is in ``ends`` before it is assigned.
        return all(place in self._next and self._next[place] >= end for place, end in wanted.items())

    def close(self) -> None:
        self._client.consumer.close()


def _place(split: SplitId) -> Place:
    return topic_of(split), partition_of(split)


def _place_of(message: Message) -> Place:
    return _topic(message), _partition(message)
