"""Attempts that fail, die, lose or are replaced, in one local session: outputs stay exact, nothing stays open."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kafka_eos._util.retry import Retrier
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History, read_events
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, Fatal, Fenced, InputLost, JobLocked
from kafka_eos.core.ids import AppRef
from kafka_eos.spark import SparkEngine
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from tests.chaos.harness import create_topic
from tests.spark.kit import Job, feed, payment, rows, same, totals
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]

TOTALS = """
def step(total, payment):
    %s
    return add(total, payment)

pipeline = Pipeline("{name}")
(
    pipeline.source(KafkaSource("{input}", value=Payment), name="payments")
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=step, emit=lambda account, total: total)
    .sink(%s, name="to-kafka")
)
"""
SINK = 'KafkaSink("{output}", value=Total, key=lambda total: total.account)'

LOSING = (
    """
class Losing(KafkaSink):
    '''Its first writer that has prepared dies before anybody hears of it.'''

    def writer(self, ctx):
        writer = super().writer(ctx)
        seal = writer.seal

        def losing(epoch):
            prepare = seal(epoch)

            def prepared():
                made = prepare()
                if made and once("prepared"):
                    os.kill(os.getpid(), signal.SIGKILL)
                return made

            return prepared

        writer.seal = losing
        return writer
"""
    + TOTALS % ("pass", 'Losing("{output}", value=Total, key=lambda total: total.account)')
)


def aborted(job: Job) -> list[str]:
    """Names of transactions that the coordinator aborted."""
    events = read_events(LocalStorage(job.checkpoints / job.name))
    return [str(name) for event in events if event["event"] == "leftovers-aborted" for name in event["names"]]  # type: ignore[union-attr]


def check_totals(job: Job, count: int) -> None:
    same(rows(job.values("output")), totals(map(payment, range(count))))
    assert job.left_open() == []


def test_a_task_that_dies_is_tried_again_by_spark(new_job: NewJob, spark: Any) -> None:
    fault = "payment.id == 33 and once('died') and os.kill(os.getpid(), signal.SIGKILL)"
    job = new_job(TOTALS % (fault, SINK), input=3, output=2)
    feed(job, "input", map(payment, range(200)))

    job.on_spark(spark)

    assert (job.directory / "died").exists()
    assert job.count("restarting") == 0
    check_totals(job, 200)


def test_what_something_else_did_to_a_task_is_tried_again_from_the_checkpoint(new_job: NewJob, spark: Any) -> None:
    """Spark would try again at once, and four times in all; what is down takes longer."""
    fault = "if payment.id == 33 and once('failed'): raise Retryable('not now')"
    job = new_job(TOTALS % (fault, SINK), input=3, output=2)
    feed(job, "input", map(payment, range(200)))

    job.on_spark(spark)

    (why,) = [facts["reason"] for event, facts in job.events if event == "restarting"]
    assert "not now" in str(why)
    check_totals(job, 200)


def test_output_of_an_attempt_that_prepared_and_lost_is_aborted(new_job: NewJob, spark: Any) -> None:
    job = new_job(LOSING, input=2, output=1)
    feed(job, "input", map(payment, range(100)))

    job.on_spark(spark, max_records_per_epoch=60)

    assert (job.directory / "prepared").exists()
    assert any("Ongoing" in name for name in aborted(job)), aborted(job)
    assert len(job.read("output", "read_uncommitted")) > len(job.read("output"))
    check_totals(job, 100)


def test_altered_state_is_named_by_the_task_that_opens_it(new_job: NewJob, spark: Any) -> None:
    """The driver reads no state: it would have to fetch that of the whole cluster."""
    job = new_job(TOTALS % ("pass", SINK), input=2, output=1)
    feed(job, "input", map(payment, range(100)))
    job.on_spark(spark)
    before = job.values("output")
    for path in (job.checkpoints / job.name / paths.SHARED).iterdir():
        data = path.read_bytes()
        path.unlink()  # it may have another name elsewhere
        path.write_bytes(bytes([data[0] ^ 1, *data[1:]]))
    feed(job, "input", map(payment, range(100, 200)))

    with pytest.raises(CorruptCheckpoint, match=r"shared/[0-9a-f]{64} .*does not match its checksum"):
        job.on_spark(spark)

    assert job.values("output") == before
    assert job.left_open() == []


@pytest.mark.campaign
def test_a_job_that_always_fails_stops_and_leaves_nothing_open(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS % ("if payment.id == 33: raise Retryable('never')", SINK), input=2, output=1)
    feed(job, "input", map(payment, range(100)))

    with pytest.raises(Fatal, match=r"never.*\(max_environment_failures=1\)"):
        job.on_spark(spark, max_environment_failures=1)

    assert job.values("output") == []
    assert job.left_open() == []


@pytest.mark.campaign
def test_a_driver_that_was_replaced_stops_and_its_successor_goes_on(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS % ("pass", SINK), input=2, output=1)
    feed(job, "input", map(payment, range(200)))

    def take_over(event: str, facts: Mapping[str, object]) -> None:
        job.observe(event, facts)
        if event == "progress" and job.count("progress") == 2:
            storage = LocalStorage(job.checkpoints / job.name)
            patience = Retrier(threading.Event(), lambda text: None)
            connectors = job.settings().connector_defaults()
            second = Coordinator(job.plan(), storage, History(storage, print), patience, connectors, retained=2)
            second.recovery.restore()
            second.close()

    with pytest.raises(Fenced):
        SparkEngine(spark).run(
            job.plan(),
            AppRef(job.app),
            job.settings(max_records_per_epoch=40),
            observers=(take_over,),
            until_caught_up=True,
        )
    job.on_spark(spark)

    check_totals(job, 200)


def test_one_job_has_one_driver(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS % ("pass", SINK), input=1, output=1)
    feed(job, "input", map(payment, range(10)))
    refused: list[JobLocked] = []

    def start_another(event: str, facts: Mapping[str, object]) -> None:
        if event == "running":
            try:
                job.on_spark(spark)
            except JobLocked as error:
                refused.append(error)

    SparkEngine(spark).run(
        job.plan(), AppRef(job.app), job.settings(), observers=(start_another,), until_caught_up=True
    )

    assert len(refused) == 1
    assert Counter(rows(job.values("output"))) == Counter(totals(map(payment, range(10))))


def test_speculation_is_refused(new_job: NewJob, spark: Any) -> None:
    from kafka_eos.spark.session import refuse_unsafe

    with pytest.raises(ConfigError, match=r"spark\.speculation=false"):
        refuse_unsafe({"spark.speculation": "TRUE"}.get)
    refuse_unsafe({}.get)


@pytest.mark.parametrize("topics", ['["{input}"]', 're.compile("{input}.*")'], ids=["list", "pattern"])
def test_a_topic_that_is_deleted_under_a_job_ends_it_and_is_named(new_job: NewJob, spark: Any, topics: str) -> None:
    """As on the embedded engine."""
    job = new_job("import re\n" + TOTALS.replace('"{input}"', topics) % ("pass", SINK), input=2, output=2)
    feed(job, "input", map(payment, range(50)))
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    name = job.topics["input"]

    def delete(event: str, facts: Mapping[str, object]) -> None:
        if event == "committed" and job.count("committed") == 1:
            admin.delete_topics([name])[name].result(PATIENCE)

    job.watched_by = delete
    with pytest.raises(InputLost, match=f"topic {name}, which the job has read, does not exist any more"):
        SparkEngine(spark).run(job.plan(), AppRef(job.app), job.settings(), observers=(job.observe,))
    assert job.left_open() == []
    create_topic(job.bootstrap, name, 1)  # the fixture deletes it


def test_nothing_of_a_topic_that_was_created_again_is_committed(new_job: NewJob, spark: Any) -> None:
    """As on the embedded engine: an epoch reads on at the offset at which the job was in the old topic."""
    job = new_job(TOTALS % ("pass", SINK), input=2, output=2)
    feed(job, "input", map(payment, range(50)))
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    name = job.topics["input"]

    def create_again(event: str, facts: Mapping[str, object]) -> None:
        if event == "committed" and job.count("committed") == 1:
            admin.delete_topics([name])[name].result(PATIENCE)
            create_topic(job.bootstrap, name, 2)
            feed(job, "input", map(payment, range(1000, 1400)))

    job.watched_by = create_again
    with pytest.raises(InputLost, match=f"topic {name} was deleted and created again"):
        SparkEngine(spark).run(job.plan(), AppRef(job.app), job.settings(), observers=(job.observe,))
    assert job.count("committed") == 1
    assert job.left_open() == []
