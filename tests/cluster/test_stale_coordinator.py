"""A coordinator that is cut off from the other brokers, and that the job still reaches, does not lose a commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.transaction_status import KafkaCommittable
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.devtools.broker import Broker
from tests.broker.transaction_kit import coordinator_partition, mark, new_writer, write
from tests.cluster.brokers import Brokers
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(1200), pytest.mark.cluster]

TRANSACTIONS, GROUPS = "__transaction_state", "__consumer_offsets"
PERMIT = CommitPermit(EpochId(Epoch(1), Term(1)))
CTX = JobContext("stale", Term(1), {})


@pytest.mark.parametrize("left", ["an id of another producer", "no id"])
def test_a_coordinator_that_is_cut_off_does_not_make_a_commit_look_lost(cluster: Brokers, left: str) -> None:
    """It coordinates id and group in its own memory, which knows nothing of the transaction. Two of three brokers have
    seen the commit.
    """
    topic = f"stale-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE)
    with KafkaRequests(Cluster(cluster.bootstrap)) as rpc:
        for internal in ("t", "g"):  # the first use creates the topics of the coordinators
            rpc.fence(internal, 60_000)
            rpc.marker(internal, topic, 0)
        eventually(lambda: _coordinators(cluster).keys() >= {TRANSACTIONS, GROUPS}, "the topics of the coordinators")
        cluster.until_whole()
        node = next(iter(_coordinators(cluster)[GROUPS].values()))
        name = _name_at(cluster, TRANSACTIONS, node, "1.0.0")
        group = _name_at(cluster, GROUPS, node, "group")
        if left == "an id of another producer":
            rpc.fence(name, 60_000)
    stale = cluster.brokers[node]
    others = [broker for other, broker in cluster.brokers.items() if other != node]
    alone = Cluster(stale.bootstrap)
    stale.pause()
    try:
        eventually(lambda: node not in _members(cluster, others[0].bootstrap), "the frozen broker is fenced")
        ours = _commit_elsewhere(",".join(broker.bootstrap for broker in others), topic, name, group)
        with _frozen(others):
            stale.resume()
            with KafkaRequests(alone, PATIENCE) as rpc:
                seen = rpc.describe(name)
                assert seen is None or (seen.state, seen.producer_epoch) != ("CompleteCommit", ours.producer_epoch + 1)
                assert rpc.marker(group, topic, 0) is None, "the coordinator is not outdated"
            with closing(KafkaCommitter(alone, CTX)) as committer:
                for look in (committer.probe, lambda stored: committer.commit(PERMIT, stored)):
                    with pytest.raises(Retryable, match="no response in 5 s"):
                        look(_stored(ours))
    finally:
        stale.resume()
        cluster.until_whole()
    with closing(KafkaCommitter(alone, CTX, PATIENCE)) as committer:
        assert committer.probe(_stored(ours)).status is CommitStatus.COMMITTED
        assert committer.commit(PERMIT, _stored(ours)) is CommitOutcome.ALREADY
    admin.delete_topics([topic])[topic].result(PATIENCE)


def _commit_elsewhere(bootstrap: str, topic: str, name: str, group: str) -> KafkaCommittable:
    """Write and commit a transaction while one broker is away. Its id is used again, so only its marker shows it."""
    writer = new_writer(bootstrap, transactional_id=name)
    write(writer, topic, "a")
    marker = mark(writer, topic, group)
    with KafkaRequests(Cluster(bootstrap)) as rpc:
        version = rpc.end_txn_version()
        ours = writer.commit_name(topic, version, marker, group)
        with closing(KafkaCommitter(Cluster(bootstrap), CTX, PATIENCE)) as committer:
            assert committer.commit(PERMIT, _stored(ours)) is CommitOutcome.COMMITTED
            eventually(lambda: rpc.fence(name, 60_000) == "NONE", "the id is used again")
            assert committer.probe(_stored(ours)).status is CommitStatus.COMMITTED
    return ours


def _stored(ours: KafkaCommittable) -> Committable:
    return Committable("kafka://there", ours.payload(), 1)


def _coordinators(cluster: Brokers) -> dict[str, dict[int, int]]:
    """The leader of each partition of the coordinators' logs, once they exist."""
    try:
        found = cluster.leaders([TRANSACTIONS, GROUPS])
    except KeyError:
        return {}
    leaders: dict[str, dict[int, int]] = {TRANSACTIONS: {}, GROUPS: {}}
    for at, node in found.items():
        leaders[at.topic][at.partition] = node
    return leaders


def _name_at(cluster: Brokers, log: str, node: int, end: str) -> str:
    """A new name that this broker coordinates."""
    leaders = cluster.leaders([log])
    while True:
        name = f"stale-{uuid.uuid4().hex[:8]}.{end}"
        if leaders[TopicPartition(log, coordinator_partition(name, len(leaders)))] == node:
            return name


def _members(cluster: Brokers, bootstrap: str) -> set[int]:
    """Members, or all while the broker cannot say."""
    try:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        return set(admin.list_topics(timeout=5.0).brokers)
    except KafkaException:
        return set(cluster.brokers)


@contextmanager
def _frozen(brokers: Sequence[Broker]) -> Iterator[None]:
    """Cut off the rest: nobody answers it, and the connections to these stay open."""
    for broker in brokers:
        broker.pause()
    try:
        yield
    finally:
        for broker in brokers:
            broker.resume()
