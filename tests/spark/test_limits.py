"""What bounds an epoch, and where its tasks work: records, bytes, several disks."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.core.records import Batch
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from kafka_eos.spark.admission_control import ReadBudget, divide_limit
from kafka_eos.spark.messages import ReadLimit
from kafka_eos.testing.list_source import ListOrigin
from tests.producers import in_order
from tests.spark.kit import TOTALS, Job, feed, payment, rows, same, totals
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]

COPY = """
pipeline = Pipeline("{name}")
pipeline.source(KafkaSource("{input}"), name="in").sink(KafkaSink("{output}"), name="out")
"""


def poll(values: list[Any]) -> Batch[Any]:
    return Batch(values, range(len(values)), ListOrigin("in", "list", 0, 0, values))


def test_tasks_share_a_quota_and_each_may_read_one_record() -> None:
    assert divide_limit(100, 1000, 4) == ReadLimit(25, 250)
    assert divide_limit(2, 3, 4) == ReadLimit(1, 1)
    assert divide_limit(100, None, 4) == ReadLimit(25, None)


def test_records_alone() -> None:
    meter = ReadBudget(ReadLimit(7, None))
    assert meter.limit_poll(5) == 5
    meter.charge(poll([1] * 5))
    assert meter.has_budget and meter.limit_poll(5) == 2
    meter.charge(poll([1] * 2))
    assert not meter.has_budget


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_passed_by_one_poll_at_most(seed: int) -> None:
    rng = random.Random(seed)
    meter, taken = ReadBudget(ReadLimit(10_000, 50_000)), []
    while meter.has_budget:
        number = 10 ** rng.randrange(1, 1000)
        last = [number] * rng.randint(1, meter.limit_poll(500))
        taken.append(len(str(number)) * len(last))
        meter.charge(poll(last))

    assert sum(taken) >= 50_000 > sum(taken[:-1])


def test_a_record_larger_than_the_quota_is_read_alone() -> None:
    meter = ReadBudget(ReadLimit(10_000, 5))
    meter.charge(poll(["more than five"]))
    assert not meter.has_budget


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_an_epoch_reads_about_so_many_bytes(new_job: NewJob, spark: Any) -> None:
    """Values of 10 KB and keys of 2 KB, two tasks of 300 KB each: 25 records a task, and what the last poll brings."""
    job = new_job(COPY, input=2, output=2)
    producer = in_order(job.bootstrap)
    for number in range(400):
        value = number.to_bytes(4, "big") + os.urandom(10_236)
        producer.produce(job.topics["input"], value, key=os.urandom(2048), partition=number % 2)
    assert producer.flush(PATIENCE) == 0

    job.on_spark(spark, parallelism=2, batch_size=10, max_bytes_per_epoch="600KB")

    told: list[Any] = [facts for event, facts in job.events if event == "progress"]
    read = [facts["sources"][0]["numInputRows"] for facts in told]
    assert sum(read) == 400 and read == [facts["numInputRows"] for facts in told]
    assert [facts["batchId"] for facts in told] == list(range(1, len(told) + 1))
    ends = [facts["sources"][0]["endOffset"] for facts in told]
    assert [facts["sources"][0]["startOffset"] for facts in told[1:]] == ends[:-1]
    assert all(facts["durationMs"] and facts["processedRowsPerSecond"] > 0 for facts in told)
    assert all(50 <= rows_ <= 70 for rows_ in read[:-1]), read
    observed = MetricsObserver(job.name, "")
    for event, facts in job.events:
        observed(event, facts)
    with observed.samples() as samples:
        counted = {metric.name: sum(found.values()) for metric, found in samples.values()}
    assert [counted[f"{what}_records"] for what in ("read", "written", "committed", "lag")] == [400, 400, 400, 0]
    assert counted["checkpoints"] == len(told)
    assert 0 < counted["transaction_margin_seconds"] <= 3600
    values = [message.value() for message in job.read("output")]
    assert sorted(int.from_bytes(value[:4], "big") for value in values) == list(range(400))
    assert job.left_open() == []


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_tasks_work_on_all_disks_and_find_their_files_again(new_job: NewJob, spark: Any, tmp_path: Path) -> None:
    job = new_job(TOTALS, input=2, output=1)
    disks = [tmp_path / "one", tmp_path / "two", tmp_path / "unused"]
    payments = [payment(number, accounts=40) for number in range(200)]
    feed(job, "input", payments)

    job.on_spark(spark, parallelism=2, max_records_per_epoch=80, state_dir=disks)

    kept = [len(list(disk.glob(f"{job.name}/spark/1/cache/*"))) for disk in disks]
    assert list(map(bool, kept)) == [False, True, True], "two subtasks of the second level"
    assert [path for disk in disks for path in disk.glob("**/attempt-*")] == []
    same(rows(job.values("output")), totals(payments))
