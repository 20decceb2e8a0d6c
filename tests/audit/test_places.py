"""Where a key belongs: what librdkafka's partitioners do, told once more."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import functions as F

from kafka_eos.audit.partitioners import key_hash
from kafka_eos.audit.places import is_at_home, numbers
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)

KEYS = [b"", b"a", b"ab", b"abc", b"abcd", b"\xff\xfe\xfd", b"\x80" * 9, *(b"key-%d" % i for i in range(40))]
KEYS += [bytes([200, i, 255 - i, i, 7][: i % 6]) for i in range(40)]
PARTITIONERS = ("consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random")


def sent(bootstrap: str, topic: str, partitioner: str) -> list[tuple[bytes, int]]:
    """Where a producer has sent the keys."""
    found: list[tuple[bytes, int]] = []

    def delivered(_: Any, message: Message) -> None:
        key, partition = message.key(), message.partition()
        assert key is not None and partition is not None
        found.append((key if isinstance(key, bytes) else key.encode(), partition))

    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": partitioner})
    for key in KEYS:
        producer.produce(topic, b"", key, on_delivery=delivered)
    assert producer.flush(PATIENCE) == 0
    return found


def test_a_key_belongs_where_a_producer_sends_it(bootstrap: str, topic: Any, spark: Any) -> None:
    name = topic(partitions=7)
    rows = [(p, bytearray(key), at) for p in PARTITIONERS for key, at in sent(bootstrap, name, p)]
    table = spark.createDataFrame(rows, "partitioner string, key binary, partition int")

    told = F.coalesce(*(F.when(F.col("partitioner") == p, key_hash(p, F.col("key"))) for p in PARTITIONERS))
    found = table.withColumn("hash", told).withColumn("home", is_at_home(F.col("hash"), F.col("partition"), [7]))

    assert [] == found.where("hash is not null and not home").collect()
    anywhere = [(row.partitioner, bytes(row.key)) for row in found.where("hash is null").collect()]
    assert {("consistent_random", b"")} == {*anywhere}
    assert len(PARTITIONERS) * len(KEYS) == found.count()


@pytest.mark.parametrize("partitioner", ["random", "of tomorrow", None])
def test_of_other_partitioners_nothing_is_known(spark: Any, partitioner: str | None) -> None:
    table = spark.createDataFrame([(bytearray(b"key"),)], "key binary")

    assert table.select(key_hash(partitioner, F.col("key")).alias("hash")).first().hash is None


@pytest.mark.parametrize(
    ("first", "found"),
    [
        ([(h, h % 6) for h in range(30)], {6}),
        ([(h, h % 4) for h in range(30)], {4, 6}),  # two partitions were added since
        ([(h, 0) for h in (12, 24, 36)], {1, 2, 3, 4, 6}),  # any of these may have been the number
        ([(12, 3), *((h, h % 6) for h in range(30))], {6}),  # one record is elsewhere
        ([(h, h // 7 % 6) for h in range(6, 36)], None),  # by no number
        ([(h, h // 2 % 6) for h in range(6)] * 2 + [(h, h % 6) for h in range(9)], None),
    ],
)
def test_how_many_partitions_there_were_is_told_by_the_first_records(
    first: list[tuple[int, int]], found: set[int] | None
) -> None:
    assert found == numbers(first, 6)
