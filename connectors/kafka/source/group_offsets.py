"""The offsets of a source's consumer group: committed for lag tools, and read as signs of other incarnations.

Rule: no position is ever taken from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_eos.abc.incarnation import IncarnationSign
from kafka_eos.connectors.kafka import job_names as names
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.source.positions import offset_of, partition_of, topic_of
from kafka_eos.connectors.kafka.source.subscription import Subscription
from kafka_eos.core.ids import JobIdentity
from kafka_eos.core.json_values import Positions


def offsets_by_topic(positions: Positions) -> Mapping[str, Mapping[int, int]]:
    """Return positions as offsets by partition, for each topic."""
    by_topic: dict[str, dict[int, int]] = {}
    for split, at in positions.items():
        by_topic.setdefault(topic_of(split), {})[partition_of(split)] = offset_of(at)
    return by_topic


def list_committers(rpc: KafkaRequests, group: str, topics: Subscription) -> list[names.OffsetMetadata]:
    """Return who committed the group's offsets of these topics; offsets of other programs are ignored."""
    # Use our own request: librdkafka was seen to crash on the response of a cluster without groups.
    listed = rpc.topic_names() if topics.pattern is not None else ()
    metadata = [
        each
        for topic, facts in rpc.topics(topics.select_topics(listed)).items()
        if facts is not None  # a missing topic has no offsets; the discovery reports all missing topics
        for each in rpc.committed(group, topic, range(facts.partitions)).values()
    ]
    committers = [names.OffsetMetadata.parse(each) for each in metadata]
    return [by for by in committers if by is not None]


def list_group_incarnations(job: str, group: str, committers: Sequence[names.OffsetMetadata]) -> list[IncarnationSign]:
    """Return signs of the incarnations of ``job`` among those that committed a group's offsets."""
    written: dict[JobIdentity | None, list[names.OffsetMetadata]] = {}
    for by in committers:
        if by.job == job:
            written.setdefault(by.identity, []).append(by)
    return [
        IncarnationSign(
            identity,
            f"consumer group {group!r}",
            "committed offsets",
            max(by.epoch.term for by in found),
            committed=max(by.epoch.epoch for by in found),
            process=max(((by.epoch.term, by.epoch.epoch), (by.host, by.pid)) for by in found)[1],
        )
        for identity, found in written.items()
    ]
