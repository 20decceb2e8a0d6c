"""What there is to audit in a plan: the topics it reads, the topics, files and tables it writes, and how its outputs
can be recomputed.

Pure. Rule: whatever cannot be audited is named with the reason; nothing is left out silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

from kafka_eos.audit.answers import Unanswered, unanswered, why
from kafka_eos.audit.intervals import stream
from kafka_eos.audit.regimes import Regime
from kafka_eos.ids import SplitId
from kafka_eos.interfaces import Guarantee, JobContext
from kafka_eos.interfaces import Sink as SinkConnector
from kafka_eos.operators import process
from kafka_eos.operators.chain import refuser
from kafka_eos.operators.process import declared
from kafka_eos.plan import (
    AsOfJoin,
    BroadcastConnect,
    CountedWindows,
    Exchange,
    Filter,
    FlatMap,
    Fold,
    Forward,
    KeyBy,
    Lookup,
    Map,
    Node,
    Partitioning,
    Patterns,
    Plan,
    Process,
    Reduce,
    Sink,
    Source,
    Table,
    TableJoin,
    Union,
    Windows,
)
from kafka_eos.records import Batch, RawRecord

Log = tuple[str, str, Mapping[str, Any]]
"""Topic, bootstrap servers, and the librdkafka configuration as the user gave it."""


class AuditableSource(Protocol):
    """What the audit needs of a source beyond reading."""

    def audit_logs(self, ctx: JobContext, read: Collection[SplitId]) -> Sequence[Log]:
        """Of each topic; ``read``: the splits that the job has read."""

    @property
    def several(self) -> bool:
        """May it read several topics? Then its positions say which."""

    def decode(
        self, source_name: str, raws: Sequence[RawRecord], reject: Callable[[RawRecord, Exception], None]
    ) -> Batch[Any]:
        """The same decoding as the reader's, of records of one topic; rows that ``reject`` took are left out."""


_NOT_ONE_EACH = FlatMap | Patterns | Process | TableJoin | Windows | CountedWindows
"""Nodes that may make none of a row, or several."""


@dataclass(frozen=True)
class Topic:
    """A topic that one source reads or one sink writes. ``node`` is the plan's name of it."""

    node: str
    topic: str
    bootstrap: str
    config: Mapping[str, Any]
    marked: bool = True
    """Its records carry their provenance."""
    letters: bool = False
    """Its records are dead letters."""
    partitioner: str | None = None
    """How its sink's client chooses partitions, as librdkafka names it; None if nobody knows."""
    several: bool = False
    """Its source reads others, too."""
    earlier: tuple[tuple[int, str | None], ...] = ()
    """How it chose them before, where that was another way: up to which epoch, in their order."""

    @property
    def stream(self) -> str:
        """What it is to its source; see ``intervals.Offsets``."""
        return stream(self.node, self.topic)

    def dated(self, regimes: Sequence[Regime]) -> Topic:
        """With the partitioners of before, as the ledger tells them."""
        told = tuple((regime.until, regime.spread.partitioner) for regime in regimes if regime.spread is not None)
        changed = any(partitioner != self.partitioner for _, partitioner in told)
        return replace(self, earlier=told) if changed else self


