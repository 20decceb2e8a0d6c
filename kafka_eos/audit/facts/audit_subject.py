"""The auditable parts of a plan: the topics it reads, and the topics, files and tables it writes.

Pure. Rule: whatever cannot be audited is named with the reason; nothing is left out silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kafka_eos.abc.auditable import AuditableFiles, AuditableSource, AuditableTable, AuditableTopic
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.audit.facts.epoch_intervals import stream
from kafka_eos.audit.facts.partitioning_history import Regime
from kafka_eos.core.ids import SplitId
from kafka_eos.plan import AsOfJoinNode, Plan, SinkNode, TableNode


@dataclass(frozen=True)
class Topic:
    """A topic that one source reads or one sink writes. ``node`` is the plan's name of it."""

    node: str
    topic: str
    bootstrap: str
    config: Mapping[str, Any]
    marked: bool = True
    """Whether its records carry their provenance."""
    letters: bool = False
    """Whether its records are dead letters."""
    partitioner: str | None = None
    """The partitioner of the sink's client, by librdkafka's name; None if unknown."""
    several: bool = False
    """Whether its source reads other topics, too."""
    earlier: tuple[tuple[int, str | None], ...] = ()
    """Earlier partitioners, each with the last epoch that used it, in order."""

    @property
    def stream(self) -> str:
        """Return the name of the topic in its source; see ``intervals.Offsets``."""
        return stream(self.node, self.topic)

    def dated(self, regimes: Sequence[Regime]) -> Topic:
        """Return it with the earlier partitioners that the ledger records."""
        partitioners = tuple(
            (regime.until, regime.spread.partitioner) for regime in regimes if regime.spread is not None
        )
        changed = any(partitioner != self.partitioner for _, partitioner in partitioners)
        return replace(self, earlier=partitioners) if changed else self


@dataclass(frozen=True)
class Directory:
    """The files that one sink writes. ``names``: a pattern of their names; its groups are the epoch and the subtask."""

    node: str
    path: str
    names: str
    marked: bool = True
    lines: bool = True
    """They are lines as Spark reads them; the sink itself reads all others (``audit_read``)."""


@dataclass(frozen=True)
class DatabaseTable:
    """A table that one sink writes. With ``keyed`` it holds the newest value of each key."""

    node: str
    name: str
    keyed: bool
    marked: bool = False


Place: TypeAlias = Topic | Directory | DatabaseTable
"""The target that holds a sink's outputs."""


