"""The pinned input of a job's audit.

It consists of topics without open transactions, their offsets at one moment, and the records that the job has read.

Rule: every offset is pinned before the first scan. A reason against a sound scan is reported in a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_eos.audit.cluster.cluster_admin import ClusterAdmin, Range, Ranges, settle
from kafka_eos.audit.cluster.java_client_config import java_config
from kafka_eos.audit.facts.audit_subject import Directory, Subject, Topic
from kafka_eos.audit.facts.job_ledger import Ledger, read_ledger
from kafka_eos.audit.facts.starting_savepoint import StartingSavepoint
from kafka_eos.storage.job_storage import JobStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafka_eos.audit.tables.topic_tables import Bounds


@dataclass(frozen=True)
class PinnedOffsets:
    """Offsets of all topics at one moment without open transactions, by stream or sink."""

    ranges: Mapping[str, Mapping[int, Range]]
    compacted: tuple[str, ...]
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)


class PinnedInput:
    """The topics and files of one audit. ``close`` it."""

    def __init__(
        self,
        spark: SparkSession,
        subject: Subject,
        storage: JobStorage,
        place: Path | str,
        ledger: Ledger,
        beginning: StartingSavepoint | None,
    ) -> None:
        """``place``: where the ``storage`` is. ``beginning``: the savepoint that the ``ledger`` begins with."""
        self._subject = subject
        self._storage = storage
        self._place = place
        self._ledger = ledger
        self.beginning = beginning
        self.pinned = PinnedOffsets({}, ())
        self._clusters: dict[tuple[tuple[str, str], ...], tuple[ClusterAdmin, set[str]]] = {}
        self._cluster_of: dict[tuple[str, str], ClusterAdmin] = {}
        """The cluster of each source's or sink's topic: another cluster may have a topic of the same name."""
        for topic in (*subject.sources, *subject.topics):
            config = java_config(topic.bootstrap, topic.config)
            key = tuple(sorted(config.items()))
            if key not in self._clusters:
                self._clusters[key] = (ClusterAdmin(spark, config), set())
            self._clusters[key][1].add(topic.topic)
            self._cluster_of[topic.node, topic.topic] = self._clusters[key][0]

    def close(self) -> None:
        for cluster, _ in self._clusters.values():
            cluster.close()

    def obstacles(self, seconds: float) -> list[str]:
        """Pin the offsets, and wait until nothing before them is in flight. Return the reasons why they do not allow a
        verdict.

        The job has stopped, so all of its output lies before the present ends. Other jobs may write on behind them.
        """
        found, busy = dict[ClusterAdmin, Ranges](), list[str]()
        for cluster, topics in self._clusters.values():
            ends = {topic: {p: at.end for p, at in parts.items()} for topic, parts in cluster.ranges(topics).items()}
            now, in_flight = settle(cluster, topics, seconds, partial(dict, ends))
            found[cluster] = {
                topic: {p: Range(now[topic][p].begin, now[topic][p].stable, end) for p, end in parts.items()}
                for topic, parts in ends.items()
            }
            busy += in_flight
        if busy:
            return busy
        self._pin(found)
        return self._unsound()

    def _pin(self, found: Mapping[ClusterAdmin, Ranges]) -> None:
        def ranges(topic: Topic) -> Mapping[int, Range]:
            return found[self._cluster_of[topic.node, topic.topic]][topic.topic]

        streams = {source.stream: ranges(source) for source in self._subject.sources}
        compacted = [t for cluster, topics in self._clusters.values() for t in cluster.compacted(topics)]
        files = {directory.node: self._files(directory) for directory in self._subject.directories}
        self.pinned = PinnedOffsets(
            streams | {sink.node: ranges(sink) for sink in self._subject.topics}, tuple(compacted), files
        )

    def _unsound(self) -> list[str]:
        now = read_ledger(self._storage, self._subject.plan.name, self._place)
        if now.newest != self._ledger.newest:
            return ["the job is running: it committed another epoch while the audit began"]
        if now.unfinished is not None:
            return [f"epoch {now.unfinished} is decided but not committed; start the job once more to finish it"]
        if recreated := self._list_recreated():
            return recreated
        return [
            f"input {source.topic}/{partition} was read from offset {start}, but now begins at {at.begin}"
            for source in self._subject.sources
            for partition, at in self.pinned.ranges[source.stream].items()
            if (start := self._start(source, partition, at)) < at.begin
        ]

    def _list_recreated(self) -> list[str]:
        """List the input topics that were recreated since the job has read them."""
        known = self._ledger.topic_ids
        ids = {cluster: dict(cluster.ids(topics)) for cluster, topics in self._clusters.values()}
        now = [(s, ids[self._cluster_of[s.node, s.topic]][s.topic]) for s in self._subject.sources]
        return [
            f"input {source.topic} was deleted and created again since the job read it (topic id "
            f"{known[source.stream]}, now {topic_id}): the expected outputs cannot be computed from it"
            for source, topic_id in now
            if known.get(source.stream, topic_id) != topic_id
        ]

    # ------------------------------------------------------------ what was read

    def inputs(self) -> dict[str, Bounds]:
        """Return by stream the range from the job's start to the position of its last committed epoch."""
        return {
            source.stream: {
                p: (self._start(source, p, at), max(self._start(source, p, at), self._position(source, p, at)))
                for p, at in self.pinned.ranges[source.stream].items()
            }
            for source in self._subject.sources
        }

    def ahead(self) -> dict[str, Bounds]:
        """Return by stream the range from that position to the pinned end."""
        return {
            source.stream: {
                p: (self._position(source, p, at), at.end) for p, at in self.pinned.ranges[source.stream].items()
            }
            for source in self._subject.sources
        }

    def skipped(self) -> int:
        """Return the number of offsets of the inputs before the job's start."""
        return sum(
            max(0, self._start(source, p, at) - at.begin)
            for source in self._subject.sources
            for p, at in self.pinned.ranges[source.stream].items()
        )

    def outputs(self) -> dict[str, Bounds]:
        """Return the full range up to the pinned end, by sink with a topic."""
        ranges = self.pinned.ranges
        return {t.node: {p: (at.begin, at.end) for p, at in ranges[t.node].items()} for t in self._subject.topics}

    def expired(self) -> list[str]:
        """Return the output partitions whose first records have expired, as text."""
        return [
            f"{sink.topic}/{p} begins at offset {at.begin}"
            for sink in self._subject.topics
            for p, at in sorted(self.pinned.ranges[sink.node].items())
            if at.begin > 0
        ]

    def _start(self, source: Topic, partition: int, at: Range) -> int:
        """Return where the job began to read a partition."""
        start = self._ledger.start
        if start is None:
            start = None if self.beginning is None else self.beginning.start
        if start is None:
            return 0
        return start.get(source.stream, {}).get(partition, at.begin)

    def _position(self, source: Topic, partition: int, at: Range) -> int:
        return self._ledger.positions.get(source.stream, {}).get(partition, self._start(source, partition, at))

    def reads(self) -> list[dict[str, Any]]:
        """Return one entry per partition that was read, for the report."""
        inputs = [("input", source.stream, source) for source in self._subject.sources]
        outputs = [("output", sink.node, sink) for sink in self._subject.topics]
        read: list[dict[str, Any]] = [
            {
                "role": role,
                "operator": topic.node,
                "topic": topic.topic,
                "partition": partition,
                "begin": at.begin,
                "end": at.end,
                "processed": self._ledger.positions.get(stream, {}).get(partition) if role == "input" else None,
            }
            for role, stream, topic in (*inputs, *outputs)
            for partition, at in sorted(self.pinned.ranges.get(stream, {}).items())
        ]
        files = [(directory, self.pinned.files.get(directory.node, ())) for directory in self._subject.directories]
        return read + [
            {"role": "output", "operator": directory.node, "topic": f"{directory.path} ({len(names)} files)",
             "partition": 0, "begin": 0, "end": len(names), "processed": None}
            for directory, names in files
        ]  # fmt: skip

    def _files(self, directory: Directory) -> Sequence[str]:
        """List the committed files of a sink as they are now: names, including those in partition directories."""
        found: Sequence[str] = self._subject.connector(directory.node).audit_names()
        return sorted(name for name in found if re.fullmatch(directory.names, name.rpartition("/")[2]))
