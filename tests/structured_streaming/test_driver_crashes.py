"""The driver dies in every gap of the protocol; a new one goes on. User code is random in every attempt."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.core.errors import CommittableLost, Fatal
from tests.marks import campaign
from tests.structured_streaming.driver import PARTITIONS
from tests.structured_streaming.kit import Totals, ended
from tests.waiting import eventually

GAPS = (
    "micro-batch.collected",  # all tasks have prepared
    "manifest.synced",  # the prepared batch has its content, but no name yet
    "micro-batch.published",  # the prepared batch is durable
    "micro-batch.returned",  # foreachBatch is over, as far as Python is concerned
    "micro-batch.decided",  # commits/N is written, no EndTxn is sent
    "commit.between",  # one transaction is committed, another is not
    "receipt.before",  # all are committed
    "receipt.after",
)

AGAIN = (
    ("micro-batch.collected", "recovery.claimed"),
    ("manifest.synced", "recovery.aborted"),
    ("micro-batch.published", "recovery.committed"),
    ("micro-batch.published", "micro-batch.decided"),  # of the same batch: two prepared attempts, one decision
    ("micro-batch.returned", "recovery.committed"),
    ("micro-batch.decided", "recovery.claimed"),
    ("micro-batch.decided", "commit.between"),
    ("micro-batch.decided", "recovery.committed"),
    ("commit.between", "receipt.before"),
    ("commit.between", "recovery.committed"),
    ("receipt.before", "recovery.aborted"),
    ("receipt.after", "recovery.aborted"),
)
"""The gap where a driver dies, and where its successor does."""

USUAL = ("commit.between",)
"""After Spark's decision; the other gaps are left to the campaign."""


@pytest.mark.parametrize("gap", [g if g in USUAL else campaign(g) for g in GAPS])
def test_a_driver_killed_in_a_gap_loses_and_doubles_nothing(gap: str, totals: Totals, spark: Any) -> None:
    totals.killed_at(gap)

    totals.run(spark)

    assert totals.transactions(1) == PARTITIONS, "fewer tasks with rows than there are partitions"
    totals.exact()
    totals.agrees_with_state(spark)


@pytest.mark.campaign
@pytest.mark.parametrize(("gap", "recovering"), AGAIN)
def test_a_driver_killed_in_a_gap_and_its_successor_while_it_recovers(
    gap: str, recovering: str, totals: Totals, spark: Any
) -> None:
    totals.killed_at(gap, recovering)

    totals.run(spark)

    totals.exact()
    totals.agrees_with_state(spark)


@pytest.mark.campaign
def test_spark_fails_to_write_its_decision(totals: Totals, spark: Any) -> None:
    """foreachBatch has returned, commits/1 was never written, and the driver lives to clear up."""
    process = totals.stopped_at("micro-batch.published")
    aside = totals.checkpoint / "commits.aside"
    totals.commits.rename(aside)
    totals.commits.write_text("no directory")
    os.kill(process.pid, signal.SIGCONT)
    ended(process)

    assert process.returncode == 1, totals.tail()
    totals.none_staged()
    totals.commits.unlink()
    aside.rename(totals.commits)
    totals.run(spark)
    totals.exact()


@pytest.mark.campaign
@pytest.mark.parametrize("action", ["error", "kill"])
def test_a_task_that_fails_after_it_prepared_leaves_an_orphan_that_is_aborted(action: str, totals: Totals) -> None:
    process = totals.launch(f"micro-batch.prepared={action}@2")
    ended(process)

    assert process.returncode == 0, totals.tail()
    assert totals.fired.read_text().startswith(f"micro-batch.prepared {action}")
    totals.exact()


# ---------------------------------------------------------------- what is gone


@pytest.mark.campaign
def test_a_decided_output_that_is_lost_stops_loudly_and_can_be_replayed(totals: Totals, spark: Any) -> None:
    """When the driver dies its Spark has planned the next batch: without more it would go on there."""
    driver = totals.stopped_at("micro-batch.decided")
    eventually((totals.checkpoint / "offsets" / "2").exists, "batch 2 is planned")
    os.kill(driver.pid, signal.SIGKILL)
    ended(driver)
    lost = totals.staged()
    with KafkaRequests(Cluster(totals.bootstrap)) as rpc:
        for name in lost:
            rpc.fence(name, 60_000)

    with pytest.raises(CommittableLost, match=r"delete .*/commits/1 and, .*/offsets/2"):
        totals.run(spark)

    totals.replay(1)
    totals.run(spark)
    totals.exact()


@pytest.mark.campaign
def test_a_decided_output_that_is_half_lost_stops_for_good(totals: Totals, spark: Any) -> None:
    totals.killed_at("commit.between")
    with KafkaRequests(Cluster(totals.bootstrap)) as rpc:
        for left in totals.staged():
            rpc.fence(left, 60_000)

    with pytest.raises(CommittableLost, match="Part of the batch may be visible"):
        totals.run(spark)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["certain", "random"])
def test_a_half_committed_batch_is_finished_though_its_decision_is_gone(kind: str, totals: Totals, spark: Any) -> None:
    """One committed transaction proves that Spark had decided. The replay must then write the very same."""
    totals.kind = kind
    totals.killed_at("commit.between")
    totals.forget(1)

    if kind == "random":
        with pytest.raises(Fatal, match="different attempts"):
            totals.run(spark)
        totals.none_staged()
    else:
        totals.run(spark)
        totals.exact()