@dataclass(frozen=True)
class Subject:
    """The audited part of a plan."""

    plan: Plan
    sources: tuple[Topic, ...]
    sinks: tuple[Place, ...]
    not_audited: Mapping[str, str]
    """Sinks that are not, and why."""
    blind_sources: tuple[str, ...]
    """Sources that cannot be read again by the audit: nothing can be recomputed then."""
    jobs: frozenset[str]
    """The names under which the job wrote its outputs."""

    @property
    def why_blind(self) -> str | None:
        """Return the reason why nothing can be recomputed; None if everything can."""
        if not self.blind_sources:
            return None
        names = ", ".join(self.blind_sources)
        return f"source {names} cannot be read again by the audit, which reads inputs only from Kafka"

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Return the sinks with topics."""
        return tuple(sink for sink in self.sinks if isinstance(sink, Topic))

    @property
    def directories(self) -> tuple[Directory, ...]:
        """Return the sinks with files."""
        return tuple(sink for sink in self.sinks if isinstance(sink, Directory))

    @property
    def tables(self) -> tuple[DatabaseTable, ...]:
        """Return the sinks with tables."""
        return tuple(sink for sink in self.sinks if isinstance(sink, DatabaseTable))

    def connector(self, node: str) -> Any:
        """Return the sink of a node of the plan."""
        found = self.plan.node(node)
        assert isinstance(found, SinkNode)
        return found.sink

    def fit(self) -> Subject:
        """Return the subject without tables that report that they cannot be compared. Queries their servers."""
        asked = {table.node: self.connector(table.node).audit_obstacle() for table in self.tables}
        unfit = {node: reason for node, reason in asked.items() if reason is not None}
        kept = tuple(sink for sink in self.sinks if sink.node not in unfit)
        return replace(self, sinks=kept, not_audited={**self.not_audited, **unfit})

    def needed_whole(self, topics: Sequence[str], ahead: Mapping[str, Mapping[int, tuple[int, int]]]) -> list[str]:
        """Return those of ``topics`` from which every record is needed.

        From a table that the job has read to its end, only the newest record of each key is needed. If the table is not
        read to its end, compaction may have removed a record that rows were joined with. An as-of join needs all.

        ``ahead``: by source, the records that the job has not read.
        """
        tables = {node.name for node in self.plan.sources if isinstance(node, TableNode)}
        tables -= {node.table for node in self.plan.nodes if isinstance(node, AsOfJoinNode)}
        read = {name for name in tables if all(end <= at for at, end in ahead.get(name, {}).values())}
        needed = (*(source for source in self.sources if source.node not in read), *self.topics)
        return [topic for topic in topics if topic in {each.topic for each in needed}]

    @property
    def at_least_once(self) -> tuple[str, ...]:
        """Return the sinks whose outputs are visible before they are committed."""
        return tuple(s.name for s in self.plan.sinks if s.sink.guarantee is Guarantee.AT_LEAST_ONCE)

    @property
    def unmarked(self) -> tuple[str, ...]:
        """Return the sinks whose outputs have no provenance."""
        return tuple(sink.node for sink in self.sinks if not sink.marked)


def subject(
    plan: Plan, ctx: JobContext, read: Mapping[str, Collection[SplitId]], earlier: Collection[str] = ()
) -> Subject:
    """Collect what can be audited. Raises what connectors raise for settings that are missing.

    ``read``: the splits of each source that the job has read. ``earlier``: names that the job had before.
    """
    jobs = frozenset({ctx.job, *earlier})
    sources = [
        Topic(node.name, *log, several=node.source.several)
        for node in plan.sources
        if isinstance(node.source, AuditableSource)
        for log in node.source.audit_logs(ctx, read.get(node.name, ()))
    ]
    blind = tuple(node.name for node in plan.sources if not isinstance(node.source, AuditableSource))
    places = {node.name: _sink(node, ctx, jobs) for node in plan.sinks}
    not_audited = {node.name: node.sink.not_audited for node in plan.sinks if places[node.name] is None}
    found = [sink for sink in places.values() if sink is not None]
    not_audited |= _shared(found)
    sinks = tuple(sink for sink in found if sink.node not in not_audited)
    return Subject(plan, tuple(sources), sinks, not_audited, blind, jobs)


def _shared(sinks: Sequence[Place]) -> dict[str, str]:
    """Return the sinks whose outputs cannot be distinguished from those of another sink."""
    places = {
        sink.node: ((sink.bootstrap, sink.topic), f"topic {sink.topic}")
        if isinstance(sink, Topic)
        else ((DatabaseTable, sink.name), f"table {sink.name}")
        for sink in sinks
        if not isinstance(sink, Directory)
    }
    uses = Counter(where for where, _ in places.values())
    return {node: f"another sink writes to its {what} too" for node, (where, what) in places.items() if uses[where] > 1}


def _sink(node: SinkNode, ctx: JobContext, jobs: Collection[str]) -> Place | None:
    match node.sink:
        case AuditableFiles() as sink:
            path, names = sink.audit_files(jobs, node.name)
            return Directory(node.name, path, names, sink.audit_has_provenance, sink.audit_lines)
        case AuditableTable() as sink:
            name, keyed = sink.audit_table(ctx)
            return DatabaseTable(node.name, name, keyed)
        case AuditableTopic() as sink:
            is_for_letters, partitioner = node.is_dead_letter_sink, sink.audit_partitioner(ctx)
            return Topic(node.name, *sink.audit_log(ctx), sink.audit_has_provenance, is_for_letters, partitioner)
    return None
