"""Jobs that move between the engines, with their state and their history."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.audit import Conclusion, audit
from kafka_eos.core.failure_causes import RemoteUserError
from kafka_eos.core.ids import AppRef
from kafka_eos.storage import job_records as records
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from tests.chaos.harness import KEPT
from tests.spark import kit
from tests.spark.kit import Job, feed, payment, rows, same, totals

NewJob = Callable[..., Job]
pytestmark = [pytest.mark.spark, pytest.mark.campaign]

LOCAL = kit.TOTALS.replace("payment.account)", "payment.account, local=True)")
TOTALS = """
pipeline = Pipeline("{name}")
totals = (
    pipeline.source(KafkaSource("{input}", value=Payment), name="payments")
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add, emit=lambda account, total: total)
)
totals.sink(KafkaSink("{output}", value=Total, key=lambda total: total.account), name="to-kafka")
totals.sink(FileSink("{directory}/files", value=Total), name="to-files")
"""


def in_files(job: Job) -> list[dict[str, Any]]:
    parts = sorted((job.directory / "files").glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_bytes().splitlines()]


def check_totals(job: Job, count: int) -> None:
    wanted = totals(map(payment, range(count)))
    same(rows(job.values("output")), wanted)
    assert Counter(rows(in_files(job))) == Counter(wanted)
    assert job.left_open() == []
    assert [p.name for p in (job.directory / "files").glob(".*") if not p.name.startswith(KEPT)] == []


def test_a_job_moves_between_engines_and_parallelisms(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS, input=3, output=2)
    runs: list[Callable[[], None]] = [
        lambda: job.embedded(),
        lambda: job.on_spark(spark, parallelism=3),
        lambda: job.embedded(parallelism=2),
        lambda: job.on_spark(spark, parallelism=2),
        lambda: job.embedded(),
    ]
    for turn, run in enumerate(runs):
        feed(job, "input", map(payment, range(turn * 60, turn * 60 + 60)))
        run()

    check_totals(job, 300)
    storage = LocalStorage(job.checkpoints / job.name)
    newest = records.load(storage, Manifest, storage.list("manifests")[-1], job.name)
    assert newest.parallelism == 1


def test_a_job_with_provenance_in_the_ledger_is_proved_whatever_engine_it_ran_on(new_job: NewJob, spark: Any) -> None:
    told = TOTALS.replace("key=lambda total: total.account)", 'key=lambda total: total.account, provenance="ledger")')
    job = new_job(told, input=3, output=2)
    for turn, run in enumerate((lambda: job.on_spark(spark), lambda: job.embedded(2))):
        feed(job, "input", map(payment, range(turn * 90, turn * 90 + 90)))
        run()

    verdict = audit(job.plan(), job.settings(), app=AppRef(job.app), spark=spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, verdict.skipped), verdict.headline
    assert {name for message in job.read("output") for name, _ in message.headers() or ()} == set()


def test_local_state_moves_between_engines_at_the_same_parallelism(new_job: NewJob, spark: Any) -> None:
    """Payments of an account are in one partition, and its state is where that is read, on either engine."""
    job = new_job(LOCAL, input=3, output=2)
    runs: list[Callable[[], None]] = [
        lambda: job.embedded(parallelism=3),
        lambda: job.on_spark(spark, parallelism=3),
        lambda: job.on_spark(spark, parallelism=3),
        lambda: job.embedded(parallelism=3),
    ]
    for turn, run in enumerate(runs):
        feed(job, "input", map(payment, range(turn * 60, turn * 60 + 60)))
        run()
    with pytest.raises(RemoteUserError, match="parallelism=3 .*or omit local=True"):
        job.on_spark(spark, parallelism=2)

    job.app.write_text(job.app.read_text().replace("local=True", "values=Payment"))
    feed(job, "input", map(payment, range(240, 300)))
    job.on_spark(spark, parallelism=2)

    same(rows(job.values("output")), totals(map(payment, range(300))))
    assert job.left_open() == []
