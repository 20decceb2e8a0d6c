"""What may happen to an input topic: retention, recreation, new partitions; and where a first start begins."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.chaos.feeding import feeding
from tests.chaos.harness import Job, by_account, create_topic, expected, feed, open_transactions, read
from tests.chaos.running import check_all, refused, running
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]


def _delete_records(job: Job, before: dict[int, int]) -> None:
    """What retention does, at once: the log of each partition begins at an offset."""
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    asked = [TopicPartition(job.input, partition, offset) for partition, offset in before.items()]
    for future in admin.delete_records(asked).values():
        future.result(PATIENCE)


def _ends(messages: list[Any]) -> dict[int, int]:
    return {m.partition(): m.offset() + 1 for m in sorted(messages, key=lambda m: m.offset())}


def test_retention_that_passed_the_jobs_position_stops_it(new_job: NewJob) -> None:
    job = new_job(300)
    job.run()
    feed(job.bootstrap, job.input, range(300, 400))
    ends = _ends(read(job.bootstrap, job.input))
    _delete_records(job, {0: ends[0]})

    said = refused(job, 2)

    assert "InputLost" in said
    assert f"{job.input}/0" in said
    assert "offsets were removed" in said


@pytest.mark.campaign
def test_a_topic_that_was_created_again_stops_the_job(new_job: NewJob) -> None:
    job = new_job(100)
    job.run()
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    admin.delete_topics([job.input])[job.input].result(PATIENCE)
    create_topic(job.bootstrap, job.input, 3)
    feed(job.bootstrap, job.input, range(400))  # more than before: its offsets alone tell nothing

    said = refused(job, 2)

    assert "InputLost" in said
    assert "created again" in said


def test_a_deleted_topic_ends_a_job_whose_other_topic_is_busy(new_job: NewJob) -> None:
    """The positions of the other topic move on between any two searches."""
    job = new_job(0, app="several.py")
    other = f"{job.name}-other"
    job.environment["TEST_TOPICS"] = f"{job.input},{other}"
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    create_topic(job.bootstrap, other, 1)
    _feed_to(job, other, range(100))
    with running(job) as run, feeding(job):
        run.until(lambda: {*range(100)} <= _ids(job).keys(), "read the topic")
        admin.delete_topics([other])[other].result(PATIENCE)
        code = run.ended()
    assert code == 2, run.log[-3000:]
    assert f"topic {other}, which the job has read, does not exist any more" in run.log
    assert open_transactions(job) == []


def test_nothing_of_a_topic_that_was_created_again_is_committed(new_job: NewJob) -> None:
    """A client reads on in the new topic, at the offset at which it was in the old one."""
    job = new_job(0, app="several.py")
    job.environment |= {"TEST_TOPICS": job.input, "TEST_INTERVAL": "0.5"}
    _feed_to(job, job.input, range(1000))
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    with running(job) as run:
        run.until(lambda: _ids(job) == Counter(range(1000)), "read the topic")
        admin.delete_topics([job.input])[job.input].result(PATIENCE)
        create_topic(job.bootstrap, job.input, 3)
        _feed_to(job, job.input, range(10_000, 40_000))
        assert run.ended() == 2, run.log[-3000:]
    assert "InputLost" in run.log
    assert "created again" in run.log
    assert _ids(job) == Counter(range(1000))
    assert open_transactions(job) == []


def test_records_that_were_read_may_be_deleted_before_they_are_committed(new_job: NewJob) -> None:
    """A checkpoint is taken at once, and shows that nothing is missing."""
    job = new_job(0, app="several.py")
    job.environment |= {"TEST_TOPICS": job.input, "TEST_INTERVAL": "600"}
    _feed_to(job, job.input, range(500))
    with running(job) as run:
        run.until(lambda: run.last("progress").get("records_in") == 500, "read everything")
        _delete_records(job, _ends(read(job.bootstrap, job.input)))

        run.until(lambda: _ids(job) == Counter(range(500)), "commit what it has read")
        _feed_to(job, job.input, range(500, 600))
        run.until(lambda: run.last("progress").get("records_in") == 600, "read on")
        run.drain()
    assert _ids(job) == Counter(range(600))
    assert run.count("restarting") == 0


@pytest.mark.campaign
def test_new_partitions_are_read_and_retention_behind_the_job_is_no_loss(new_job: NewJob) -> None:
    job = new_job(300)
    early = read(job.bootstrap, job.input)
    with running(job) as run:
        run.until_all_committed()
        _delete_records(job, _ends(early))
        feed(job.bootstrap, job.input, range(300, 350))
        admin = AdminClient({"bootstrap.servers": job.bootstrap})
        admin.create_partitions([NewPartitions(job.input, 4)])[job.input].result(PATIENCE)
        _feed_partition(job, 3, range(1000, 1050))

        run.until(lambda: run.last("splits").get("splits") == [f"{job.input}/3"], "find the new partition")
        run.until_all_committed()
        run.drain()
    check_all(job, messages=early + read(job.bootstrap, job.input))
    job.run()
    check_all(job, messages=early + read(job.bootstrap, job.input))


def _feed_partition(job: Job, partition: int, ids: range) -> None:
    """Payments of accounts that no other partition has."""
    producer = in_order(job.bootstrap, {"topic.metadata.refresh.interval.ms": 100})
    for n in ids:
        payment = {"id": n, "account": f"late-{n % 5}", "amount": 1}
        producer.produce(job.input, json.dumps(payment).encode(), partition=partition)
    assert producer.flush(PATIENCE) == 0


@pytest.mark.parametrize("by", [campaign("list"), "pattern"])
def test_partitions_and_topics_come_and_go_under_a_job_that_reads_several(new_job: NewJob, by: str) -> None:
    """Nothing is lost, nothing comes twice; a topic that goes ends the job, and is let go of by name alone."""
    job = new_job(0, app="several.py")
    other, later = f"{job.name}-other", f"{job.name}-later"
    job.environment["TEST_TOPICS"] = f"{job.input},{other}"
    if by == "pattern":
        job.environment |= {"TEST_PATTERN": f"{job.name}-(in|other|later)", "TEST_EXCLUDE": ""}
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    create_topic(job.bootstrap, other, 2)
    _feed_to(job, job.input, range(100))
    _feed_to(job, other, range(100, 200))
    with running(job) as run:
        run.until(lambda: _ids(job) == Counter(range(200)), "read both topics")
        admin.create_partitions([NewPartitions(other, 3)])[other].result(PATIENCE)
        _feed_to(job, other, range(200, 250), partition=2)
        if by == "pattern":
            create_topic(job.bootstrap, later, 1)
            _feed_to(job, later, range(250, 300))
        there = 300 if by == "pattern" else 250
        run.until(lambda: _ids(job) == Counter(range(there)), "read what came")

        admin.delete_topics([other])[other].result(PATIENCE)
        _feed_to(job, job.input, range(300, 350))
        assert run.ended() == 2, run.log[-3000:]
        said = run.log
    assert "InputLost" in said
    assert f"topic {other}" in said
    assert open_transactions(job) == []
    if by == "list":
        return
    assert f"exclude=['{other}']" in said
    job.environment["TEST_EXCLUDE"] = other
    job.run()
    assert _ids(job) == Counter(range(350))


def _ids(job: Job) -> Counter[int]:
    return Counter(json.loads(message.value())["id"] for message in read(job.bootstrap, job.output))


def _feed_to(job: Job, topic: str, ids: range, partition: int | None = None) -> None:
    producer = in_order(job.bootstrap, {"topic.metadata.refresh.interval.ms": 100})
    for n in ids:
        where = {} if partition is None else {"partition": partition}
        producer.produce(topic, json.dumps({"id": n, "account": "a", "amount": 1}), **where)
    assert producer.flush(PATIENCE) == 0


@pytest.mark.campaign
@pytest.mark.parametrize("start", ["latest", "time"])
def test_a_first_start_begins_where_it_was_told_to(new_job: NewJob, start: str) -> None:
    job = new_job(0, app="payments.py")
    now = datetime.now(UTC)
    _feed_at(job, range(90), now - timedelta(hours=2))
    if start == "time":
        job.environment["TEST_START"] = (now - timedelta(hours=1)).isoformat()
        _feed_at(job, range(100, 150), now)
    else:
        job.environment["TEST_START"] = "latest"
    with running(job) as run:
        run.until(lambda: run.count("running"), "run")
        _feed_at(job, range(200, 250), now)
        run.until_all_committed()
        run.drain()
    _feed_at(job, range(300, 320), now - timedelta(hours=3))  # later the checkpoint decides, not the clock
    job.run()

    ids = [*range(200, 250), *range(300, 320)] + ([*range(100, 150)] if start == "time" else [])
    taken = [m for m in read(job.bootstrap, job.input) if json.loads(m.value())["id"] in ids]
    visible = sorted(read(job.bootstrap, job.output), key=lambda m: (m.partition(), m.offset()))
    rows = [(r["account"], r["total"], r["id"]) for r in map(json.loads, (m.value() for m in visible))]
    assert by_account(rows) == by_account(expected(taken))
    assert open_transactions(job) == []


def _feed_at(job: Job, ids: range, time: datetime) -> None:
    """Payments whose records have this timestamp."""
    producer = in_order(job.bootstrap)
    for n in ids:
        payment = {"id": n, "account": f"a{n % 20}", "amount": n % 7 + 1}
        at = int(time.timestamp() * 1000)
        producer.produce(job.input, json.dumps(payment).encode(), key=payment["account"], timestamp=at)
    assert producer.flush(PATIENCE) == 0
