"""Requests for properties of a cluster: its features, its settings and its topics.

Rule: no request creates anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from kafka_eos.connectors.kafka.client.access_rights import (
    AclOperation,
    Permission,
    ResourceType,
    describe_missing,
    parse_operations,
)
from kafka_eos.connectors.kafka.rpc.error_codes import FORBIDDEN, LEADER_UNKNOWN, RETRYABLE, TOPIC_UNKNOWN, expect
from kafka_eos.connectors.kafka.rpc.messages.cluster import (
    BROKER,
    TOPIC,
    DescribeConfigsResponse,
    MetadataResponse,
    MetadataTopic,
    describe_configs,
    describe_quorum,
    metadata,
)
from kafka_eos.connectors.kafka.rpc.messages.connection import ApiVersionsResponse, api_versions
from kafka_eos.connectors.kafka.rpc.messages.transactions import ADD_PARTITIONS_TO_TXN, END_TXN
from kafka_eos.connectors.kafka.rpc.retrying_request import RequestSender
from kafka_eos.core.errors import ConfigError, Retryable

_NEW_TOPIC_SECONDS: Final = 2.0
_ONE_OF_MANY_SECONDS: Final = 2.0
"""The timeout of a request that any other broker can answer as well."""
_CLOCK_SECONDS: Final = 60.0
"""Seconds after which the cluster's clock is measured again."""
_JUMP_SECONDS: Final = 1.0
"""Seconds by which this machine's clock may differ from the monotonic one since the last measurement."""
_CLOCK_WAIT: Final = 2.0
"""The timeout of a measurement: no commit waits longer for it."""


class TopicMetadata(Struct, frozen=True):
    """The metadata of one topic: id, partitions, replicas, leaderless partitions, permissions, leaders.

    ``leaderless``: partitions without a leader now. ``may``: operations that the user is permitted; None if the broker
    does not report them.
    """

    topic_id: str
    partitions: int
    replicas: int
    leaderless: tuple[int, ...]
    may: frozenset[AclOperation] | None = None
    leaders: frozenset[int] = frozenset()

    @property
    def may_be_read(self) -> bool:
        """Return whether the user may read it, or the broker does not report it."""
        return self.may is None or AclOperation.READ in self.may


def _exists(topic: str, facts: TopicMetadata | None) -> bool:
    return facts is not None


