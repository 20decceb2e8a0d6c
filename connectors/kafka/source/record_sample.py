"""A sample of a topic's records for ``preview`` and crash tests: read once, without a group, nothing is committed.

Rule: records of a partition keep their order, because that decides which rows are late.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Sequence
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


def sample_records(
    where: Cluster, select: Callable[[Collection[str]], Sequence[str]], count: int, start: SampleStart
) -> list[RawRecord]:
    """Return up to ``count`` committed records, merged by their timestamps.

    ``select`` chooses the topics from all that exist. ``start``: the newest records, the oldest, or those from a time
    on. Raise ConfigError if there is no topic, or the cluster does not respond.
    """
    config = {
        **where.build_client_config({}, SILENT),
        "group.id": f"kafka-eos-sample-{uuid4().hex}",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    with map_errors(f"reading a sample on {where.bootstrap}"), closing(Consumer(config)) as consumer:
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
    consumer.assign(starts)
    found: dict[tuple[str, int], list[RawRecord]] = {(each.topic, each.partition): [] for each in starts}
    left, deadline = set(found), time.monotonic() + _SECONDS
    while left and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        place = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is None:
            found[place].append(_raw(message))
        if (error is not None and error.code() == EOF) or len(found[place]) >= count:
            left.discard(place)
            consumer.incremental_unassign([TopicPartition(*place)])
        elif error is not None:
            raise ConfigError(f"topic {place[0]!r} cannot be read: {error.str()}")
    return list(heapq.merge(*found.values(), key=lambda record: record.timestamp))[:count]


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
