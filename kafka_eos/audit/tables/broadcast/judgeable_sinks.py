"""Sinks after broadcast state that are compared with a recompute, and the cuts of the input for it.

At a barrier, every worker has processed the same rules: those that were read up to there. So a row of an epoch in which
no rule was read was processed with exactly these rules, in any worker. For any other row it is unknown which of the new
rules had been applied. The ledger's epochs are therefore grouped into *turns*: no rule was read in an even turn, and
some were in an odd one.

Pure. Rule: a sink that is not judged is named with the reason. A row that may have been processed with other rules is
not compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_eos.audit.facts.audit_subject import Subject
from kafka_eos.audit.facts.epoch_intervals import Offsets, Spans, spans
from kafka_eos.audit.facts.job_ledger import Ledger
from kafka_eos.audit.tables.plan_cut import Cut
from kafka_eos.plan import (
    BroadcastConnectNode,
    BroadcastProcessNode,
    ExchangeNode,
    FilterNode,
    FlatMapNode,
    ForwardNode,
    KeyByNode,
    KeyedBroadcastNode,
    MapBatchesNode,
    MapNode,
    Node,
    Partitioning,
    Plan,
    SideOutputNode,
    SinkNode,
    SourceNode,
    TableNode,
    TimestampsNode,
    UnionNode,
)
from kafka_eos.runtime.operators import process
from kafka_eos.runtime.operators.process import list_declared_states

_STATELESS = (
    FilterNode,
    FlatMapNode,
    MapNode,
    MapBatchesNode,
    SideOutputNode,
    SourceNode,
    TableNode,
    TimestampsNode,
    UnionNode,
)
"""Nodes that keep nothing of the rows before."""
_ROUND = (
    *_STATELESS,
    BroadcastConnectNode,
    BroadcastProcessNode,
    ExchangeNode,
    ForwardNode,
    KeyByNode,
    KeyedBroadcastNode,
    SinkNode,
)
"""Nodes that may be above a sink that is judged."""


@dataclass(frozen=True)
class SharedRules:
    """A group of compared ``sinks`` whose rows use the same rules.

    ``rules``: the sources of the rules; ``sources``: the sources of rules and rows.
    ``turns``: the end (exclusive) of each turn in each input partition. The last turn has no end, and is odd: the
    ledger does not cover it.
    """

    sinks: frozenset[str]
    rules: frozenset[str]
    sources: frozenset[str]
    turns: Spans
    last_change: int
    """The newest turn in which rules were read; -1 for none."""


@dataclass(frozen=True)
class BroadcastSinks:
    """The compared sinks, grouped by the rules that their rows use: a change of other rules begins no turn for them.

    ``why``: the reason for each sink after broadcast state that is not compared.
    """

    met: tuple[SharedRules, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def sinks(self) -> frozenset[str]:
        return frozenset(sink for met in self.met for sink in met.sinks)


def ruled(subject: Subject, cut: Cut, ledger: Ledger, starts: Offsets, *, strict: bool) -> BroadcastSinks:
    """Determine the sinks. ``starts``: the job's start positions. ``strict``: no epoch processed input after its
    barrier.
    """
    plan, marked = subject.plan, {sink.node for sink in subject.sinks if sink.marked}
    behind = [
        sink.node for sink in subject.sinks if any(isinstance(n, BroadcastConnectNode) for n in above(plan, sink.node))
    ]
    if not behind:
        return BroadcastSinks()
    reason = _unsound(ledger, strict=strict)
    several = {source.node for source in subject.sources if source.several}
    why = {name: found for name in behind if (found := reason or _reason(plan, cut, name, marked, several))}
    alike: dict[frozenset[str], list[str]] = {}
    for name in behind:
        if name not in why:
            alike.setdefault(frozenset(source.name for source in _broadcast_sources(plan, name)), []).append(name)
    cuts = spans(ledger.entries.values())
    return BroadcastSinks(tuple(_met(subject, rules, sinks, cuts, starts) for rules, sinks in alike.items()), why)


def _met(subject: Subject, rules: frozenset[str], sinks: Sequence[str], cuts: Spans, starts: Offsets) -> SharedRules:
    streams = {source.stream for source in subject.sources if source.node in rules}
    sources = frozenset(source.name for sink in sinks for source in _sources(subject.plan, sink))
    return SharedRules(frozenset(sinks), rules, sources, *turns(cuts, streams, starts))


def turns(cuts: Spans, rules: Collection[str], starts: Offsets) -> tuple[Spans, int]:
    """Return ``turns`` and ``last_change`` of ``SharedRules``; ``rules`` are streams.

    ``cuts``: those of ``intervals.spans``, the same number for each partition.
    """
    count = max((len(ends) for parts in cuts.values() for ends in parts.values()), default=0)
    changed = [any(_read(cuts, starts, source, number) for source in rules) for number in range(count)]
    # Behind the last cut nothing is told. Turn 0 is even, so it may be empty.
    lasts = [number for number in range(count) if changed[number] != [*changed, True][number + 1]]
    empty = bool(changed) and changed[0]
    found: Spans = {}
    for source, parts in cuts.items():
        for partition, ends in parts.items():
            first = [starts.get(source, {}).get(partition, 0)] if empty else []
            found.setdefault(source, {})[partition] = [*first, *(ends[last] for last in lasts)]
    newest = max((number for number in range(count) if changed[number]), default=-1)
    return found, -1 if newest < 0 else bisect_left(lasts, newest) + empty


def _read(cuts: Spans, starts: Offsets, source: str, number: int) -> bool:
    """Return whether any record of a source was read in span ``number``."""
    for partition, ends in cuts.get(source, {}).items():
        begin = starts.get(source, {}).get(partition, 0)
        if ends[number] > max(begin, ends[number - 1] if number else begin):
            return True
    return False


def above(plan: Plan, name: str) -> list[Node]:
    """Return the nodes that a row may have passed before it reaches a node, in plan order."""
    return [node for node in plan.nodes if name in plan.find_descendants(node.name)]


def _unsound(ledger: Ledger, *, strict: bool) -> str:
    """Return the reason why no broadcast state is known; empty if it is."""
    if ledger.origin is not None:
        return "the job began with the broadcast state of a savepoint"
    if ledger.start is None:
        return "no record shows which rules each epoch had read"
    return "" if strict else 'with checkpoint_mode="at-least-once" workers may have met different rules'


def _reason(plan: Plan, cut: Cut, name: str, marked: Collection[str], several: Collection[str]) -> str:
    if name not in marked:
        return "its outputs do not show in which epoch their rows met the rules"
    if odd := [node for node in above(plan, name) if type(node) not in _ROUND]:
        return f"besides broadcast state, it is behind {', '.join(f'{node.kind} {node.name}' for node in odd)}"
    for node in above(plan, name):
        if node.name in several:
            return f"source {node.name!r} reads several topics: give each one a source of its own, and union them"
        if isinstance(node, BroadcastConnectNode) and (found := _unclear(plan, node)):
            return found
        if isinstance(node, KeyedBroadcastNode) and (
            node.timers or node.processing_timers or list_declared_states(process(node))
        ):
            return f"{node.kind} {node.name} also has keyed state, which depends on the rules that earlier rows met"
        if node.partitioning is Partitioning.BROADCAST and node.name in cut.broadcasts:
            return "the number of copies of an output depends on the number of workers"
    return ""


def _unclear(plan: Plan, met: BroadcastConnectNode) -> str:
    """Return the reason why it is unknown when which values are broadcast to a node; empty if it is known."""
    stream, copied = met.inputs
    stateful = [node for node in above(plan, copied) if type(node) not in _STATELESS]
    if stateful:
        return f"the rows that are broadcast to {met.name} come through {stateful[0].kind} {stateful[0].name}"
    if shared := {node.name for node in _sources(plan, stream)} & {node.name for node in _sources(plan, copied)}:
        return f"{', '.join(sorted(shared))} is both the stream and the broadcast input of {met.name}"
    return ""


def _broadcast_sources(plan: Plan, sink: str) -> Iterator[Node]:
    """Yield the sources of broadcast values above a sink."""
    for node in above(plan, sink):
        if isinstance(node, BroadcastConnectNode):
            yield from _sources(plan, node.inputs[1])


def _sources(plan: Plan, name: str) -> Sequence[Node]:
    return [node for node in above(plan, name) if isinstance(node, SourceNode)]
