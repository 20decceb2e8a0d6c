"""What the audit believes the ledger: real runs of jobs whose input changed under them, and what was done to their
directories afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.rolling_log import LocalLog
from tests.audit.conftest import TOTALS, Totals
from tests.audit.job import Job
from tests.audit.output_records import OWN
from tests.chaos.harness import create_topic
from tests.marks import campaign
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)

ENGINES = pytest.mark.parametrize("engine", ["embedded", campaign("spark")])
COPIES = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
copies = pipeline.source(KafkaSource("{input}"), name="orders")
if {later!r}:
    copies = copies.union(pipeline.source(KafkaSource("{later}", start="latest"), name="later"))
copies.sink(KafkaSink("{output}"), name="copies")
"""


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


def _rotated(storage: LocalStorage) -> None:
    """The history and the ledger as a job has them that has run for days: in files that were full, and compressed."""
    for name in (paths.HISTORY, paths.LEDGER):
        lines = storage.lines(name)
        (storage.root / name).unlink()
        log = LocalLog(storage.root, name, segment_bytes=500)
        for line in lines:
            log.append(line)
        log.compress()
        assert list((storage.root / paths.LOGS[name]).glob("*.gz")) != []


@pytest.mark.campaign
@ENGINES
def test_sources_and_partitions_that_came_later_are_recomputed_from_where_they_were_read(
    new_job: Callable[..., Job], topic: Callable[..., str], admin: AdminClient, spark: Any, engine: str
) -> None:
    """Of the source that is added the job reads the end alone; of the partition the head had expired."""
    orders, later, output = topic(), topic(), topic()
    job = new_job(COPIES, input=orders, later="", output=output)
    job.feed(orders, [(0, None, b"first")] * 4)
    job.run("--engine", engine, workers=1)
    job.feed(later, [(0, None, b"not read")] * 5)
    admin.create_partitions([NewPartitions(orders, 2)])[orders].result(PATIENCE)
    job.feed(orders, [(1, None, b"expired")] * 3 + [(1, None, b"second")] * 2)
    _expire(admin, orders, 1, 3)
    job.app.write_text(COPIES.format(name=job.name, input=orders, later=later, output=output))
    job.run("--engine", engine, workers=1)
    job.feed(later, [(0, None, b"third")] * 3)
    job.run("--engine", engine, workers=1)

    verdict = job.audit(spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert (4 + 2 + 3,) * 3 == (verdict.facts.inputs, verdict.facts.outputs, verdict.facts.expected)
    assert (0, {}) == (verdict.facts.without_interval, verdict.skipped)

    _rotated(job.storage)
    again = job.audit(spark)

    assert (Conclusion.PASS, verdict.facts) == (again.conclusion, again.facts), again.headline

    _expire(admin, orders, 1, 4)
    verdict = job.audit(spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    assert f"input {orders}/1 was read from offset 3, but now begins at 4" in verdict.headline


@ENGINES
def test_a_checkpoint_that_was_exchanged_and_an_input_that_was_created_anew_are_named(
    new_job: Callable[..., Job], topic: Callable[..., str], admin: AdminClient, spark: Any, engine: str
) -> None:
    orders, output = topic(partitions=2), topic(partitions=2)
    job = new_job(TOTALS, input=orders, output=output)
    ends: list[Manifest] = []
    for amount in (1, 2):
        job.feed(orders, [(p, f"u{p}", b'{"user":"u%d","amount":%d}' % (p, amount)) for p in (0, 1)])
        job.run("--engine", engine, workers=1)
        ends.append(_manifest(job, max(job.storage.list(paths.MANIFESTS))))
    earlier, whole = ends
    _replace(job, msgspec.structs.replace(whole, states=earlier.states))

    verdict = job.audit(spark)

    assert {Check.ALTERED_CHECKPOINT: 1} == found(verdict)
    (offender,) = verdict.findings[0].examples
    assert (whole.name, "the state of total is not the one that was committed") == (offender.topic, offender.detail)

    _replace(job, whole)
    admin.delete_topics([orders])[orders].result(PATIENCE)
    create_topic(job.bootstrap, orders, 2)
    verdict = job.audit(spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    assert f"input {orders} was deleted and created again since the job read it" in verdict.headline


@pytest.mark.campaign
def test_of_epochs_before_the_ledger_the_headline_says_what_was_not_compared(totals: Totals, spark: Any) -> None:
    totals.finish()
    storage = totals.job.storage
    (storage.root / paths.LEDGER).unlink()
    for name in list(storage.list(paths.MANIFESTS))[:1]:
        storage.delete(name)

    verdict = totals.job.audit(spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert "epochs of 8 outputs not compared" in verdict.headline
    assert {Check.ALTERED_CHECKPOINT} == set(verdict.skipped)


@pytest.mark.campaign
def test_with_at_least_once_checkpoints_an_epoch_may_have_processed_input_of_the_next(
    totals: Totals, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = totals.outs[8]
    assert ours.text is not None and ours.text.startswith(f"{OWN}.2.2/")
    totals.outs[8] = replace(ours, text=f"{OWN}.1.1/{ours.text.partition('/')[2]}")
    totals.finish(counts=(9, 7))

    strict = totals.job.audit(spark)
    monkeypatch.setenv("KAFKA_EOS_CHECKPOINT_MODE", "at-least-once")
    verdict = totals.job.audit(spark)

    assert {Check.WRONG_EPOCH: 1} == found(strict)
    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert "at-least-once" in verdict.skipped[Check.WRONG_EPOCH]


def _expire(admin: AdminClient, topic: str, partition: int, before: int) -> None:
    (gone,) = admin.delete_records([TopicPartition(topic, partition, before)]).values()
    gone.result(PATIENCE)


def _manifest(job: Job, name: str) -> Manifest:
    return records.load(job.storage, Manifest, name, job.name)


def _replace(job: Job, manifest: Manifest) -> None:
    job.storage.delete(manifest.name)
    records.publish(job.storage, manifest)