@dataclass(frozen=True)
class Directory:
    """Files that one sink writes. ``names`` is what theirs match; its groups are the epoch and the subtask."""

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
"""Where a sink's outputs are."""


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

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Sinks that are topics."""
        return tuple(sink for sink in self.sinks if isinstance(sink, Topic))

    @property
    def directories(self) -> tuple[Directory, ...]:
        """Sinks that are files."""
        return tuple(sink for sink in self.sinks if isinstance(sink, Directory))

    @property
    def tables(self) -> tuple[DatabaseTable, ...]:
        """Sinks that are tables."""
        return tuple(sink for sink in self.sinks if isinstance(sink, DatabaseTable))

    def connector(self, node: str) -> Any:
        """The sink itself."""
        found = self.plan.node(node)
        assert isinstance(found, Sink)
        return found.sink

    def fit(self) -> Subject:
        """Without tables that say of themselves that they cannot be compared. Asks their servers."""
        asked = {table.node: self.connector(table.node).audit_unfit() for table in self.tables}
        unfit = {node: reason for node, reason in asked.items() if reason is not None}
        kept = tuple(sink for sink in self.sinks if sink.node not in unfit)
        return replace(self, sinks=kept, not_audited={**self.not_audited, **unfit})

    def needed_whole(self, topics: Sequence[str], ahead: Mapping[str, Mapping[int, tuple[int, int]]]) -> list[str]:
        """Those of ``topics`` of which each record counts: of a table that the job has read to its end the newest one
        of a key does. One that it has not read yet may have removed the one that it met; and as of some time, each one
        counts.

        ``ahead``: by source, what the job has not read.
        """
        tables = {node.name for node in self.plan.sources if isinstance(node, Table)}
        tables -= {node.table for node in self.plan.nodes if isinstance(node, AsOfJoin)}
        read = {name for name in tables if all(end <= at for at, end in ahead.get(name, {}).values())}
        needed = (*(source for source in self.sources if source.node not in read), *self.topics)
        return [topic for topic in topics if topic in {each.topic for each in needed}]

    @property
    def at_least_once(self) -> tuple[str, ...]:
        """Sinks whose outputs are visible before they are committed."""
        return tuple(s.name for s in self.plan.sinks if s.sink.guarantee is Guarantee.AT_LEAST_ONCE)

    @property
    def unmarked(self) -> tuple[str, ...]:
        """Sinks whose outputs do not say where they come from."""
        return tuple(sink.node for sink in self.sinks if not sink.marked)


def subject(plan: Plan, ctx: JobContext, read: Mapping[str, Collection[SplitId]]) -> Subject:
    """Collect what can be audited. Raises what connectors raise for settings that are missing.

    ``read``: the splits of each source that the job has read.
    """
    sources = [
        Topic(node.name, *log, several=node.source.several)
        for node in plan.sources
        if _source(node.source)
        for log in node.source.audit_logs(ctx, read.get(node.name, ()))
    ]
    blind = tuple(node.name for node in plan.sources if not _source(node.source))
    sinks = {node.name: _sink(node, ctx) for node in plan.sinks}
    not_audited = {
        node.name: getattr(node.sink, "not_audited", f"{type(node.sink).__name__} offers no audit")
        for node in plan.sinks
        if sinks[node.name] is None
    }
    found = [sink for sink in sinks.values() if sink is not None]
    not_audited |= _shared(found)
    return Subject(plan, tuple(sources), tuple(s for s in found if s.node not in not_audited), not_audited, blind)


def _shared(sinks: Sequence[Place]) -> dict[str, str]:
    """Sinks whose outputs cannot be told from those of another one."""
    places = {
        sink.node: ((sink.bootstrap, sink.topic), f"topic {sink.topic}")
        if isinstance(sink, Topic)
        else ((DatabaseTable, sink.name), f"table {sink.name}")
        for sink in sinks
        if not isinstance(sink, Directory)
    }
    uses = Counter(where for where, _ in places.values())
    return {node: f"another sink writes to its {what} too" for node, (where, what) in places.items() if uses[where] > 1}


def _source(connector: object) -> TypeGuard[AuditableSource]:
    return hasattr(connector, "audit_logs") and hasattr(connector, "decode")


def _sink(node: Sink, ctx: JobContext) -> Place | None:
    connector: Any = node.sink
    if not hasattr(connector, "audit_rows"):
        return None
    if hasattr(connector, "audit_files"):
        path, names = connector.audit_files(ctx, node.name)
        return Directory(node.name, path, names, connector.audit_marked, connector.audit_lines)
    if hasattr(connector, "audit_table"):
        name, keyed = connector.audit_table(ctx)
        return DatabaseTable(node.name, name, keyed)
    topic, bootstrap, config = connector.audit_log(ctx)
    partitioner = connector.audit_partitioner(ctx) if hasattr(connector, "audit_partitioner") else None
    return Topic(node.name, topic, bootstrap, config, connector.audit_marked, node.dead_letters, partitioner)


# ---------------------------------------------------------------- cutting the plan


@dataclass(frozen=True)
class Cut:
    """A plan cut at the ``key_by`` nodes in front of its stateful operators (the *stages*).

    ``head`` runs on records in any grouping; what reaches a stage leaves it through a sink named by
    ``captured``. ``tail`` runs on all rows of a key together: push a batch into it under the stage's name.
    With ``serial`` there is nothing to cut: the whole plan must run in one place.
    """

    plan: Plan
    """With every fold in one phase."""
    whole: Plan
    """As the job runs it: what outputs call themselves comes from there."""
    stages: tuple[str, ...]
    serial: bool
    parallelism: int = 1
    """How many workers the job had; several, if not always as many."""

    @cached_property
    def below(self) -> frozenset[str]:
        """Nodes that depend on the order of records of a key."""
        return descendants(self.plan, self.stages)

    @cached_property
    def head(self) -> Plan:
        nodes = [node for node in self.plan.nodes if node.name not in self.below]
        captures = [capture(self.plan.node(stage)) for stage in self.stages]
        return Plan(self.plan.name, (*nodes, *captures), self.plan.where)

    @cached_property
    def tail(self) -> Plan:
        letters = {sink.name for sink in self.plan.sinks if sink.dead_letters}
        kept: list[Node] = []
        for node in self.plan.nodes:
            if node.name in self.stages:
                kept.append(replace(node, inputs=()))
            elif node.name in self.below or node.name in letters or isinstance(node, Source):
                kept.append(node)
        return Plan(self.plan.name, tuple(kept), self.plan.where)

    @property
    def head_sinks(self) -> frozenset[str]:
        """Sinks whose outputs do not depend on state. Dead letters come from both halves."""
        return frozenset(sink.name for sink in self.plan.sinks if sink.name not in self.below)

    @property
    def one_an_update(self) -> bool:
        """Every row that reaches a stage makes one output at most, so no two of a key have the same update number."""
        stateful = [node for node in self.plan.nodes if node.keyed]
        below = [self.plan.node(name) for name in self.below]
        manifold = self.copied or any(isinstance(node, _NOT_ONE_EACH | Union) for node in below)
        return not self.serial and len(self.stages) == 1 and len(stateful) == 1 and not manifold

    @property
    def one_to_one(self) -> bool:
        """Every row that reaches a stage makes exactly one output, and the update number tells the order."""
        return self.one_an_update and not any(isinstance(self.plan.node(name), Filter) for name in self.below)

    @property
    def steady(self) -> bool:
        """Which outputs exist does not depend on the order of records, only what they say."""
        return not any(isinstance(self.plan.node(name), _NOT_ONE_EACH | Filter) for name in self.below)

    @cached_property
    def lookups(self) -> tuple[str, ...]:
        """Stages where rows of a stream look into a table: they are in no order among themselves."""
        return tuple(stage for stage in self.stages if isinstance(self.plan.node(stage), Lookup))

    @cached_property
    def looking(self) -> frozenset[str]:
        """Nodes behind a join with a table, dead letters included."""
        names = [node.name for node in self.plan.nodes if isinstance(node, TableJoin)]
        return frozenset({*descendants(self.plan, names), *(self.letters if names else ())})

    @cached_property
    def tables(self) -> frozenset[str]:
        """Sources that are looked up as they are now."""
        return frozenset(node.table for node in self.plan.nodes if isinstance(node, TableJoin))

    @property
    def fans_out(self) -> bool:
        """One record may reach a stage as several rows."""
        return any(isinstance(node, FlatMap) for node in self.head.nodes)

    @cached_property
    def shuffled(self) -> frozenset[str]:
        """Nodes that rows reach in no order: an exchange other than by key, or a loop, lies before them."""
        return descendants(self.plan, [node.name for node in self.plan.nodes if isinstance(node, Exchange)])

    @cached_property
    def parted(self) -> frozenset[str]:
        """Nodes that rows of one input partition may reach through several workers: two exchanges lie before them."""
        names = [node.name for node in self.plan.exchanges if not isinstance(node, Forward)]
        return descendants(self.plan, [*descendants(self.plan, names).intersection(names)])

    @cached_property
    def astray(self) -> frozenset[str]:
        """Nodes that updates of a key reach in no order: such an exchange lies between them and the state."""
        stateful = {node.name for node in self.plan.nodes if node.keyed}
        found: set[str] = set()
        todo = [(name, False) for name in stateful]
        seen = set(todo)
        while todo:
            name, moved = todo.pop()
            moved = moved or isinstance(self.plan.node(name), Exchange)
            near = {(reader.name, moved) for reader, _ in self.plan.downstream(name) if reader.name not in stateful}
            found |= {reader for reader, far in near if far}
            todo += near - seen
            seen |= near
        return frozenset(found)

    @property
    def letters(self) -> tuple[str, ...]:
        """Sinks of dead letters."""
        return tuple(sink.name for sink in self.plan.sinks if sink.dead_letters)

    @property
    def unsteady(self) -> frozenset[str]:
        """Sinks whose outputs may come to be or not with another order of records.

        Where records may be refused, each of them may be: a step, or a codec, that gets a state may refuse it.
        """
        if self.steady and not self.letters:
            return frozenset()
        return frozenset({*self.below, *self.letters} - {*self.summed})

    @cached_property
    def nested(self) -> bool:
        """A key may depend on state, so that its rows cannot be told where the order of that state's input is not."""
        return bool(self.below.intersection(self.stages))

    # ------------------------------------------------------------ state that expires

    @cached_property
    def expiring(self) -> frozenset[str]:
        """Nodes whose rows depend on what had expired when a record came: on when, and beside what, it was read."""
        return descendants(self.plan, self._expire)

    @cached_property
    def unlasting(self) -> frozenset[str]:
        """Those of ``unsteady`` that are so because of it, whatever the order of records."""
        letters = self.letters if self._expire else ()
        return self.unsteady.intersection({*self.expiring, *letters})

    @cached_property
    def _expire(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.plan.nodes if expires(node))

    # ------------------------------------------------------------ folds in two phases

    @cached_property
    def merging(self) -> tuple[Fold, ...]:
        """Folds with one output a key and epoch."""
        return tuple(node for node in self.whole.nodes if isinstance(node, Fold) and node.merge is not None)

    @cached_property
    def summed(self) -> frozenset[str]:
        """Nodes whose rows depend on where epochs ended."""
        return descendants(self.plan, [fold.name for fold in self.merging])

    @cached_property
    def totals(self) -> frozenset[str]:
        """Sinks among them where the last value of each key is the same wherever epochs ended."""
        return frozenset(sink.name for sink in self.plan.sinks if not sink.dead_letters and self._tells_totals(sink))

    @cached_property
    def summing(self) -> frozenset[str]:
        """Stages of which every row goes into a fold that fills one of ``totals``."""
        folds = {fold.name: fold.inputs[0] for fold in self.merging if self.totals & self.plan.below(fold.name)}
        return frozenset(
            stage for stage in folds.values()
            if all(reader.name in folds for reader, _ in self.plan.downstream(stage))
        )  # fmt: skip

    def _tells_totals(self, sink: Sink) -> bool:
        node = self.whole.node(sink.inputs[0])
        while isinstance(node, Map | Forward):
            node = self.whole.node(node.inputs[0])
        if node not in self.merging:
            return False
        if node.ttl is not None:
            return False
        key_by = self.whole.node(node.inputs[0])
        assert isinstance(key_by, KeyBy)  # the first phase
        above = [other.name for other in self.plan.nodes if other.keyed and other.name != node.name]
        return not (key_by.local or node.name in self.copied or node.name in descendants(self.plan, above))

    # ------------------------------------------------------------ answers of services

    @cached_property
    def asked(self) -> frozenset[str]:
        """Nodes that ask a service, and all behind them."""
        names = [node.name for node in self.plan.nodes if isinstance(node, Unanswered)]
        return frozenset({*names, *descendants(self.plan, names)})

    def why_unknown(self, name: str) -> str:
        """Why nobody knows what comes to one of ``asked``."""
        return why(self.plan, name)

    # ------------------------------------------------------------ timers

    @cached_property
    def timed(self) -> frozenset[str]:
        """Operators with timers, and nodes behind them: how far event time had come no record tells."""
        names = [node.name for node in self.plan.timed_operators]
        return frozenset({*names, *descendants(self.plan, names)})

    @cached_property
    def lasting(self) -> frozenset[str]:
        """Nodes that depend on the order of records of a key, and wait for no time."""
        return self.below - self.timed

    @property
    def moody(self) -> tuple[str, ...]:
        """Operators that may refuse another record with another order of records, as branches name them."""
        return tuple(str(refuser(name)) for name in sorted(self.below))

    def refusers(self) -> tuple[str, ...]:
        """Operators whose dead letters nobody can foretell, as branches name them."""
        return tuple(str(refuser(name)) for name in sorted(self.summed | self.timed | self.asked))

    # ------------------------------------------------------------ what the number of workers decides

    @cached_property
    def copied(self) -> frozenset[str]:
        """Nodes that a row reaches once in each worker, dead letters included."""
        return frozenset({*descendants(self.plan, self.broadcasts), *self.letters} if self.broadcasts else ())

    @cached_property
    def broadcasts(self) -> tuple[str, ...]:
        """Exchanges that make copies; one worker makes none. Broadcast state is no row."""
        nodes = [node.name for node in self.plan.exchanges if node.partitioning is Partitioning.BROADCAST]
        nodes = [name for name in nodes if any(not _is_told(node) for node, _ in self.plan.downstream(name))]
        return tuple(nodes) if self.parallelism > 1 else ()


