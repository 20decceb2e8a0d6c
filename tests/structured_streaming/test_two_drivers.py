"""Two drivers run one query: the second is refused, or the first is fenced; never do both write."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.coordination import terms
from kafka_eos.core.errors import Fatal, Fenced, JobLocked
from kafka_eos.core.ids import Term
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.structured_streaming import spark_checkpoint as hadoop
from tests.structured_streaming.kit import Totals, ended, eventually


def test_the_second_on_a_host_is_refused(totals: Totals, spark: Any) -> None:
    with totals.start(spark, trigger={"processingTime": "200 milliseconds"}) as first:
        with pytest.raises(JobLocked, match="already run by process"):
            totals.start(spark)
        first.processAllAvailable()

    totals.exact()


def test_whoever_claims_the_query_fences_its_driver(totals: Totals, spark: Any) -> None:
    """As a driver on another host would, where locks do not reach."""
    first = totals.start(spark, trigger={"processingTime": "200 milliseconds"})
    first.processAllAvailable()
    terms.claim(LocalStorage(totals.checkpoint / "kafka_eos"), totals.job, Term(0))
    totals.feed()

    with pytest.raises(Fenced, match="term 1 was replaced by term 2"):
        first.awaitTermination()

    totals.run(spark)
    totals.exact()


@pytest.mark.campaign
def test_a_driver_that_was_taken_over_while_it_slept_decides_nothing(
    totals: Totals, spark: Any, viewfs: Callable[[Path], str]
) -> None:
    """The checkpoint is on a file system without locks; the first driver sleeps between preparing and deciding."""
    place = viewfs(totals.checkpoint)
    first = totals.stopped_at("micro-batch.published", place)

    totals.run(spark, checkpoint=place)
    totals.exact()
    decided = totals.decided()
    os.kill(first.pid, signal.SIGCONT)
    ended(first)

    assert "Fenced" in totals.tail()
    assert totals.decided() == decided
    totals.exact()


# ---------------------------------------------------------------- a replaced driver decides all the same

IN_THE_GAP = "micro-batch.returned=stop@2"
"""The first driver has looked at its term for batch 1, and Spark has not written its decision yet."""


def decides(first: subprocess.Popen[bytes], totals: Totals) -> None:
    """The first driver goes on: its Spark decides batch 1, and then it finds that it was replaced."""
    assert not totals.is_decided(1), "the first driver was not stopped in the gap"
    os.kill(first.pid, signal.SIGCONT)
    eventually(lambda: totals.is_decided(1), "the first driver's Spark decides batch 1")
    ended(first)
    assert "Fenced" in totals.tail()


def goes_on(second: subprocess.Popen[bytes]) -> int:
    """Its exit code."""
    os.kill(second.pid, signal.SIGCONT)
    ended(second)
    return second.returncode


@pytest.mark.campaign
def test_a_decision_of_a_replaced_driver_is_made_visible_before_the_next_batch(
    totals: Totals, viewfs: Callable[[Path], str]
) -> None:
    """It comes when the second driver has recovered, and before its Spark starts, which goes on with batch 2."""
    place, script = viewfs(totals.checkpoint), f"{IN_THE_GAP};micro-batch.recovered=stop"
    first, second = totals.stopped(script, place), totals.stopped(script, place)
    decides(first, totals)

    assert goes_on(second) == 0, totals.tail()
    totals.exact()


@pytest.mark.campaign
def test_a_decision_of_a_replaced_driver_while_the_next_prepares_the_same_batch(
    totals: Totals, spark: Any, viewfs: Callable[[Path], str]
) -> None:
    """The second stops; whoever starts next finds one prepared attempt at the batch, and commits that."""
    totals.kind = "certain"
    place, script = viewfs(totals.checkpoint), f"{IN_THE_GAP};micro-batch.collected=stop"
    first, second = totals.stopped(script, place), totals.stopped(script, place)
    decides(first, totals)

    assert goes_on(second) == 1
    assert "another driver has decided it" in totals.tail()
    totals.run(spark, checkpoint=place)
    totals.exact()


@pytest.mark.campaign
def test_nobody_commits_its_own_attempt_for_the_decision_of_another(
    totals: Totals, spark: Any, viewfs: Callable[[Path], str]
) -> None:
    """Both drivers have prepared batch 1, each with numbers of its own; the first one's Spark decides it."""
    place, script = viewfs(totals.checkpoint), f"{IN_THE_GAP};micro-batch.returned=stop"
    first, second = totals.stopped(script, place), totals.stopped(script, place)
    decides(first, totals)

    assert goes_on(second) == 1
    assert "another driver has decided it" in totals.tail()
    assert all(len(lists) == 1 for lists in totals.outputs().values()), "batch 1 is visible"

    with pytest.raises(Fatal, match=r"drivers of terms 1, 2 .* delete viewfs:.*/commits/1 and, .*/offsets/2"):
        totals.run(spark, checkpoint=place)
    totals.replay(1)
    totals.run(spark, checkpoint=place)
    totals.exact()


@pytest.mark.campaign
def test_a_replaced_driver_comes_too_late_to_decide(totals: Totals, viewfs: Callable[[Path], str]) -> None:
    """Both have prepared batch 1; the second one's Spark decides it, and says so."""
    place, script = viewfs(totals.checkpoint), f"{IN_THE_GAP};micro-batch.returned=stop"
    first, second = totals.stopped(script, place), totals.stopped(script, place)

    assert goes_on(second) == 0, totals.tail()
    totals.exact()
    decided = totals.decided()
    goes_on(first)

    assert totals.decided() == decided
    totals.exact()


@pytest.mark.campaign
def test_a_spark_that_outlives_its_driver_keeps_the_next_one_out(
    totals: Totals, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could still decide what its driver prepared."""
    monkeypatch.setattr(hadoop, "_JVM_ENDS", 0.5)
    first = totals.stopped_at("micro-batch.returned")
    java = java_of(first.pid)
    os.kill(java, signal.SIGSTOP)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()

    with pytest.raises(JobLocked, match="the Spark driver of an earlier run of query 'totals' still runs"):
        totals.start(spark)

    os.kill(java, signal.SIGKILL)
    monkeypatch.setattr(hadoop, "_JVM_ENDS", 30.0)
    totals.run(spark)
    totals.exact()


def java_of(leader: int) -> int:
    """The JVM in the process group of a driver."""
    for entry in Path("/proc").iterdir():
        if (
            entry.name.isdecimal()
            and (entry / "comm").read_text().strip() == "java"
            and os.getpgid(int(entry.name)) == leader
        ):
            return int(entry.name)
    raise AssertionError("the driver has no JVM")
