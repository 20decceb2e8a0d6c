"""Topics and transactions of a Kafka cluster, read through the Java admin client inside Spark.

The pipeline writes through librdkafka; the audit reads through the Java client, so that a mistake of one client cannot
hide in the other. Rule: it only reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from kafka_eos._util.secrets import MASK
from kafka_eos.audit.cluster.java_client_config import secrets_of
from kafka_eos.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PATIENCE_MS = 20_000
"""The timeout of one request to a broker."""
_REQUEST_SECONDS = 30
_POLL_SECONDS = 0.5
_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PreparedTransaction")


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition: first stored, last stable offset, and end (high watermark)."""

    begin: int
    stable: int
    end: int

    def settled(self, end: int) -> bool:
        """Return whether no transaction is open before ``end``."""
        return min(end, self.end) <= self.stable


Ranges = dict[str, dict[int, Range]]
"""By topic and partition."""
Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition."""


class ClusterAdmin:
    """One cluster as the audit sees it. ``close`` it."""

    def __init__(self, spark: SparkSession, config: Mapping[str, str]) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._kafka = jvm.org.apache.kafka
        properties = jvm.java.util.Properties()
        times = {"request.timeout.ms": "10000", "default.api.timeout.ms": str(PATIENCE_MS)}
        for name, value in {**config, **times}.items():
            properties.setProperty(name, value)
        tokens = config.get("sasl.oauthbearer.token.endpoint.url")
        token_source = f", with a token from {tokens}" if tokens else ""
        with _errors(f"connect to {config['bootstrap.servers']}{token_source}", secrets_of(config)):
            self._admin = self._kafka.clients.admin.AdminClient.create(properties)

    def ranges(self, topics: Iterable[str]) -> Ranges:
        """Return the current offsets of every partition of ``topics``. Raise ConfigError for a topic that does not
        exist.
        """
        wanted = sorted(set(topics))
        with _errors(f"look up topics {', '.join(wanted)}"):
            found = self._get(self._admin.describeTopics(self._list(wanted)).allTopicNames())
            sizes = {topic: found.get(topic).partitions().size() for topic in wanted}
            spec, level = self._kafka.clients.admin.OffsetSpec, self._kafka.common.IsolationLevel
            begin = self._offsets(sizes, spec.earliest(), level.READ_UNCOMMITTED)
            # The end first: records that are written meanwhile to a busy topic lie behind it, and are not open.
            end = self._offsets(sizes, spec.latest(), level.READ_UNCOMMITTED)
            stable = self._offsets(sizes, spec.latest(), level.READ_COMMITTED)
        return {
            topic: {p: Range(begin[topic, p], stable[topic, p], end[topic, p]) for p in range(size)}
            for topic, size in sizes.items()
        }

    def ids(self, topics: Iterable[str]) -> list[tuple[str, str]]:
        """Return the id of each topic. A topic that was recreated has another one."""
        wanted = sorted(set(topics))
        with _errors(f"look up topics {', '.join(wanted)}"):
            found = self._get(self._admin.describeTopics(self._list(wanted)).allTopicNames())
            return [(topic, _uuid(found.get(topic).topicId())) for topic in wanted]

    def cluster_id(self) -> str:
        with _errors("look up the cluster"):
            return str(self._get(self._admin.describeCluster().clusterId()))

    def open_transactions(self, topics: Iterable[str]) -> dict[str, list[str]]:
        """Return the names and states of open transactions in ``topics``, by topic."""
        wanted = set(topics)
        with _errors("list transactions"):
            listed = self._get(self._admin.listTransactions().all())
            names = [t.transactionalId() for t in listed if t.state().toString() in _OPEN_STATES]
            if not names:
                return {}
            described = self._get(self._admin.describeTransactions(self._list(names)).all())
            found = {name: wanted & {tp.topic() for tp in described.get(name).topicPartitions()} for name in names}
            return {
                f"{name} ({described.get(name).state().toString()})": sorted(open_in)
                for name, open_in in sorted(found.items())
                if open_in
            }

    def compacted(self, topics: Iterable[str]) -> list[str]:
        """Return those of ``topics`` from which compaction may have removed records."""
        resource = self._kafka.common.config.ConfigResource
        kind = self._jvm.org.apache.kafka.common.config.ConfigResource.Type.TOPIC
        resources = {topic: resource(kind, topic) for topic in sorted(set(topics))}
        with _errors("read topic settings"):
            found = self._get(self._admin.describeConfigs(self._list(resources.values())).all())
            return [t for t, r in resources.items() if "compact" in found.get(r).get("cleanup.policy").value()]

    def group_offsets(self, group: str) -> dict[str, dict[int, int]]:
        """Return the committed offsets of a consumer group, by topic and partition."""
        with _errors(f"read the offsets of group {group}"):
            found = self._get(self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
            offsets: dict[str, dict[int, int]] = {}
            for entry in found.entrySet():
                if entry.getValue() is not None:
                    offsets.setdefault(entry.getKey().topic(), {})[entry.getKey().partition()] = (
                        entry.getValue().offset()
                    )
        return offsets

    def offsets_at(self, topics: Iterable[str], time: datetime) -> dict[str, dict[int, int]]:
        """Return the first offset of every partition whose record is not older than ``time``; the end if there is
        none.
        """
        ranges = self.ranges(topics)
        spec, level = self._kafka.clients.admin.OffsetSpec, self._kafka.common.IsolationLevel
        moment = spec.forTimestamp(int(time.timestamp() * 1000))
        with _errors("look up offsets by time"):
            found = self._offsets({t: len(parts) for t, parts in ranges.items()}, moment, level.READ_UNCOMMITTED)
        return {
            topic: {p: at.end if found[topic, p] < 0 else found[topic, p] for p, at in parts.items()}
            for topic, parts in ranges.items()
        }

    def close(self) -> None:
        self._admin.close()

    def _offsets(self, sizes: Mapping[str, int], spec: Any, isolation: Any) -> dict[tuple[str, int], int]:
        request = self._jvm.java.util.HashMap()
        partitions = {
            (topic, p): self._kafka.common.TopicPartition(topic, p) for topic, n in sizes.items() for p in range(n)
        }
        for partition in partitions.values():
            request.put(partition, spec)
        options = self._kafka.clients.admin.ListOffsetsOptions(isolation)
        found = self._get(self._admin.listOffsets(request, options).all())
        return {name: int(found.get(partition).offset()) for name, partition in partitions.items()}

    def _get(self, future: Any) -> Any:
        return future.get(_REQUEST_SECONDS, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

    def _list(self, items: Iterable[Any]) -> Any:
        made = self._jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return made


def _uuid(found: Any) -> str:
    """Convert the client's representation of a topic id to the usual one."""
    high, low = (bits % 2**64 for bits in (found.getMostSignificantBits(), found.getLeastSignificantBits()))
    return str(UUID(int=high << 64 | low))


