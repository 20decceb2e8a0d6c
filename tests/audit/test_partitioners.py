"""Where a key belongs: what librdkafka's partitioners do, told once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import functions as F

from kafka_eos.abc.committer import Spread
from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.facts.job_ledger import read_ledger
from kafka_eos.audit.facts.partitioning_history import Regime
from kafka_eos.audit.tables.partition_placement import PartitionPlacement, is_at_home, numbers, with_homes
from kafka_eos.audit.tables.partitioner_hashes import key_hash
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from tests.audit.job import Job
from tests.marks import campaign
from tests.producers import in_order
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

    producer = in_order(bootstrap, {"partitioner": partitioner})
    for key in KEYS:
        producer.produce(topic, b"", key, on_delivery=delivered)
    assert producer.flush(PATIENCE) == 0
    return found


@pytest.mark.campaign
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


ONE, TWO, THREE = (Spread("out", "murmur2", n, n) for n in (1, 2, 3))
TODAY = 3
"""Partitions."""


def homes(spark: Any, regimes: tuple[Regime, ...], rows: list[tuple[int, int, int]]) -> list[int | None]:
    """Of records of (epoch, hash of the key, partition): where they should be, if that is elsewhere."""
    columns = "n int, sink string, epoch long, term int, place long, partition int, key_hash long"
    data = [(n, "out", epoch, 1, place, partition, place) for n, (epoch, place, partition) in enumerate(rows)]
    table = spark.createDataFrame(data, columns).withColumns(
        {"ours": F.lit(True), "before": F.lit(False), "has_key": F.lit(True)}
    )
    found = with_homes(table, {"out": PartitionPlacement("murmur2", TODAY, regimes)}).orderBy("n").collect()
    return [row["home"] for row in found]


def test_each_epoch_is_judged_by_the_partitions_of_its_time(spark: Any) -> None:
    """A key of hash 5 belongs in partition 0 of one, 1 of two, 2 of three."""
    regimes = (Regime(1, ONE), Regime(2, TWO), Regime(3, Spread("out", "murmur2", 2, 3)), Regime(4, THREE))
    right = [(1, 5, 0), (2, 5, 1), (3, 5, 1), (3, 5, 2), (4, 5, 2)]
    wrong = [(1, 5, 2), (2, 5, 0), (3, 5, 0), (4, 5, 1), (4, 5, 0), (9, 5, 1)]

    assert [None] * len(right) + [0, 1, 2, 2, 2, 2] == homes(spark, regimes, right + wrong)


def test_of_epochs_before_the_ledger_the_first_records_tell_and_of_later_ones_it_does(spark: Any) -> None:
    regimes = (Regime(2, None), Regime(3, THREE))
    first = [(1, h, h % 2) for h in range(12)]

    assert [None] * 13 + [2] == homes(spark, regimes, [*first, (2, 5, 1), (3, 5, 1)])


def test_with_a_partitioner_that_nobody_knows_a_key_stays_where_it_is_while_partitions_do(spark: Any) -> None:
    mine = [Spread("out", "mine", *n) for n in ((2, 2), (2, 3), (3, 3))]
    regimes = tuple(Regime(epoch, spread) for epoch, spread in enumerate(mine))
    kept = [(0, 5, 0), (0, 5, 0), (1, 5, 0), (1, 5, 2), (2, 5, 2), (2, 5, 2)]

    assert [None] * len(kept) + [2] == homes(spark, regimes, [*kept, (2, 5, 0)])


def test_a_random_partitioner_says_nothing(spark: Any) -> None:
    assert [None, None] == homes(spark, (Regime(1, Spread("out", "random", 2, 2)),), [(1, 5, 0), (1, 5, 1)])


KEYED = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=str), name="words")
words.sink(
    KafkaSink("{output}", value=str, key=lambda word: word, config={{"partitioner": "{partitioner}"}},
              provenance="{provenance}"), name="copies"
)
"""


@pytest.mark.campaign
@pytest.mark.parametrize("provenance", [campaign("header"), "ledger"])
def test_a_job_whose_topic_had_partitions_added_and_then_another_partitioner(
    new_job: Callable[..., Job], topic: Callable[..., str], admin: AdminClient, spark: Any, provenance: str
) -> None:
    source, target = topic(), topic(partitions=2)
    names = {"input": source, "output": target, "provenance": provenance}
    job = new_job(KEYED, **names, partitioner="murmur2_random")
    for partitioner, partitions in (("murmur2_random", 2), ("murmur2_random", 5), ("fnv1a_random", 5)):
        if partitions > 2 and partitioner.startswith("murmur2"):
            admin.create_partitions([NewPartitions(target, partitions)])[target].result(PATIENCE)
        job.app.write_text(KEYED.format(name=job.name, **names, partitioner=partitioner))
        job.feed(source, [(0, None, b"word-%d" % i) for i in range(30)])
        job.run(workers=2)
    job.pipeline = None

    verdict = job.audit(spark)

    assert (Conclusion.PASS, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    told = [regime.spread for regime in read_ledger(job.storage, job.name, job.storage.root).regimes["copies"]]
    assert [("murmur2_random", 2, 2), ("murmur2_random", 5, 5), ("fnv1a_random", 5, 5)] == [
        (spread.partitioner, spread.fewest, spread.most) for spread in told if spread is not None
    ]
    if provenance == "ledger":
        asked = TopicAuditOptions(
            job.bootstrap, (source,), (target,), id="provenance", ledgers=(str(job.storage.root),)
        )
        verdict = audit_topics(asked, spark=spark)

        assert (Conclusion.PASS, ()) == (verdict.conclusion, verdict.findings), verdict.headline
        assert Check.MISPLACED in verdict.performed
