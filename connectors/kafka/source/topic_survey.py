"""One survey of a cluster for many topics: their partitions, and where these begin and end.

One request names all topics, so that a job with hundreds of sources sends as many requests as one with a single source.
Rule: a topic without a response now is Retryable by itself; the others have their results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from kafka_eos.connectors.kafka.client.access_rights import describe_missing, reads
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import (
    AdminClient,
    IsolationLevel,
    OffsetSpec,
    TopicPartition,
    map_errors,
)
from kafka_eos.connectors.kafka.rpc import KafkaRequests, TopicMetadata
from kafka_eos.connectors.kafka.sink.cluster_limits import missing_topic
from kafka_eos.connectors.kafka.source.positions import partition_of, topic_of
from kafka_eos.core.errors import ConfigError, RestartFromCheckpoint, Retryable
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Position, Positions

Start: TypeAlias = "Literal['earliest', 'latest'] | datetime"
"""A rule for an offset per partition; a datetime means the first record at or after it."""

_ADMIN_TIMEOUT: Final = 20.0
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class OffsetRule(Struct, frozen=True):
    """The offset to look up in each partition, and the isolation level."""

    start: Start
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED

    @staticmethod
    def of(start: Start) -> OffsetRule:
        """Return the rule for a user's argument. A time is looked up among all records, including open transactions.

        Otherwise a broker does not look beyond the first open transaction: records in it from before the time would
        count as later ones.
        """
        at_a_time = isinstance(start, datetime)
        return OffsetRule(start, IsolationLevel.READ_UNCOMMITTED if at_a_time else IsolationLevel.READ_COMMITTED)


STABLE_OFFSET: Final = OffsetRule("latest")
LOG_START: Final = OffsetRule("earliest")
HIGH_WATERMARK: Final = OffsetRule("latest", IsolationLevel.READ_UNCOMMITTED)


class TopicSurvey:
    """The partitions and offsets of some topics at one time."""

    def __init__(
        self,
        where: Cluster,
        wanted: Callable[[Sequence[str]], Collection[str]],
        admin: Callable[[], AdminClient],
        known: Collection[Positions] = (),
        *,
        by_pattern: bool = False,
    ) -> None:
        """Query the topics.

        ``wanted``: selects the topics from all existing ones, which are listed only ``by_pattern``. ``known``: the
        positions of each source. A topic that does not serve them is queried from every broker.
        Raises Retryable if the cluster cannot be reached.
        """
        self._bootstrap, self._admin = where.bootstrap, admin
        self._found: dict[tuple[str, OffsetRule], dict[int, int] | Retryable] = {}
        with KafkaRequests(where) as rpc:
            listed = rpc.topic_names() if by_pattern else []
            self._topics = rpc.topics(wanted(listed), partial(_serves, _by_topic(known)))
        self._where = where

    @property
    def there(self) -> list[str]:
        """Return the surveyed topics that exist."""
        return [name for name, facts in self._topics.items() if facts is not None]

    @property
    def readable(self) -> list[str]:
        """Return those of them that the user may read, or of which the cluster does not say it."""
        return [name for name, facts in self._topics.items() if facts is not None and facts.may_be_read]

    @property
    def in_trouble(self) -> bool:
        """Return whether an offset could not be read."""
        return any(isinstance(answer, Retryable) for answer in self._found.values())

    def facts(self, topic: str) -> TopicMetadata:
        """Return the metadata of a topic.

        Raises ConfigError, which names all missing topics, if it does not exist or may not be read. Raises Retryable
        while one of its partitions has no leader.
        """
        facts = self._topics[topic]
        if facts is None:
            missing = [name for name, found in self._topics.items() if found is None]
            raise ConfigError("\n".join(missing_topic(name, self._bootstrap) for name in missing))
        if not facts.may_be_read:
            raise ConfigError(describe_missing(self._where, [reads(topic)]))
        if facts.leaderless:
            partitions = ", ".join(map(str, facts.leaderless))
            raise Retryable(
                f"topic {topic} has no leader now for partition {partitions}: check whether a broker is down"
            )
        return facts

    def fetch_offsets(self, wanted: Iterable[tuple[str, OffsetRule]]) -> None:
        """Look up offsets, with one request per rule for all topics. Topics without a leader are left out."""
        topics: dict[OffsetRule, dict[str, TopicMetadata]] = {}
        for topic, rule in wanted:
            facts = self._topics[topic]
            if facts is not None and not facts.leaderless:
                topics.setdefault(rule, {})[topic] = facts
        for rule, asked in topics.items():
            for topic, answer in _offsets(self._admin, rule, asked).items():
                self._found[topic, rule] = answer

    def offsets(self, topic: str, rule: OffsetRule) -> dict[int, int]:
        """Return the offsets by partition; the end for a time after the last record. Raise as ``facts``,
        or Retryable."""
        self.facts(topic)
        if (topic, rule) not in self._found:
            self.fetch_offsets([(topic, rule)])
        found = self._found[topic, rule]
        if isinstance(found, Retryable):
            raise found
        ends = OffsetRule("latest", rule.isolation)
        return known_offsets(topic, found, rule.start, lambda: self.offsets(topic, ends))


def _by_topic(known: Collection[Positions]) -> Mapping[str, Positions]:
    topics: dict[str, dict[SplitId, Position]] = {}
    for positions in known:
        for split, at in positions.items():
            topics.setdefault(topic_of(split), {})[split] = at
    return topics


def _serves(known: Mapping[str, Positions], topic: str, facts: TopicMetadata | None) -> bool:
    """Return whether a topic exists, and serves the known positions."""
    return facts is not None and all(
        at.get("topic_id") == facts.topic_id and partition_of(split) < facts.partitions
        for split, at in known.get(topic, {}).items()
    )


def _offsets(
    admin: Callable[[], AdminClient], rule: OffsetRule, topics: Mapping[str, TopicMetadata]
) -> dict[str, dict[int, int] | Retryable]:
    """Return the brokers' offset of every partition, -1 for none; or the error for a topic."""
    spec = _spec(rule.start)
    wanted = {TopicPartition(t, p): spec for t, facts in topics.items() for p in range(facts.partitions)}
    found: dict[str, dict[int, int] | Retryable] = {topic: {} for topic in topics}
    deadline = time.monotonic() + _ADMIN_TIMEOUT
    try:
        with map_errors("offsets"):
            asked = admin().list_offsets(wanted, isolation_level=rule.isolation)
    except (Retryable, RestartFromCheckpoint) as error:
        return dict.fromkeys(topics, _unknown(", ".join(topics), error))
    for at, future in asked.items():
        known = found[at.topic]
        try:
            with map_errors(f"partition {at.partition}"):
                offset = future.result(max(0.0, deadline - time.monotonic())).offset
        except (Retryable, RestartFromCheckpoint, TimeoutError) as error:
            found[at.topic] = _unknown(at.topic, error)
        else:
            if not isinstance(known, Retryable):
                known[at.partition] = offset
    return found


