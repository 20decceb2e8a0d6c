"""One look at a cluster for many topics: which partitions they have, and where these begin and end.

A request names all topics at once, so that a job with hundreds of sources asks as often as one with a single source.
Rule: a topic that cannot be answered for now is Retryable by itself; the others have their answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from kafka_eos.connectors.kafka.client.access_rights import Operation, lacking, reads
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import (
    AdminClient,
    IsolationLevel,
    OffsetSpec,
    TopicPartition,
    kafka_errors,
)
from kafka_eos.connectors.kafka.rpc import KafkaRequests, TopicFacts
from kafka_eos.connectors.kafka.sink.cluster_limits import missing_topic
from kafka_eos.core.errors import ConfigError, RestartFromCheckpoint, Retryable

Start: TypeAlias = "Literal['earliest', 'latest'] | datetime"
"""A rule that gives every partition an offset; a datetime that of the first record at or after it."""

_ADMIN_TIMEOUT: Final = 20.0
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Rule:
    """Which offset of each partition: by ``start``, among the records that a reader of that isolation sees."""

    start: Start
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED

    @staticmethod
    def of(start: Start) -> Rule:
        """What a user wrote. A time is looked up among all records, also those of open transactions.

        A broker does not look behind the first open transaction else: records of before the time that are in it would
        count as later ones.
        """
        at_a_time = isinstance(start, datetime)
        return Rule(start, IsolationLevel.READ_UNCOMMITTED if at_a_time else IsolationLevel.READ_COMMITTED)


END: Final = Rule("latest")
LOG_START: Final = Rule("earliest")
LOG_END: Final = Rule("latest", IsolationLevel.READ_UNCOMMITTED)


class Survey:
    """What a cluster says of some topics at this moment."""

    def __init__(
        self,
        where: Cluster,
        wanted: Callable[[Sequence[str]], Collection[str]],
        admin: Callable[[], AdminClient],
        *,
        by_pattern: bool = False,
    ) -> None:
        """``wanted``: the topics to look at, of all that there are; these are asked for only ``by_pattern``.

        Raises Retryable if the cluster cannot be reached.
        """
        self._bootstrap, self._admin = where.bootstrap, admin
        self._found: dict[tuple[str, Rule], dict[int, int] | Retryable] = {}
        with KafkaRequests(where) as rpc:
            listed = rpc.topic_names() if by_pattern else []
            self._topics = rpc.topics(wanted(listed))
        self._where = where

    @property
    def there(self) -> list[str]:
        """The topics that there are, of those that were looked at."""
        return [name for name, facts in self._topics.items() if facts is not None]

    @property
    def in_trouble(self) -> bool:
        """Is there an offset that nobody could tell?"""
        return any(isinstance(answer, Retryable) for answer in self._found.values())

    def facts(self, topic: str) -> TopicFacts:
        """Raises ConfigError, which names all that are missing, if there is no such topic, or it may not be read.

        Raises Retryable while a partition of it has no leader.
        """
        facts = self._topics[topic]
        if facts is None:
            missing = [name for name, found in self._topics.items() if found is None]
            raise ConfigError("\n".join(missing_topic(name, self._bootstrap) for name in missing))
        if facts.may is not None and Operation.READ not in facts.may:
            raise ConfigError(lacking(self._where, [reads(topic)]))
        if facts.leaderless:
            partitions = ", ".join(map(str, facts.leaderless))
            raise Retryable(f"topic {topic} has no leader now for partition {partitions}: is a broker down?")
        return facts

    def look(self, wanted: Iterable[tuple[str, Rule]]) -> None:
        """Ask for these offsets, with one request for all topics of a rule. Topics without a leader are left out."""
        topics: dict[Rule, dict[str, TopicFacts]] = {}
        for topic, rule in wanted:
            facts = self._topics[topic]
            if facts is not None and not facts.leaderless:
                topics.setdefault(rule, {})[topic] = facts
        for rule, asked in topics.items():
            for topic, answer in _offsets(self._admin, rule, asked).items():
                self._found[topic, rule] = answer

    def offsets(self, topic: str, rule: Rule) -> dict[int, int]:
        """By partition. A time after the last record is the end. Raises as ``facts`` does, or Retryable."""
        self.facts(topic)
        if (topic, rule) not in self._found:
            self.look([(topic, rule)])
        found = self._found[topic, rule]
        if isinstance(found, Retryable):
            raise found
        ends = Rule("latest", rule.isolation)
        return known_offsets(topic, found, rule.start, lambda: self.offsets(topic, ends))


def _offsets(
    admin: Callable[[], AdminClient], rule: Rule, topics: Mapping[str, TopicFacts]
) -> dict[str, dict[int, int] | Retryable]:
    """What the brokers say of every partition, -1 where there is none; or for a topic why nobody can tell."""
    spec = _spec(rule.start)
    wanted = {TopicPartition(t, p): spec for t, facts in topics.items() for p in range(facts.partitions)}
    found: dict[str, dict[int, int] | Retryable] = {topic: {} for topic in topics}
    deadline = time.monotonic() + _ADMIN_TIMEOUT
    try:
        with kafka_errors("offsets"):
            asked = admin().list_offsets(wanted, isolation_level=rule.isolation)
    except (Retryable, RestartFromCheckpoint) as error:
        return dict.fromkeys(topics, _unknown(", ".join(topics), error))
    for at, future in asked.items():
        known = found[at.topic]
        try:
            with kafka_errors(f"partition {at.partition}"):
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
    """Offsets by partition from a broker's answers at a start rule; ``ends`` is asked for those after the last record.

    Raises Retryable if the broker names no offset of a beginning or an end: the end taken for the beginning would pass
    over all that is between them.
    """
    unknown = sorted(partition for partition, offset in found.items() if offset < 0)
    if unknown and not isinstance(at, datetime):
        raise Retryable(f"the {at} offsets of {topic} are not known now, in partitions {unknown}")
    last = ends() if unknown else {}
    return {partition: last[partition] if partition in unknown else offset for partition, offset in found.items()}


def is_to_come(at: datetime) -> bool:
    return at.astimezone(UTC) > datetime.now(UTC)


def _spec(at: Start) -> OffsetSpec:
    spec: Any = OffsetSpec
    found: OffsetSpec = spec.for_timestamp(_milliseconds(at)) if isinstance(at, datetime) else getattr(spec, at)()
    return found


def _milliseconds(at: datetime) -> int:
    """Since the Unix epoch; a part of one counts as a whole one, since a record before it is not after ``at``."""
    return -((_EPOCH - at.astimezone(UTC)) // timedelta(milliseconds=1))
