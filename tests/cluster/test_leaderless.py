"""A partition that has no leader: a start waits for it and says so, a running job goes on with the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness import Job, feed
from tests.chaos.positions import shown
from tests.chaos.running import check_all, running
from tests.cluster.brokers import Brokers
from tests.producers import in_order
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(1200), pytest.mark.cluster]


@pytest.fixture
def job(new_job: Callable[..., Job], cluster: Brokers) -> Iterator[Job]:
    """Each partition of its input is on one broker alone: 0 on the first, 1 on the second, 2 on the third."""
    made = new_job(0, KAFKA_EOS_PARALLELISM=2)
    made.input = f"{made.name}-alone"
    alone = NewTopic(made.input, 3, replica_assignment=[[1], [2], [3]], config={"min.insync.replicas": "1"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([alone])[made.input].result(PATIENCE)
    feed(cluster.bootstrap, made.input, range(200))
    yield made
    if not cluster.running:
        cluster.brokers[3].start()
    admin.delete_topics([made.input])[made.input].result(PATIENCE)
    cluster.until_whole()


def test_a_start_waits_for_a_partition_without_a_leader_and_says_so(job: Job, cluster: Brokers) -> None:
    cluster.brokers[3].kill()
    with running(job) as run:
        reason = f"topic {job.input} has no leader now for partition 2"
        run.until(lambda: reason in run.log, "say what it waits for")
        cluster.brokers[3].start()
        run.until_all_committed()
        run.drain()
        assert run.count("restarting") == 0
    check_all(job)


def test_a_running_job_goes_on_with_the_other_partitions(job: Job, cluster: Brokers) -> None:
    with running(job) as run:
        run.until_all_committed()
        cluster.brokers[3].kill()
        eventually(lambda: cluster.leaders([job.input])[TopicPartition(job.input, 2)] == -1, "partition 2 is alone")
        end = _pay(job, range(1000, 1100))
        run.until(lambda: shown(job.bootstrap, job.input, job.name)[0] == end, "commit what is in partition 0")
        cluster.brokers[3].start()
        feed(cluster.bootstrap, job.input, range(2000, 2200))
        run.until_all_committed()
        run.drain()
    check_all(job)


def _pay(job: Job, ids: range) -> int:
    """Payments to accounts that are in partition 0 only; where it ends with them."""
    producer = in_order(job.bootstrap)
    for number in ids:
        payment = {"id": number, "account": f"zero-{number % 5}", "amount": 1}
        producer.produce(job.input, json.dumps(payment).encode(), payment["account"], partition=0)
    assert producer.flush(PATIENCE) == 0
    consumer = Consumer({"bootstrap.servers": job.bootstrap, "group.id": "ends"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(job.input, 0), PATIENCE)
    finally:
        consumer.close()
    return int(end)