def _unknown(topics: str, error: Exception) -> Retryable:
    return Retryable(f"the offsets of {topics} could not be read: {error}")


def known_offsets(
    topic: str, found: Mapping[int, int], at: Start, ends: Callable[[], Mapping[int, int]]
) -> dict[int, int]:
    """Return the offsets by partition from brokers' responses; ``ends`` gives them for times after the last record.

    Raises Retryable if the broker returns no offset of a beginning or an end: taking the end for the beginning would
    skip all records in between.
    """
    unknown = sorted(partition for partition, offset in found.items() if offset < 0)
    if unknown and not isinstance(at, datetime):
        raise Retryable(f"the {at} offsets of {topic} are unknown now, in partitions {unknown}")
    last = ends() if unknown else {}
    return {partition: last[partition] if partition in unknown else offset for partition, offset in found.items()}


def is_to_come(at: datetime) -> bool:
    return at.astimezone(UTC) > datetime.now(UTC)


def _spec(at: Start) -> OffsetSpec:
    spec: Any = OffsetSpec
    found: OffsetSpec = spec.for_timestamp(_milliseconds(at)) if isinstance(at, datetime) else getattr(spec, at)()
    return found


def _milliseconds(at: datetime) -> int:
    """Return the time since the Unix epoch, rounded up, because a record before it is not after ``at``."""
    return -((_EPOCH - at.astimezone(UTC)) // timedelta(milliseconds=1))
