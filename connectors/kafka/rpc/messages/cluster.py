"""What a cluster says of itself: coordinators, brokers, topics, settings.

Pure. See ``request``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kafka_eos.connectors.kafka.client.access_rights import Kind, Operation, Right
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import (
    NO_ARRAY,
    NO_TAGS,
    NO_UUID,
    Reader,
    array,
    boolean,
    int8,
    int32,
    many,
    text,
)

GROUP: Final = 0
TRANSACTION: Final = 1
"""Kinds of coordinator."""

TOPIC: Final = 2
BROKER: Final = 4
"""Kinds of resource with settings."""


@dataclass(frozen=True, slots=True)
class CoordinatorSeen:
    node: int
    host: str
    port: int
    error: int


def find_coordinator(kind: int, key: str) -> Request[CoordinatorSeen]:
    def coordinator(found: Reader) -> CoordinatorSeen:
        found.text()
        seen = CoordinatorSeen(found.int32(), found.text(), found.int32(), found.int16())
        found.skip(Reader.text_or_none, Reader.tags)
        return seen

    def read(found: Reader, version: int) -> CoordinatorSeen:
        found.int32()
        (seen,) = found.array(coordinator)
        found.tags()
        return seen

    body = int8(kind) + array([text(key)]) + NO_TAGS
    # To describe it is enough here; whoever looks for a coordinator needs more of it next, which implies that.
    of_group, of_id = Right(Operation.READ, Kind.GROUP, key), Right(Operation.WRITE, Kind.TRANSACTIONAL_ID, key)
    needs = (of_group if kind == GROUP else of_id,)
    return Request("FindCoordinator", 10, 4, 4, lambda _: body, read, needs=needs)


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    index: int
    leader: int
    replicas: int


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """``may`` is a bit field of what the user may do with it; see ``rights.told``."""

    error: int
    name: str
    topic_id: str
    partitions: tuple[PartitionSeen, ...]
    may: int
    internal: bool = False
    """It is the cluster's own, as that of the offsets of groups."""


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """``brokers`` are host and port by node."""

    brokers: Mapping[int, tuple[str, int]]
    topics: tuple[TopicSeen, ...]


def metadata(topics: Collection[str] | None) -> Request[ClusterSeen]:
    """Of the brokers, and of these topics, which are not created by it, with what the user may do with them.

    None: of all topics that the user may see.
    """
    wanted = NO_ARRAY if topics is None else array(NO_UUID + text(name) + NO_TAGS for name in topics)
    body = wanted + boolean(False) + boolean(True) + NO_TAGS
    needs = tuple(Right(Operation.DESCRIBE, Kind.TOPIC, name) for name in topics or ())
    return Request("Metadata", 3, 11, 11, lambda _: body, _cluster, needs=needs)


def _cluster(found: Reader, version: int) -> ClusterSeen:
    found.int32()
    brokers = found.array(_broker)
    found.skip(Reader.text_or_none, Reader.int32)
    topics = found.array(_topic)
    found.tags()
    return ClusterSeen(dict(brokers), topics)


def _broker(found: Reader) -> tuple[int, tuple[str, int]]:
    broker = found.int32(), (found.text(), found.int32())
    found.skip(Reader.text_or_none, Reader.tags)
    return broker


def _topic(found: Reader) -> TopicSeen:
    error, name, topic_id = found.int16(), found.text(), str(found.uuid())
    internal = found.boolean()
    partitions, may = found.array(_partition), found.int32()
    found.tags()
    return TopicSeen(error, name, topic_id, partitions, may, internal)


def _partition(found: Reader) -> PartitionSeen:
    found.int16()
    index, leader = found.int32(), found.int32()
    found.int32()
    replicas = len(found.array(Reader.int32))
    found.skip(many(Reader.int32), many(Reader.int32), Reader.tags)
    return PartitionSeen(index, leader, replicas)


@dataclass(frozen=True, slots=True)
class QuorumSeen:
    """``now``: milliseconds since the epoch by the clock of the controller that leads; -1 if it is not told."""

    error: int
    now: int


def describe_quorum() -> Request[QuorumSeen]:
    """Of the log of metadata (KIP-595, KIP-836). The leader has caught up with itself at the moment of the answer."""

    def replica(found: Reader) -> tuple[int, int]:
        node = found.int32()
        found.skip(Reader.int64, Reader.int64)
        at = found.int64()
        found.tags()
        return node, at

    def partition(found: Reader) -> QuorumSeen:
        found.int32()
        error, leader = found.int16(), found.int32()
        found.skip(Reader.int32, Reader.int64)
        voters = found.array(replica)
        found.skip(many(replica), Reader.tags)
        return QuorumSeen(error, max((at for node, at in voters if node == leader), default=-1))

    def topic(found: Reader) -> tuple[QuorumSeen, ...]:
        found.text()
        partitions = found.array(partition)
        found.tags()
        return partitions

    def read(found: Reader, version: int) -> QuorumSeen:
        error = found.int16()
        seen = [each for partitions in found.array(topic) for each in partitions]
        found.tags()
        return seen[0] if seen and not error else QuorumSeen(error, -1)

    body = array([text("__cluster_metadata") + array([int32(0) + NO_TAGS]) + NO_TAGS]) + NO_TAGS
    return Request("DescribeQuorum", 55, 1, 1, lambda _: body, read)


@dataclass(frozen=True, slots=True)
class ConfigSeen:
    error: int
    values: Mapping[str, str | None]


def describe_configs(kind: int, resource: str, name: str) -> Request[ConfigSeen]:
    """One setting of a broker or of a topic."""

    def synonym(found: Reader) -> None:
        found.skip(Reader.text, Reader.text_or_none, Reader.int8, Reader.tags)

    def setting(found: Reader) -> tuple[str, str | None]:
        named = found.text(), found.text_or_none()
        found.skip(Reader.boolean, Reader.int8, Reader.boolean, many(synonym))
        found.skip(Reader.int8, Reader.text_or_none, Reader.tags)
        return named

    def result(found: Reader) -> ConfigSeen:
        error = found.int16()
        found.skip(Reader.text_or_none, Reader.int8, Reader.text)
        values = dict(found.array(setting))
        found.tags()
        return ConfigSeen(error, values)

    def read(found: Reader, version: int) -> ConfigSeen:
        found.int32()
        (seen,) = found.array(result)
        found.tags()
        return seen

    wanted = int8(kind) + text(resource) + array([text(name)]) + NO_TAGS
    body = array([wanted]) + boolean(False) + boolean(False) + NO_TAGS
    return Request("DescribeConfigs", 32, 4, 4, lambda _: body, read)
