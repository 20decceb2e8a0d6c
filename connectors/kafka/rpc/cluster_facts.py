"""Requests for what a cluster says of itself: its features, its settings and its topics.

Rule: nothing is created by asking.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kafka_eos.connectors.kafka.client.access_rights import Kind, Operation, Right, lacking, told
from kafka_eos.connectors.kafka.rpc.error_codes import ASK_AGAIN, FORBIDDEN, LEADER_UNKNOWN, TOPIC_UNKNOWN, expect
from kafka_eos.connectors.kafka.rpc.messages.cluster import (
    BROKER,
    TOPIC,
    ClusterSeen,
    ConfigSeen,
    TopicSeen,
    describe_configs,
    describe_quorum,
    metadata,
)
from kafka_eos.connectors.kafka.rpc.messages.connection import Abilities, api_versions
from kafka_eos.connectors.kafka.rpc.messages.transactions import END_TXN
from kafka_eos.connectors.kafka.rpc.retrying_request import Asking
from kafka_eos.core.errors import ConfigError, Retryable

_NEW_TOPIC_SECONDS: Final = 2.0
_ONE_OF_MANY_SECONDS: Final = 2.0
"""For a request that any broker can answer as well."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """Metadata of one topic. ``leaderless`` are partitions without a leader now.

    ``may`` is what the user may do with it; None if the broker does not tell.
    """

    topic_id: str
    partitions: int
    replicas: int
    leaderless: tuple[int, ...]
    may: frozenset[Operation] | None = None


class Facts(Asking):
    """Any broker, as one that speaks for the cluster."""

    _end_txn_version: int | None = None

    def transaction_version(self) -> int:
        """The finalized feature level ``transaction.version``; 0 on brokers without it."""
        return self._abilities().features.get("transaction.version", 0)

    def end_txn_version(self) -> int:
        """5 where the broker bumps the epoch at the end of a transaction (it then fences zombies), else 4."""
        if self._end_txn_version is None:
            found = self._abilities()
            _, newest = found.versions.get(END_TXN, (0, 0))
            self._end_txn_version = 5 if found.features.get("transaction.version", 0) >= 2 and newest >= 5 else 4
        return self._end_txn_version

    def _abilities(self) -> Abilities:
        return self._ask(api_versions(), None, lambda answer: answer.error)

    def clock(self) -> tuple[float, float] | None:
        """Seconds by which the cluster's clock is ahead of this machine's, and how far that may be wrong.

        None if the cluster does not tell, as one before 3.3, or with ZooKeeper; or not this user (Describe on Cluster).
        """
        self._abilities()  # so that the time of the answer has no connecting in it
        try:
            began = time.time()
            seen = self._ask(describe_quorum(), None, lambda answer: answer.error, forbidden=False)
            ended = time.time()
        except ConfigError:
            return None
        if seen.error or seen.now < 0:
            return None
        return seen.now / 1000 - (began + ended) / 2, (ended - began) / 2

    def broker_config(self, name: str) -> str | None:
        """One setting of the first broker that answers; None if the user may not read it."""
        deadline = time.monotonic() + self._patience
        while True:
            for node in self._nodes():  # some may be dead, and not known to be
                try:
                    return self._config(BROKER, str(node), name, node, _ONE_OF_MANY_SECONDS)
                except Retryable:
                    if time.monotonic() > deadline:
                        raise

    def topic_config(self, topic: str, name: str) -> str | None:
        """One setting of a topic; None if the user may not read it, or the topic does not exist."""
        if self.topic(topic) is None:
            return None
        return self._config(TOPIC, topic, name, None, self._patience)

    def _config(self, kind: int, resource: str, name: str, node: int | None, seconds: float) -> str | None:
        def code(answer: ConfigSeen) -> int:  # a broker that has not heard of the topic yet is asked again
            return LEADER_UNKNOWN if answer.error == TOPIC_UNKNOWN else answer.error

        request = describe_configs(kind, resource, name)
        answer = self._ask(request, node, code, forbidden=False, seconds=seconds)
        if answer.error in FORBIDDEN:
            return None
        expect(answer.error, {0}, f"DescribeConfigs of {resource}")
        return answer.values.get(name)

    def topic(self, name: str) -> TopicFacts | None:
        """Metadata of a topic, without creating it; None if it does not exist. See ``topics``."""
        return self.topics([name])[name]

    def topics(self, names: Collection[str]) -> dict[str, TopicFacts | None]:
        """Metadata of these topics from one request, without creating them; None for one that does not exist.

        A topic that was created a moment ago is unknown to the broker for some milliseconds: asked again for 2 s.
        """
        deadline = time.monotonic() + _NEW_TOPIC_SECONDS
        found = self._topics(names)
        while None in found.values() and time.monotonic() < deadline:
            time.sleep(0.1)
            found |= self._topics([name for name, facts in found.items() if facts is None])
        return found

    def topic_names(self) -> list[str]:
        """All topics that the user may see, without those that are the cluster's own."""
        answer = self._ask(metadata(None), None, _worst)
        return sorted(topic.name for topic in answer.topics if not topic.internal)

    def _topics(self, names: Collection[str]) -> dict[str, TopicFacts | None]:
        answer = self._ask(metadata(sorted(names)), None, _worst, forbidden=False)
        if hidden := [topic.name for topic in answer.topics if topic.error in FORBIDDEN]:
            needed = [Right(Operation.DESCRIBE, Kind.TOPIC, name) for name in hidden]
            raise ConfigError(
                f"{lacking(self._cluster, needed)} (Read or Write imply it). Kafka does not tell whether it is there."
            )
        return {topic.name: _topic_facts(topic) for topic in answer.topics}

    def expect_rights(self, needed: Collection[Right]) -> None:
        """ConfigError that names all the rights to topics that the user lacks. Those that nobody tells are believed."""
        facts = self.topics({right.name for right in needed})
        missing = [
            right
            for right in needed
            if (found := facts[right.name]) and found.may is not None and right.operation not in found.may
        ]
        if missing:
            raise ConfigError(lacking(self._cluster, missing))


def _worst(answer: ClusterSeen) -> int:
    """What is to be done about topics. One that has no leader yet still has metadata, one that is unknown has none."""
    codes = {topic.error for topic in answer.topics} - {0, TOPIC_UNKNOWN, LEADER_UNKNOWN}
    return max(codes, key=lambda code: (code in ASK_AGAIN, code in FORBIDDEN), default=0)


def _topic_facts(found: TopicSeen) -> TopicFacts | None:
    if found.error == TOPIC_UNKNOWN:
        return None
    expect(found.error, {0, LEADER_UNKNOWN}, f"Metadata of topic {found.name}")
    return TopicFacts(
        found.topic_id,
        len(found.partitions),
        min((part.replicas for part in found.partitions), default=0),
        tuple(sorted(part.index for part in found.partitions if part.leader < 0)),
        told(found.may),
    )
