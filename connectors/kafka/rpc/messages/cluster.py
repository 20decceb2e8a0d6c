"""Messages about a cluster: coordinators, brokers, topics, settings.

Pure. See ``request``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct

from kafka_eos.connectors.kafka.client.access_rights import AclOperation, Permission, ResourceType
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import (
    NO_ARRAY,
    NO_TAGS,
    NO_UUID,
    MessageReader,
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


class FindCoordinatorResponse(Struct, frozen=True):
    node: int
    host: str
    port: int
    error: int


def find_coordinator(kind: int, key: str) -> Request[FindCoordinatorResponse]:
    def coordinator(found: MessageReader) -> FindCoordinatorResponse:
        found.text()
        seen = FindCoordinatorResponse(found.int32(), found.text(), found.int32(), found.int16())
        found.skip(MessageReader.text_or_none, MessageReader.tags)
        return seen

    def read(found: MessageReader, version: int) -> FindCoordinatorResponse:
        found.int32()
        (seen,) = found.array(coordinator)
        found.tags()
        return seen

    body = int8(kind) + array([text(key)]) + NO_TAGS
    # Describe is enough here; the request that follows needs a permission that implies it.
    of_group, of_id = (
        Permission(AclOperation.READ, ResourceType.GROUP, key),
        Permission(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, key),
    )
    needs = (of_group if kind == GROUP else of_id,)
    return Request("FindCoordinator", 10, 4, 4, lambda _: body, read, needs=needs)


class MetadataPartition(Struct, frozen=True):
    index: int
    leader: int
    replicas: int


class MetadataTopic(Struct, frozen=True):
    """A topic in a Metadata response."""

    error: int
    name: str
    topic_id: str
    partitions: tuple[MetadataPartition, ...]
    may: int
    internal: bool = False
    """True for an internal topic, such as the topic of group offsets."""


class MetadataResponse(Struct, frozen=True):
    """The brokers by node id, the topics, and the id of the cluster; "" if the broker does not report one."""

    brokers: Mapping[int, tuple[str, int]]
    topics: tuple[MetadataTopic, ...]
    cluster_id: str


def metadata(topics: Collection[str] | None) -> Request[MetadataResponse]:
    """Return a request for the brokers and for these topics, with the user's permissions. It creates no topic.

    None: all topics that the user may see.
    """
    wanted = NO_ARRAY if topics is None else array(NO_UUID + text(name) + NO_TAGS for name in topics)
    body = wanted + boolean(False) + boolean(True) + NO_TAGS
    needs = tuple(Permission(AclOperation.DESCRIBE, ResourceType.TOPIC, name) for name in topics or ())
    return Request("Metadata", 3, 11, 11, lambda _: body, _cluster, needs=needs)


def _cluster(found: MessageReader, version: int) -> MetadataResponse:
    found.int32()
    brokers = found.array(_broker)
    cluster_id = found.text_or_none() or ""
    found.int32()
    topics = found.array(_topic)
    found.tags()
    return MetadataResponse(dict(brokers), topics, cluster_id)


def _broker(found: MessageReader) -> tuple[int, tuple[str, int]]:
    broker = found.int32(), (found.text(), found.int32())
    found.skip(MessageReader.text_or_none, MessageReader.tags)
    return broker


def _topic(found: MessageReader) -> MetadataTopic:
    error, name, topic_id = found.int16(), found.text(), str(found.uuid())
    internal = found.boolean()
    partitions, may = found.array(_partition), found.int32()
    found.tags()
    return MetadataTopic(error, name, topic_id, partitions, may, internal)


def _partition(found: MessageReader) -> MetadataPartition:
    found.int16()
    index, leader = found.int32(), found.int32()
    found.int32()
    replicas = len(found.array(MessageReader.int32))
    found.skip(many(MessageReader.int32), many(MessageReader.int32), MessageReader.tags)
    return MetadataPartition(index, leader, replicas)


class DescribeQuorumResponse(Struct, frozen=True):
    """The controller leader's clock, in milliseconds since the Unix epoch; -1 if unknown."""

    error: int
    now: int


def describe_quorum() -> Request[DescribeQuorumResponse]:
    """Return a request about the metadata log (KIP-595, KIP-836).

    The leader has caught up with itself at the time of its response, which gives its clock.
    """

    def replica(found: MessageReader) -> tuple[int, int]:
        node = found.int32()
        found.skip(MessageReader.int64, MessageReader.int64)
        at = found.int64()
        found.tags()
        return node, at

    def partition(found: MessageReader) -> DescribeQuorumResponse:
        found.int32()
        error, leader = found.int16(), found.int32()
        found.skip(MessageReader.int32, MessageReader.int64)
        voters = found.array(replica)
        found.skip(many(replica), MessageReader.tags)
        return DescribeQuorumResponse(error, max((at for node, at in voters if node == leader), default=-1))

    def topic(found: MessageReader) -> tuple[DescribeQuorumResponse, ...]:
        found.text()
        partitions = found.array(partition)
        found.tags()
        return partitions

    def read(found: MessageReader, version: int) -> DescribeQuorumResponse:
        error = found.int16()
        seen = [each for partitions in found.array(topic) for each in partitions]
        found.tags()
        return seen[0] if seen and not error else DescribeQuorumResponse(error, -1)

    body = array([text("__cluster_metadata") + array([int32(0) + NO_TAGS]) + NO_TAGS]) + NO_TAGS
    return Request("DescribeQuorum", 55, 1, 1, lambda _: body, read)


class DescribeConfigsResponse(Struct, frozen=True):
    error: int
    values: Mapping[str, str | None]


def describe_configs(kind: int, resource: str, names: Sequence[str]) -> Request[DescribeConfigsResponse]:
    """Return a request for settings of a broker or a topic."""

    def synonym(found: MessageReader) -> None:
        found.skip(MessageReader.text, MessageReader.text_or_none, MessageReader.int8, MessageReader.tags)

    def setting(found: MessageReader) -> tuple[str, str | None]:
        named = found.text(), found.text_or_none()
        found.skip(MessageReader.boolean, MessageReader.int8, MessageReader.boolean, many(synonym))
        found.skip(MessageReader.int8, MessageReader.text_or_none, MessageReader.tags)
        return named

    def result(found: MessageReader) -> DescribeConfigsResponse:
        error = found.int16()
        found.skip(MessageReader.text_or_none, MessageReader.int8, MessageReader.text)
        values = dict(found.array(setting))
        found.tags()
        return DescribeConfigsResponse(error, values)

    def read(found: MessageReader, version: int) -> DescribeConfigsResponse:
        found.int32()
        (seen,) = found.array(result)
        found.tags()
        return seen

    wanted = int8(kind) + text(resource) + array(list(map(text, names))) + NO_TAGS
    body = array([wanted]) + boolean(False) + boolean(False) + NO_TAGS
    return Request("DescribeConfigs", 32, 4, 4, lambda _: body, read)