def _is_told(node: Node) -> bool:
    return isinstance(node, BroadcastConnect)


def expires(node: Node) -> bool:
    """Does the node have state with a time to live? Asks a process function, by opening one."""
    if isinstance(node, Fold | Reduce):
        return node.ttl is not None
    if not isinstance(node, Process):
        return False
    return any(state.ttl is not None for state in declared(process(node)))


def captured(stage: str) -> str:
    """The sink of ``Cut.head`` that gets what reaches ``stage``."""
    return f"{stage}-captured"


def cut(plan: Plan, parallelism: int = 1) -> Cut:
    """Cut a plan in front of its stateful operators, if they can be separated by key."""
    whole = unanswered(plan)
    plan = whole.one_by_one
    stages = tuple(dict.fromkeys(node.inputs[0] for node in plan.nodes if node.keyed))
    below = descendants(plan, stages)
    nested = any(stage in below for stage in stages)
    mixed = any(
        name not in below and name not in stages for node in plan.nodes if node.name in below for name in node.inputs
    )
    return Cut(plan, whole, stages, nested or mixed, parallelism)


def descendants(plan: Plan, names: Sequence[str]) -> frozenset[str]:
    """Every node that a record may reach after one of ``names``; in a loop that is the node itself, too."""
    return frozenset[str]().union(*map(plan.below, names))


def capture(stage: Node) -> Sink:
    nothing = cast("SinkConnector[Any]", None)  # a chain hands batches to outputs by name; it never asks the sink
    return Sink(name=captured(stage.name), where=stage.where, inputs=(stage.name,), sink=nothing)
