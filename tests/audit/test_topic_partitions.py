"""The audit of topics judges the partition of each record by what the job's ledger tells of its epoch."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_eos.abc.committer import Spread
from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.facts.partitioning_history import Regime
from kafka_eos.audit.tables.partition_placement import PartitionPlacement
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from kafka_eos.audit.topics.partitioning_history import placings
from tests.audit.job import Job, Out, epoch, out
from tests.audit.topic_pair import first, found
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)

KEYS = 12
CRC = "consistent_random"


def placed(key: str, partitions: int) -> int:
    return zlib.crc32(key.encode()) % partitions


def test_records_are_judged_by_the_partitions_of_their_epoch(
    new_job: Callable[..., Job], topic: Callable[..., str], admin: AdminClient, spark: Any
) -> None:
    """Some key goes on where it was before partitions were added, and the only record of another one is astray. An
    epoch that was decided in vain tells nothing.
    """
    source, target = topic(), topic(partitions=2)
    job = new_job("")
    keys = [f"key-{i}" for i in range(KEYS)]

    def outs(number: int, partitions: int) -> list[Out]:
        at = (number - 1) * KEYS
        return [
            out((0, at + i), key, b"", topic=source, epoch=(number, number), target=placed(key, partitions))
            for i, key in enumerate(keys)
        ]

    def write(number: int, some: list[Out], partitions: int) -> None:
        written = epoch(number, number)
        job.feed(source, [(0, None, b"") for _ in some])
        job.write_beside({target: some}, {target: "out"}, commit=True)
        job.spread[written] = {"out": Spread(target, CRC, partitions, partitions)}
        job.commits(written, positions={}, counts={written: {"out": len(some)}})

    def verdict() -> Any:
        return audit_topics(
            TopicAuditOptions(job.bootstrap, (source,), (target,), id="provenance", ledgers=(str(job.storage.root),)),
            spark=spark,
        )

    write(1, outs(1, 2), 2)
    admin.create_partitions([NewPartitions(target, 4)])[target].result(PATIENCE)
    write(2, outs(2, 4), 4)
    job.spread[epoch(1, 2)] = {"out": Spread(target, CRC, 2, 2)}
    job.decide(epoch(1, 2), {}, {"out": KEYS})
    right = verdict()
    lone, *rest = outs(3, 4)
    lone = replace(lone, key="lone", partition=(placed("lone", 4) + 1) % 4)
    stays = next(i for i, o in enumerate(rest) if placed(str(o.key), 2) != o.partition)
    rest[stays] = replace(rest[stays], partition=placed(str(rest[stays].key), 2))
    write(3, [lone, *rest], 4)
    wrong = verdict()

    assert (Conclusion.PASS, {}) == (right.conclusion, found(right)), right.headline
    assert Check.MISPLACED in right.performed
    assert {Check.MISPLACED: 2} == found(wrong), wrong.findings
    assert "its key belongs in partition" in first(wrong, Check.MISPLACED)


TWO, FOUR = (Spread("out", CRC, n, n) for n in (2, 4))


def test_a_topic_of_several_sinks_is_judged_by_what_holds_of_all() -> None:
    grown, four = (Regime(1, TWO), Regime(2, FOUR)), (Regime(9, FOUR),)

    assert {"out": PartitionPlacement(CRC, 4, grown)} == placings([{"a": grown}, {"b": grown}], {"out": 4, "other": 3})
    either = placings([{"a": grown, "b": four}], {"out": 4})["out"]
    assert [Spread("out", CRC, 2, 4)] == [regime.spread for regime in either.regimes]


@pytest.mark.parametrize("other", [Spread("out", "murmur2", 4, 4), None])
def test_a_topic_of_sinks_that_divide_in_other_ways_is_not_judged_by_them(other: Spread | None) -> None:
    assert {} == placings([{"a": (Regime(1, TWO),)}, {"b": (Regime(1, other), Regime(2, FOUR))}], {"out": 4})
