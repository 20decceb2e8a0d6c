"""Three brokers that are one Kafka: combined roles, every topic on all three, two of them must have what is written.

    <directory>/cluster.json   ports and the identity of the cluster
    <directory>/broker-1/ …    one development broker each

Rule: who leads and who coordinates is asked, never assumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kio.schema.alter_partition_reassignments.v0.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.broker.settings import free_ports
from tests.waiting import eventually
from tests.wire import asked_any, ongoing

HEAP = "400m"
_ANSWER_SECONDS = 10.0


class Brokers:
    """``size`` brokers; ``brokers`` by node id, from 1. Found again by its directory."""

    def __init__(self, directory: Path, size: int = 3, *, daemon: bool = False, release: str = "") -> None:
        known = _identity(directory, size)
        addresses = zip(known["ports"], known["controller_ports"], strict=True)
        voters = [f"{node}@127.0.0.1:{port}" for node, port in enumerate(known["controller_ports"], start=1)]
        self.brokers: Mapping[int, Broker] = {
            node: Broker(
                directory / f"broker-{node}",
                port,
                _settings(node, voters),
                daemon=daemon,
                heap=HEAP,
                release=release,
                cluster_id=known["id"],
                controller_port=controller_port,
            )
            for node, (port, controller_port) in enumerate(addresses, start=1)
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def running(self) -> bool:
        return all(broker.running for broker in self.brokers.values())

    def start(self, *nodes: int) -> None:
        """Start these brokers at once, by default those that do not run; returns when the cluster is whole."""
        chosen = [self.brokers[node] for node in nodes] or [b for b in self.brokers.values() if not b.running]
        for broker in chosen:
            broker.launch()
        for broker in chosen:
            broker.await_clients()
        self.until_whole()

    def kill(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    # ------------------------------------------------------------ what is asked

    def members(self) -> set[int]:
        """Brokers that are not fenced, as one of them says."""
        return set(self._admin().list_topics(timeout=_ANSWER_SECONDS).brokers)

    def until_whole(self) -> None:
        """Wait until every broker is a member and has all of every partition."""
        eventually(self._whole, "every broker has all of every partition")

    def _whole(self) -> bool:
        try:
            found = self._admin().list_topics(timeout=_ANSWER_SECONDS)
        except KafkaException:
            return False
        in_sync = (set(p.isrs) for topic in found.topics.values() for p in topic.partitions.values())
        return set(found.brokers) == set(self.brokers) and all(members == set(self.brokers) for members in in_sync)

    def coordinator(self, prefix: str) -> Broker:
        """Who coordinates an open transaction whose id begins so; waits until there is one."""

        def found() -> Broker | None:
            begun = ongoing(self.bootstrap)
            return next((self.brokers[node] for name, node in begun.items() if name.startswith(prefix)), None)

        broker = eventually(found, f"an open transaction of {prefix}")
        assert broker is not None
        return broker

    def leaders(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        found = self._admin().list_topics(timeout=_ANSWER_SECONDS).topics
        return {TopicPartition(t, n): p.leader for t in topics for n, p in found[t].partitions.items()}

    def move_leaders(self, topics: Sequence[str]) -> None:
        """Make the next broker the leader of each partition; returns when it is."""
        wanted = {at: node % len(self.brokers) + 1 for at, node in self.leaders(topics).items()}
        by_topic = {
            topic: [(at.partition, node) for at, node in wanted.items() if at.topic == topic] for topic in topics
        }
        order = [
            ReassignableTopic(
                name=TopicName(topic),
                partitions=tuple(
                    ReassignablePartition(partition_index=i32(number), replicas=self._first(node))
                    for number, node in parts
                ),
            )
            for topic, parts in by_topic.items()
        ]
        asked_any(self.bootstrap, AlterPartitionReassignmentsRequest(topics=tuple(order)))
        under_way = ListPartitionReassignmentsRequest(topics=None)
        eventually(lambda: not asked_any(self.bootstrap, under_way).topics, "the new order of replicas is known")
        admin = self._admin()  # held: it takes its requests with it
        admin.elect_leaders(ElectionType.PREFERRED, list(wanted)).result(_ANSWER_SECONDS)
        eventually(lambda: self.leaders(topics) == wanted, "the next brokers lead")

    def _first(self, node: int) -> tuple[BrokerId, ...]:
        """All brokers, this one before the others."""
        return tuple(BrokerId(each) for each in sorted(self.brokers, key=lambda other: (other != node, other)))

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})


def _identity(directory: Path, size: int) -> dict[str, Any]:
    """Chosen once for a directory."""
    path = directory / "cluster.json"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * size)
        chosen = {"id": uuid4().hex[:22], "ports": ports[:size], "controller_ports": ports[size:]}
        path.write_text(json.dumps(chosen))
    known: dict[str, Any] = json.loads(path.read_text())
    return known


def _settings(node: int, voters: list[str]) -> dict[str, str]:
    internal = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic", "default")
    return {
        "node.id": str(node),
        "controller.quorum.voters": ",".join(voters),
        **{f"{name}.replication.factor": "3" for name in internal},
        "transaction.state.log.min.isr": "2",
        "share.coordinator.state.topic.min.isr": "2",
        "min.insync.replicas": "2",
        # A busy machine makes brokers answer late: that is no reason to elect another controller.
        "controller.quorum.election.timeout.ms": "3000",
        "controller.quorum.fetch.timeout.ms": "6000",
        "broker.session.timeout.ms": "6000",
    }
