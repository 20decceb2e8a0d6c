"""Requests of our own while a broker is dead, or has handed over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.source.positions import position, split_id
from kafka_eos.core.ids import Epoch, EpochId, Term
from tests.broker.kafka_kit import show
from tests.chaos.harness import Job
from tests.chaos.positions import shown
from tests.cluster.brokers import Brokers

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.cluster]


def test_the_group_is_shown_when_its_coordinator_has_moved(new_job: Callable[..., Job], cluster: Brokers) -> None:
    """The broker that coordinated lives on, and refuses each partition instead of the request."""
    job = new_job(6)
    source, ctx = KafkaSource(job.input, bootstrap_servers=cluster.bootstrap), JobContext(job.name, Term(1), {})
    for epoch in range(1, 4):
        show(source, ctx, EpochId(Epoch(epoch), Term(1)), {split_id(job.input, 0): position(epoch, "")})

        assert shown(cluster.bootstrap, job.input, job.name)[0] == epoch
        cluster.move_leaders(["__consumer_offsets"])


def test_settings_are_read_while_a_broker_is_dead_and_not_known_to_be(cluster: Brokers) -> None:
    with KafkaRequests(Cluster(cluster.bootstrap)) as rpc:
        dead = cluster.brokers[min(cluster.brokers)]
        dead.kill()
        try:
            assert rpc.broker_config("transaction.max.timeout.ms") == "2147483647"
        finally:
            cluster.start()
