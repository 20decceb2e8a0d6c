"""The size of topics, read before the Spark session is opened. It only determines how the session is prepared.

Rule: a cluster that does not answer soon, or a login that only the Java client knows, counts as unknown. No check of
the audit uses these offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from kafka_eos.connectors.kafka.client.librdkafka import AdminClient, OffsetSpec, TopicPartition, run_with_deadline

_SECONDS: Final = 5.0


def count_offsets(bootstrap: str, config: Mapping[str, Any], topics: Collection[str]) -> int | None:
    """Return the number of offsets that topics hold, an upper bound of their records; None if it is unknown."""
    try:
        return run_with_deadline(lambda: _count(bootstrap, config, topics), _SECONDS, "topic sizes")
    except Exception:  # noqa: BLE001 - the audit's own client reports whatever is wrong
        return None


def _count(bootstrap: str, config: Mapping[str, Any], topics: Collection[str]) -> int:
    admin = AdminClient({**config, "bootstrap.servers": bootstrap, "log_level": 0})
    known = admin.list_topics(timeout=_SECONDS).topics
    partitions = [TopicPartition(topic, number) for topic in topics for number in known[topic].partitions]
    offsets: list[int] = []
    spec: Any = OffsetSpec
    for rule in (spec.earliest(), spec.latest()):
        found = admin.list_offsets(dict.fromkeys(partitions, rule))
        offsets.append(sum(future.result(_SECONDS).offset for future in found.values()))
    return offsets[1] - offsets[0]
