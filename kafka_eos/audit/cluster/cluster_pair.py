"""Two clusters, one with the inputs of an audit and one with its outputs, as the audit sees them.

Rule: each request names only topics of its own cluster. A topic belongs to the inputs or to the outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TypeAlias

from kafka_eos.audit.cluster.cluster_admin import ClusterAdmin, Ranges


class ClusterPair:
    """The cluster of the inputs and that of the outputs. ``close`` it."""

    def __init__(self, inputs: ClusterAdmin, outputs: ClusterAdmin, input_topics: Collection[str]) -> None:
        self._inputs, self._outputs = inputs, outputs
        self._input_topics = frozenset(input_topics)

    def ranges(self, topics: Iterable[str]) -> Ranges:
        return {topic: parts for cluster, some in self._split(topics) for topic, parts in cluster.ranges(some).items()}

    def ids(self, topics: Iterable[str]) -> list[tuple[str, str]]:
        return [known for cluster, some in self._split(topics) for known in cluster.ids(some)]

    def cluster_id(self) -> str:
        return f"{self._inputs.cluster_id()} to {self._outputs.cluster_id()}"

    def open_transactions(self, topics: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for cluster, some in self._split(topics):
            for name, open_in in cluster.open_transactions(some).items():
                found.setdefault(name, []).extend(open_in)
        return found

    def compacted(self, topics: Iterable[str]) -> list[str]:
        return [topic for cluster, some in self._split(topics) for topic in cluster.compacted(some)]

    def group_offsets(self, group: str) -> dict[str, dict[int, int]]:
        """Return the offsets of a group that reads the inputs."""
        return self._inputs.group_offsets(group)

    def offsets_at(self, topics: Iterable[str], time: datetime) -> dict[str, dict[int, int]]:
        return {
            topic: parts
            for cluster, some in self._split(topics)
            for topic, parts in cluster.offsets_at(some, time).items()
        }

    def close(self) -> None:
        self._inputs.close()
        self._outputs.close()

    def _split(self, topics: Iterable[str]) -> list[tuple[ClusterAdmin, list[str]]]:
        wanted = set(topics)
        parts = (self._inputs, wanted & self._input_topics), (self._outputs, wanted - self._input_topics)
        return [(cluster, sorted(some)) for cluster, some in parts if some]


Clusters: TypeAlias = ClusterAdmin | ClusterPair
