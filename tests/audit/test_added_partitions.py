"""Keys that moved as they do when partitions are added to a topic are not called misplaced; others are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from kafka_eos.audit.topics.partition_growth import grown
from tests.audit.job import FED_AT, Job, Out
from tests.audit.topic_pair import found
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)

Records = list[tuple[int, int, int]]
"""Partition, key, time."""


def growing(*partitions: int, keys: int = 12) -> Records:
    """Each key once for each number of partitions."""
    return [(key % n, key, turn * 100 + key) for turn, n in enumerate(partitions) for key in range(keys)]


GROWN: dict[str, tuple[Records, int]] = {
    "by two": (growing(2, 4), 4),
    "by one": (growing(2, 3), 3),
    "twice": (growing(2, 4, 8, keys=16), 8),
    "a new key": ([*growing(2, 4), (3, 99, 110)], 4),
}
NOT_GROWN: dict[str, tuple[Records, int]] = {
    "a key of a topic that did not grow went astray": ([*growing(3, 3), (1, 0, 210)], 3),
    "one went back": ([*growing(2, 4), (0, 2, 210)], 4),
    "too few keys to know that the partitions were new": ([*growing(2, 4, keys=2), (2, 0, 300)], 4),
}


def test_a_topic_may_have_grown_if_that_explains_every_key(spark: Any) -> None:
    topics = GROWN | NOT_GROWN
    rows = [(topic, *record) for topic, (records, _) in topics.items() for record in records]
    table = spark.createDataFrame(rows, "topic string, partition int, key long, time long")

    found = grown(table, {topic: now for topic, (_, now) in topics.items()}, lambda found: found.collect())

    assert sorted(found) == sorted(GROWN)


def test_keys_that_moved_when_partitions_were_added_are_not_called_misplaced_and_others_are(
    new_job: Callable[..., Job], topic: Callable[..., str], admin: AdminClient, spark: Any
) -> None:
    name = topic(partitions=2)
    job = new_job("")
    outs = [Out(f"key-{i}", b"%d" % i, None, i % 2, timestamp=FED_AT + i) for i in range(12)]
    job.write(name, outs)
    admin.create_partitions([NewPartitions(name, 4)])[name].result(PATIENCE)
    job.write(name, [replace(o, partition=i % 4, value=b"%d" % (i + 12), timestamp=FED_AT + 100 + i)
                     for i, o in enumerate(outs)])  # fmt: skip
    question = TopicAuditOptions(job.bootstrap, outputs=(name,), id="value")

    verdict = audit_topics(question, spark=spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert "as they do when partitions are added" in verdict.skipped[Check.MISPLACED]

    job.write(name, [replace(outs[2], value=b"99", timestamp=FED_AT + 300)])
    verdict = audit_topics(question, spark=spark)

    assert Check.MISPLACED in found(verdict)
