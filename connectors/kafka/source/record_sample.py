"""Reads some records of topics once, without a group, for ``preview``, crash tests and replays. Nothing is committed.

Rule: records of a partition keep their order, because that decides which rows are late. A read that cannot be completed
is an error.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import Final
from uuid import uuid4

from kafka_eos.abc.auditable import SampleStart
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import EOF, Consumer, Message, TopicPartition, map_errors
from kafka_eos.connectors.kafka.client.log_bridge import SILENT
from kafka_eos.connectors.kafka.record_headers import read_raw_headers
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.records import RawRecord

_SECONDS: Final = 20.0
"""Seconds to wait for a response of the cluster."""


def sample_records(
    where: Cluster, select: Callable[[Collection[str]], Sequence[str]], count: int, start: SampleStart
) -> list[RawRecord]:
    """Return up to ``count`` committed records, merged by their timestamps.

    ``select`` chooses the topics from all that exist. ``start``: the newest records, the oldest, or those from a time
    on. Raise ConfigError if there is no topic, or the cluster stops responding before the sample is complete.
    """
    with map_errors(f"reading a sample on {where.bootstrap}"), closing(_open(where)) as consumer:
        topics = consumer.list_topics(timeout=_SECONDS).topics
        chosen = select(topics.keys())
        if missing := [topic for topic in chosen if topic not in topics]:
            raise ConfigError(f"no topic {', '.join(missing)} on {where.bootstrap}: kafka-eos broker topic list")
        partitions = [(topic, number) for topic in chosen for number in sorted(topics[topic].partitions)]
        if not partitions:
            raise ConfigError(f"no topic on {where.bootstrap} matches the source")
        share = -(-count // len(partitions))
        starts = [_start(consumer, topic, number, share, start) for topic, number in partitions]
        return _read(consumer, [each for each in starts if each is not None], count)


def read_newest(where: Cluster, topic: str, size: int) -> Generator[RawRecord]:
    """Yield the newest committed records of a topic: in each partition, those of the last ``size`` offsets.

    Raise ConfigError if there is no topic, or the cluster stops responding.
    """
    with map_errors(f"reading {topic} on {where.bootstrap}"), closing(_open(where)) as consumer:
        found = consumer.list_topics(timeout=_SECONDS).topics.get(topic)
        if found is None:
            raise ConfigError(f"no topic {topic} on {where.bootstrap}: kafka-eos broker topic list")
        starts = [_start(consumer, topic, number, size, "newest") for number in sorted(found.partitions)]
        yield from _poll(consumer, [each for each in starts if each is not None])


def _open(where: Cluster) -> Consumer:
    return Consumer({
        **where.build_client_config({}, SILENT),
        "group.id": f"kafka-eos-sample-{uuid4().hex}",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    })  # fmt: skip


def _start(consumer: Consumer, topic: str, partition: int, share: int, start: SampleStart) -> TopicPartition | None:
    """Return the position from which a partition is read; None if it has no record there."""
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_SECONDS)
    if isinstance(start, datetime):
        wanted = TopicPartition(topic, partition, int(start.timestamp() * 1000))
        (found,) = consumer.offsets_for_times([wanted], timeout=_SECONDS)
        offset = high if found.offset < 0 else found.offset
    else:
        offset = low if start == "earliest" else max(low, high - share)
    return None if offset >= high else TopicPartition(topic, partition, offset)


def _read(consumer: Consumer, starts: list[TopicPartition], count: int) -> list[RawRecord]:
    found: dict[tuple[str, int], list[RawRecord]] = {(each.topic, each.partition): [] for each in starts}
    for raw in _poll(consumer, starts, count):
        found[raw.topic, raw.partition].append(raw)
    return list(heapq.merge(*found.values(), key=lambda record: record.timestamp))[:count]


def _poll(consumer: Consumer, starts: list[TopicPartition], most: int | None = None) -> Iterator[RawRecord]:
    """Yield the records of each partition up to its end, or ``most`` of them."""
    consumer.assign(starts)
    left = {(each.topic, each.partition): most for each in starts}
    deadline = time.monotonic() + _SECONDS
    while left:
        message = consumer.poll(0.2)
        if message is None:
            if time.monotonic() > deadline:
                places = ", ".join(f"{topic}/{number}" for topic, number in sorted(left))
                raise ConfigError(f"{places} did not respond for {_SECONDS:g} s, so not all records were read")
            continue
        deadline = time.monotonic() + _SECONDS
        place = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is not None and error.code() != EOF:
            raise ConfigError(f"topic {place[0]!r} cannot be read: {error.str()}")
        if place not in left:
            continue  # the client had read it before the partition was left out
        if error is None:
            yield _raw(message)
            rest = left[place]
            left[place] = None if rest is None else rest - 1
        if error is not None or left[place] == 0:
            del left[place]
            consumer.incremental_unassign([TopicPartition(*place)])


def _raw(message: Message) -> RawRecord:
    kind, timestamp = message.timestamp()
    return RawRecord(
        str(message.topic()),
        int(message.partition() or 0),
        int(message.offset() or 0),
        int(timestamp) if kind else -1,
        message.key(),
        message.value(),
        tuple(read_raw_headers(message)),
    )
