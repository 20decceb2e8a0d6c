"""The size of topics, by which an audit chooses its Spark session."""

from __future__ import annotations

from collections.abc import Callable

from kafka_eos.audit.cluster.topic_size import count_offsets
from tests.producers import in_order
from tests.waiting import PATIENCE


def test_the_size_is_that_of_all_partitions_of_all_topics(bootstrap: str, topic: Callable[..., str]) -> None:
    names = [topic(partitions=2), topic()]
    producer = in_order(bootstrap)
    for n in range(5):
        producer.produce(names[0], b"", partition=n % 2)
    producer.produce(names[1], b"", partition=0)
    assert producer.flush(PATIENCE) == 0

    assert count_offsets(bootstrap, {}, names) == 6
    assert count_offsets(bootstrap, {}, names[1:]) == 1


def test_the_size_is_unknown_of_what_is_not_there(bootstrap: str) -> None:
    assert count_offsets(bootstrap, {}, ["no-such-topic"]) is None
    assert count_offsets(bootstrap, {"no.such.setting": 1}, ["no-such-topic"]) is None
    assert count_offsets("127.0.0.1:1", {"socket.timeout.ms": 100}, ["orders"]) is None