class MetadataRequests(RequestSender):
    """Requests that any broker of the cluster can answer."""

    _end_txn_version: int | None = None
    _clock: tuple[float, float, float | None] = (float("-inf"), 0.0, None)
    """When the cluster's clock was measured, by the monotonic clock of this process, and by how much the clock of this
    machine and that of the cluster were ahead of it then."""

    def cluster_id(self) -> str:
        """Return the id of the cluster; "" if its brokers do not report one. See ``expect_cluster``."""
        if self._brokers.cluster_id is None:
            self._nodes()
        return self._brokers.cluster_id or ""

    def expect_cluster(self, cluster_id: str) -> None:
        """Work with this cluster only. Raise OtherCluster if the brokers that respond in time belong to another one."""
        self._brokers.expect_cluster(cluster_id)
        if not self._brokers.joined:
            self._nodes()

    def transaction_version(self) -> int:
        """Return the finalized feature level ``transaction.version``; 0 on brokers without it."""
        return self._abilities().features.get("transaction.version", 0)

    def end_txn_version(self) -> int:
        """Return 5 if the broker bumps the epoch at the end of a transaction (it then fences zombies), else 4."""
        if self._end_txn_version is None:
            found = self._abilities()
            _, newest = found.versions.get(END_TXN, (0, 0))
            self._end_txn_version = 5 if found.features.get("transaction.version", 0) >= 2 and newest >= 5 else 4
        return self._end_txn_version

    def verifies_transactions(self) -> bool:
        """Return whether brokers refuse records that belong to no open transaction (KIP-890, Kafka 3.6 and newer).

        They verify this with AddPartitionsToTxn, from version 4 on.
        """
        _, newest = self._abilities().versions.get(ADD_PARTITIONS_TO_TXN, (0, 0))
        return newest >= 4

    def _abilities(self) -> ApiVersionsResponse:
        return self._send(api_versions(), None, lambda answer: answer.error)

    def clock(self) -> tuple[float, float] | None:
        """Return how many seconds the cluster's clock is ahead of this machine's, and the possible error.

        Returns None if the cluster does not report it: before 3.3, with ZooKeeper, or without the permission Describe
        on Cluster.
        """
        self._abilities()  # connect first, so that the measured time does not include connecting
        try:
            began = time.time()
            seen = self._send(describe_quorum(), None, lambda seen: seen.error, forbidden=False, seconds=_CLOCK_WAIT)
            ended = time.time()
        except ConfigError:
            return None
        if seen.error or seen.now < 0:
            return None
        return seen.now / 1000 - (began + ended) / 2, (ended - began) / 2

    def latest_time(self) -> float | None:
        """Return the latest possible time of the cluster's clock, in seconds; None if it is not known. See ``clock``.

        It is measured once per minute, and does not depend on what this machine's clock shows. If that clock has
        jumped, it is measured at once: the machine may have slept, which the monotonic clock does not count. If a
        measurement fails, the previous one is used.
        """
        measured_at, ahead, difference = self._clock
        now, present = time.monotonic(), time.time() - time.monotonic()
        if now > measured_at + _CLOCK_SECONDS or abs(present - ahead) > _JUMP_SECONDS:
            with suppress(Retryable):
                clock = self.clock()
                difference = None if clock is None else time.time() + sum(clock) - time.monotonic()
            self._clock = time.monotonic(), present, difference
        return None if difference is None else time.monotonic() + difference

    def broker_config(self, name: str) -> str | None:
        """Return one setting of the first broker that responds; None if the user may not read it."""
        deadline = time.monotonic() + self._patience
        while True:
            for node in self._nodes():  # some may be down without the cluster knowing
                try:
                    return self._configs(BROKER, str(node), [name], node, _ONE_OF_MANY_SECONDS)[name]
                except Retryable:
                    if time.monotonic() > deadline:
                        raise

    def topic_config(self, topic: str, name: str) -> str | None:
        """Return one setting of a topic; None if the user may not read it, or the topic does not exist."""
        return self.topic_configs(topic, [name])[name]

    def topic_configs(self, topic: str, names: Sequence[str]) -> dict[str, str | None]:
        """Return settings of a topic; see ``topic_config``."""
        if self.topic(topic) is None:
            return dict.fromkeys(names)
        return self._configs(TOPIC, topic, names, None, self._patience)

    def _configs(
        self, kind: int, resource: str, names: Sequence[str], node: int | None, seconds: float
    ) -> dict[str, str | None]:
        def code(answer: DescribeConfigsResponse) -> int:  # retry a broker that does not know the topic yet
            return LEADER_UNKNOWN if answer.error == TOPIC_UNKNOWN else answer.error

        request = describe_configs(kind, resource, names)
        answer = self._send(request, node, code, forbidden=False, seconds=seconds)
        if answer.error in FORBIDDEN:
            return dict.fromkeys(names)
        expect(answer.error, {0}, f"DescribeConfigs of {resource}")
        return {name: answer.values.get(name) for name in names}

    def topic(self, name: str) -> TopicMetadata | None:
        """Return the metadata of a topic, without creating it; None if it does not exist. See ``topics``."""
        return self.topics([name])[name]

    def topics(
        self, names: Collection[str], is_expected: Callable[[str, TopicMetadata | None], bool] = _exists
    ) -> dict[str, TopicMetadata | None]:
        """Return the metadata of these topics, without creating them; None for those that do not exist.

        One broker may have outdated metadata. So topics that are not as expected are requested for 2 s from every
        broker, until one of them shows what is expected.
        """
        deadline = time.monotonic() + _NEW_TOPIC_SECONDS
        found = self._topics(names)
        while (doubtful := [n for n, facts in found.items() if not is_expected(n, facts)]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.1)
            for node in self._nodes():
                for name, facts in self._topics_at(node, doubtful).items():
                    if facts is not None and not (found[name] and is_expected(name, found[name])):
                        found[name] = facts
        return found

    def _topics_at(self, node: int, names: Collection[str]) -> dict[str, TopicMetadata | None]:
        """Return the metadata that one broker has of these topics; nothing if it does not respond."""
        try:
            return self._topics(names, node, _ONE_OF_MANY_SECONDS)
        except Retryable:
            return {}

    def topic_ids(self, names: Collection[str]) -> dict[str, frozenset[str]]:
        """Return the ids that the leaders of each topic's partitions have; none for a topic that no broker knows.

        The leader that serves a topic's records knows its id; another broker may still have the id of an older topic.
        """
        found = self.topics(names)
        ids: dict[str, set[str]] = {name: set() for name in names}
        topics_by_leader: dict[int, list[str]] = {}
        for name, facts in found.items():
            if facts is not None and not facts.leaders:
                ids[name].add(facts.topic_id)
            for leader in () if facts is None else facts.leaders:
                topics_by_leader.setdefault(leader, []).append(name)
        for leader, led in topics_by_leader.items():
            for name, facts in self._topics(led, leader, _ONE_OF_MANY_SECONDS).items():
                if facts is not None:
                    ids[name].add(facts.topic_id)
        return {name: frozenset(each) for name, each in ids.items()}

    def topic_names(self) -> list[str]:
        """Return all topics that the user may see, except internal ones."""
        answer = self._send(metadata(None), None, _worst)
        return sorted(topic.name for topic in answer.topics if not topic.internal)

    def _topics(
        self, names: Collection[str], node: int | None = None, seconds: float | None = None
    ) -> dict[str, TopicMetadata | None]:
        answer = self._send(metadata(sorted(names)), node, _worst, forbidden=False, seconds=seconds)
        if hidden := [topic.name for topic in answer.topics if topic.error in FORBIDDEN]:
            needed = [Permission(AclOperation.DESCRIBE, ResourceType.TOPIC, name) for name in hidden]
            raise ConfigError(
                f"{describe_missing(self._cluster, needed)} (Read or Write imply it). Kafka does not "
                "report whether it exists."
            )
        return {topic.name: _topic_facts(topic) for topic in answer.topics}

    def expect_rights(self, needed: Collection[Permission]) -> None:
        """Raise ConfigError with all topic permissions that the user lacks. Unreported permissions are assumed to
        exist."""
        facts = self.topics({right.name for right in needed})
        missing = [
            right
            for right in needed
            if (found := facts[right.name]) and found.may is not None and right.operation not in found.may
        ]
        if missing:
            raise ConfigError(describe_missing(self._cluster, missing))


def _worst(answer: MetadataResponse) -> int:
    """Return the most severe error code. A topic without a leader has metadata, an unknown topic has none."""
    codes = {topic.error for topic in answer.topics} - {0, TOPIC_UNKNOWN, LEADER_UNKNOWN}
    return max(codes, key=lambda code: (code in RETRYABLE, code in FORBIDDEN), default=0)


def _topic_facts(found: MetadataTopic) -> TopicMetadata | None:
    if found.error == TOPIC_UNKNOWN:
        return None
    expect(found.error, {0, LEADER_UNKNOWN}, f"Metadata of topic {found.name}")
    return TopicMetadata(
        found.topic_id,
        len(found.partitions),
        min((part.replicas for part in found.partitions), default=0),
        tuple(sorted(part.index for part in found.partitions if part.leader < 0)),
        parse_operations(found.may),
        frozenset(part.leader for part in found.partitions if part.leader >= 0),
    )
