"""The reader of a subtask's assigned partitions; it reads committed records only.

Rule: a position advances past a record only when ``poll`` has returned it, or the source's filter has dropped it. It
advances past the control records at the end of a partition when librdkafka reports that end. Nothing else advances it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

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
    KafkaError,
    TopicPartition,
    is_login_error,
    map_consumer_error,
    map_error,
    map_errors,
)
from kafka_eos.connectors.kafka.source.fetched_records import FetchedRecords
from kafka_eos.connectors.kafka.source.message_decoder import MessageDecoder, Reject
from kafka_eos.connectors.kafka.source.positions import moved, offset_of, partition_of, split_id, topic_of, until_of
from kafka_eos.connectors.kafka.source.record_fetchers import FetchFailure, Place, open_fetcher
from kafka_eos.core.errors import InputLost, KafkaEosError, LossCause, RestartFromCheckpoint, Retryable
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Position, Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch

T = TypeVar("T")
_STATISTICS_MS = 1_000
"""The statistics interval: long, because librdkafka buffers some 10 KB each while the client is not polled: during the
restore of all workers, and under back-pressure. An hour of that takes 36 MB."""
_LOOK = 5.0
"""Seconds to look up where a log begins."""
_DECODED_AT_ONCE = 1.0
"""Seconds in which a batch is decoded: a checkpoint waits for it."""


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
            self.fetcher = open_fetcher({**config, **callbacks})
        self.consumer = self.fetcher.consumer

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
        self.fetcher.close()
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
        self._fetched: list[FetchedRecords] = []
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
        self._fetch_from(added)

    def _is_over(self, place: Place) -> bool:
        until = self._until.get(place)
        return self._is_excluded(place[0]) or (until is not None and self._next[place] >= until)

    def _fetch_from(self, places: Iterable[Place]) -> None:
        wanted = [TopicPartition(*place, self._next[place]) for place in places if place not in self._over]
        if wanted:
            with map_errors(f"assign {self._what}"):
                self._client.fetcher.assign(wanted)

    def poll(self, max_records: int, timeout: float) -> Batch[T] | None:
        if self._client.lost or self._is_outdated():
            # Records that the old consumer had buffered are fetched again: none of them was returned.
            self._client = self._client.replace()
            self._fetched, self._ends = [], {}
            self._fetch_from(self._next)
            self._switch(self._client.consumer.pause, self._paused)
        records = self._next_of_one_topic(max_records)
        if records is None:
            self._fetch(max_records, timeout)
            records = self._next_of_one_topic(max_records)
        batch = None if records is None else self._decoded(self._keep_first(records, self._count_decoded(records)))
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

    def _next_of_one_topic(self, most: int) -> FetchedRecords | None:
        """Return the next records that may be returned; those of paused partitions stay buffered."""
        for index, records in enumerate(self._fetched):
            if not self._paused and len(records) <= most:
                return self._fetched.pop(index)
            paused = frozenset(partition for topic, partition in self._paused if topic == records.topic)
            free = [row for row, partition in enumerate(records.partitions) if partition not in paused][:most]
            if free:
                taken = frozenset(free)
                left = [row for row in range(len(records)) if row not in taken]
                self._fetched[index : index + 1] = [records.take(left)] if left else []
                return records.take(free)
        return None

    def _count_decoded(self, records: FetchedRecords) -> int:
        """Return how many of the first records are decoded at once, by their bytes."""
        return records.count_within(LIMITS.decoded_bytes, keys=self._decoding.has_keys)

    def _keep_first(self, records: FetchedRecords, count: int) -> FetchedRecords:
        """Return the first records; the others stay buffered."""
        if count == len(records):
            return records
        self._fetched.insert(0, records.take(range(count, len(records))))
        return records.take(range(count))

    def _decoded(self, records: FetchedRecords) -> Batch[T] | None:
        batch: Batch[T]
        try:
            batch, count, left_out = self._decoding.batch(self._source, records, self._reject, _DECODED_AT_ONCE)
        except BaseException:
            self._fetched.insert(0, records)
            raise
        records = self._keep_first(records, count)
        if left_out:
            self._left_out(left_out)
        # The dict keeps the last offset of each partition: records of one partition arrive in order.
        newest = dict(zip(records.partitions, records.offsets, strict=True))
        for partition, offset in newest.items():
            self._expect_below_end((records.topic, partition), offset)
        self._next.update({(records.topic, partition): offset + 1 for partition, offset in newest.items()})
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
        known = self._look_up("end", place, cached=cached)
        return None if not known or known[1] < 0 else known[1]

    def _look_up(self, what: str, place: Place, *, cached: bool = False) -> tuple[int, int] | None:
        """Return the beginning and the end of a partition's log: as the last fetch reported them, or the present ones.

        None if they are unknown. ``what``: the one that is wanted, for messages.
        """
        options: dict[str, Any] = {"cached": True} if cached else {"timeout": _LOOK}
        with map_errors(f"look up the {what} of {place[0]}/{place[1]}"):
            known: tuple[int, int] | None = self._client.consumer.get_watermark_offsets(
                TopicPartition(*place), **options
            )
        return known

    def _settle(self) -> None:
        """Advance past the ends of partitions whose earlier records have all been returned."""
        if not self._ends:
            return
        for place in self._ends.keys() - self._buffered():
            self._next[place] = max(self._ends.pop(place), self._next[place])
            if place not in self._over and self._is_over(place):
                self._over.add(place)
                with map_errors(f"end {self._what}"):
                    self._client.fetcher.unassign(place)

    def _buffered(self) -> set[Place]:
        """Return the partitions of which fetched records were not returned yet."""
        return {(records.topic, partition) for records in self._fetched for partition in set(records.partitions)}

    def _fetch(self, max_records: int, timeout: float) -> None:
        """Fetch more records, and the ends that were reached."""
        with map_errors(f"read {self._what}"):
            fetched = self._client.fetcher.fetch(max_records, timeout)
        last: dict[Place, int] = {}
        """The last offset of each partition, if it matters."""
        if self._at_end or fetched.failures:
            for records in fetched.records:
                offsets = dict(zip(records.partitions, records.offsets, strict=True))
                last.update({(records.topic, partition): offset for partition, offset in offsets.items()})
            self._at_end.difference_update(last)
        for failure in fetched.failures:
            self._sort_out(failure, last)
        # Records that the client returned before it was paused: they stay buffered here, and are not fetched again.
        for records in fetched.records:
            kept = self._before_the_end(records) if self._until else records
            if len(kept):
                self._fetched.append(kept)

    def _before_the_end(self, records: FetchedRecords) -> FetchedRecords:
        """Return the records without those after the end of a partition, which the first of them marks as reached."""
        kept: list[int] = []
        for row, (partition, offset) in enumerate(zip(records.partitions, records.offsets, strict=True)):
            place = records.topic, partition
            until = self._until.get(place)
            if until is None or offset < until:
                kept.append(row)
                if until is not None and offset == until - 1:
                    self._ends[place] = until
            else:
                self._ends[place] = until
        return records if len(kept) == len(records) else records.take(kept)

    def _sort_out(self, failure: FetchFailure, last: Mapping[Place, int]) -> None:
        """Handle an event between records. The end of a partition is after its control records.

        ``last``: the last offset that was fetched from each partition together with the event.
        """
        if failure.error.code() == EOF:
            end = failure.offset or 0
            self._ends[failure.place] = min(end, self._until.get(failure.place, end))
            if end > last.get(failure.place, -1):
                self._at_end.add(failure.place)
        elif (
            problem := map_consumer_error(failure.error, self._where(failure), partial(self._rights, failure.topic))
        ) is not None:
            raise self._with_cause(problem, failure)

    def _with_cause(self, problem: KafkaEosError, failure: FetchFailure) -> KafkaEosError:
        """Return the error; if the leader refuses an offset because records before the log's start expired, say so."""
        if not isinstance(problem, InputLost) or problem.cause is not LossCause.ALTERED:
            return problem
        place = failure.place
        try:
            known = self._look_up("beginning", place)
        except (Retryable, RestartFromCheckpoint):
            return problem
        expired = known is not None and self._next[place] < known[0]
        return InputLost(str(problem), LossCause.EXPIRED) if expired else problem

    def _rights(self, topic: str | None, code: int) -> str:
        """Return the message for a missing permission: on a topic, or on the group if there is no topic."""
        return describe_missing(self._cluster, [self._group, *([] if topic is None else [reads(topic)])], code)

    def _where(self, failure: FetchFailure) -> str:
        """Return where an error arose: at its own offset if it has one, else at the reader's next offset."""
        if failure.topic is None:  # an error of the client itself, such as a rejected group
            return f"read {self._what}"
        topic, partition = failure.place
        at = self._next.get(failure.place) if failure.offset is None else failure.offset
        return f"read {topic}/{partition} at offset {at}"

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
        return [split_id(*place) for place in (self._at_end | self._over) - self._buffered()]

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
        self._client.fetcher.close()


def _place(split: SplitId) -> Place:
    return topic_of(split), partition_of(split)