class TransactionView(Protocol):
    """Offsets and open transactions of topics."""

    def ranges(self, topics: Iterable[str]) -> Ranges: ...

    def open_transactions(self, topics: Iterable[str]) -> dict[str, list[str]]: ...


@contextmanager
def _errors(what: str, hidden: Collection[str] = ()) -> Iterator[None]:
    """Map errors of the Java client to one with the attempted operation and the final cause.

    ``hidden`` is not shown: a server may quote the request in its response.
    """
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        first = last = error.java_exception.getCause() or error.java_exception
        while last.getCause() is not None:
            last = last.getCause()
        # The text of a failed login continues with a stack trace.
        message, why = (str(each.toString()).partition("\n")[0] for each in (first, last))
        message += f", because of {why}" if last != first else ""
        for each in hidden:
            message = message.replace(each, MASK)
        raise ConfigError(f"the audit could not {what}: {message}") from (None if hidden else error)


def unsettled(ranges: Ranges, ends: Offsets) -> Sequence[str]:
    """Return the topics with an open transaction before ``ends``."""
    return [
        topic
        for topic, parts in ranges.items()
        if not all(at.settled(ends.get(topic, {}).get(p, at.end)) for p, at in parts.items())
    ]


def settle(
    cluster: TransactionView, topics: Collection[str], seconds: float, ends: Callable[[], Offsets]
) -> tuple[Ranges, list[str]]:
    """Wait until no transaction is open in ``topics``. Return their offsets, and transactions open at the timeout, as
    sentences.

    ``ends``: returns where reading ends. It is called after the offsets are read, which excludes later records.
    """
    deadline = time.monotonic() + seconds
    while busy := unsettled(found := cluster.ranges(topics), ends()):
        if time.monotonic() > deadline:
            return found, _in_flight(cluster, busy)
        time.sleep(_POLL_SECONDS)
    return found, []


def _in_flight(cluster: TransactionView, topics: Sequence[str]) -> list[str]:
    """Return the open transactions in ``topics``, as sentences."""
    found = cluster.open_transactions(topics) or {"that the cluster does not list (hanging)": [*topics]}
    return [
        f"a transaction {name} is open in {', '.join(at)}; stop or finish its job first" for name, at in found.items()
    ]
