"""Windows, and the sinks after them, that can be judged; and the watermarks in the newest checkpoint.

Pure. Rule: a sink after windows that is not judged is named with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from kafka_eos.abc.state import StateHandle
from kafka_eos.audit.facts.audit_subject import Subject
from kafka_eos.audit.facts.epoch_intervals import partition_of
from kafka_eos.audit.facts.job_ledger import Ledger
from kafka_eos.audit.tables.plan_cut import Cut
from kafka_eos.codecs import ElementsCodec
from kafka_eos.plan import (
    ExchangeNode,
    FeedbackNode,
    ForwardNode,
    JoinNode,
    KeyByNode,
    LoopNode,
    MapBatchesNode,
    MapNode,
    Node,
    Partitioning,
    PatternNode,
    Plan,
    SinkNode,
    TimestampsNode,
    WindowJoinNode,
    WindowNode,
)
from kafka_eos.plan.triggers import ClockTrigger, CountTrigger
from kafka_eos.plan.window_assigners import PanedAssigner, SessionWindows
from kafka_eos.runtime.operators.timer_firing import EVENT_STATE
from kafka_eos.runtime.state.schema_evolution import UNFIRED, WATERMARKS
from kafka_eos.runtime.state.timers import GroupWatermark
from kafka_eos.storage.job_records import Manifest

_ONE_TO_ONE = (MapNode, MapBatchesNode, ForwardNode, ExchangeNode, KeyByNode)
"""Nodes behind which each row is still there, once, and no others are; but for those that are refused."""
_MAY_REFUSE = (MapNode, MapBatchesNode, KeyByNode)
"""Nodes whose user function may reject a row."""


@dataclass(frozen=True)
class Clock:
    """The operator that assigns the event times of a source, and its allowed delay within a partition."""

    node: str
    delay: int | None
    """The allowed delay in milliseconds; None if it is unknown which rows may arrive behind a watermark."""
    partitions: frozenset[int]
    """Partitions that were read from the start, so that no watermark has advanced without them."""


@dataclass(frozen=True)
class JudgedOperator:
    """An operator that is judged: windows, a join, or a pattern."""

    name: str
    stage: str
    """The ``key_by`` before it, or where two of them meet."""
    node: WindowNode | JoinNode | PatternNode
    floors: tuple[GroupWatermark, ...]
    """The watermarks at the end, by ranges of key groups."""
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    """Clocks by source."""
    letters: frozenset[str] = frozenset()
    """Sinks with rows that the operator rejected, including late ones."""
    aside: frozenset[str] = frozenset()
    """Sinks that hold every late row as a dead letter."""
    again: frozenset[str] = frozenset()
    """Sinks whose results are all updates by a late row."""
    early: frozenset[str] = frozenset()
    """Sinks in which results before the end of a window can be distinguished from the final ones."""
    unfired: tuple[int, ...] = ()
    """Handles of the newest checkpoint that may hold due timers; see ``unfired``."""
    ordered: bool = False
    """Whether the input determines the results by count of a key whose rows all come from one stream."""

    @property
    def by_count(self) -> CountTrigger | None:
        trigger = self.node.trigger if isinstance(self.node, WindowNode) else None
        return trigger if isinstance(trigger, CountTrigger) else None

    @property
    def by_clock(self) -> ClockTrigger | None:
        trigger = self.node.trigger if isinstance(self.node, WindowNode) else None
        return trigger if isinstance(trigger, ClockTrigger) else None

    @property
    def has_early(self) -> bool:
        """Return whether the operator emits results before the end of its windows."""
        return self.by_count is not None or self.by_clock is not None

    @property
    def assigner(self) -> PanedAssigner | SessionWindows | None:
        """Return the window assigner; None for an operator without windows."""
        return self.node.assigner if isinstance(self.node, WindowNode | WindowJoinNode) else None

    @property
    def is_session(self) -> bool:
        return isinstance(self.assigner, SessionWindows)

    @property
    def may_miss(self) -> bool:
        """Return whether a row that is not late may still miss a closed window, or an earlier form of a session."""
        return self.is_session or (self.assigner is not None and self.assigner.is_shared)  # type: ignore[union-attr]

    @property
    def lateness(self) -> int:
        return self.node.lateness if isinstance(self.node, WindowNode) else 0


@dataclass(frozen=True)
class JudgeableWindows:
    """The operators that can be judged, and the sinks after timers that are compared.

    ``operators``: in the order of the plan. ``why``: the reason for each sink that is not compared.
    ``reached``: the final watermark, by operator with timers and by ranges of its key groups.
    """

    operators: tuple[JudgedOperator, ...] = ()
    sinks: frozenset[str] = frozenset()
    why: Mapping[str, str] = field(default_factory=dict)
    reached: Mapping[str, tuple[GroupWatermark, ...]] = field(default_factory=dict)

    @cached_property
    def stages(self) -> frozenset[str]:
        return frozenset(each.stage for each in self.operators)


def judged(subject: Subject, cut: Cut, ledger: Ledger, manifest: Manifest | None, *, strict: bool) -> JudgeableWindows:
    """Determine what can be judged after windows.

    ``manifest``: that of the newest committed epoch.
    ``strict``: no epoch processed input after its barrier.
    """
    found = _behind_timers(subject, cut, ledger, manifest, strict=strict)
    return replace(found, why={**found.why, **_lacking(subject, cut, ledger)})


def _lacking(subject: Subject, cut: Cut, ledger: Ledger) -> dict[str, str]:
    """Return the sinks after operators with late rows, and the reason why they are not compared."""
    why: dict[str, str] = {}
    for name in cut.forgetful:
        if were_late(ledger, name):
            reason = f"rows were late for {name!r}, and no record shows whether it still remembered earlier rows"
            why |= dict.fromkeys(cut.plan.find_descendants(name), reason)
    return {sink.node: why[sink.node] for sink in subject.sinks if sink.node in why}


def _behind_timers(
    subject: Subject, cut: Cut, ledger: Ledger, manifest: Manifest | None, *, strict: bool
) -> JudgeableWindows:
    behind = [sink.node for sink in subject.sinks if sink.node in cut.timed]
    if not behind:
        return JudgeableWindows()
    if manifest is None:
        return JudgeableWindows(why=dict.fromkeys(behind, "there is no checkpoint"))
    reached = _reached(cut.whole, manifest) if strict else {}
    if why := _unsound(ledger, manifest, strict=strict):
        return JudgeableWindows(why=dict.fromkeys(behind, why), reached=reached)
    return replace(_Look(subject, cut, ledger, manifest).judged(behind), reached=reached)


def _reached(plan: Plan, manifest: Manifest) -> dict[str, tuple[GroupWatermark, ...]]:
    found: dict[str, tuple[GroupWatermark, ...]] = {}
    for node in plan.timer_operators:
        handles = [handle for handle in manifest.states if handle.operator == node.name]
        found[node.name] = tuple(_floors(handles))
    return {name: floors for name, floors in found.items() if floors}


def _unsound(ledger: Ledger, manifest: Manifest, *, strict: bool) -> str:
    """Return the reason why nothing behind windows can be judged; empty if it can."""
    if ledger.origin is not None:
        return "its windows had rows before the savepoint that the job began with"
    if manifest.in_flight:
        return "the last checkpoint contains in-flight rows, so the contents of windows are unknown"
    if not strict:
        return 'with checkpoint_mode="at-least-once" a row may be in a window twice'
    return ""


class _Look:
    """The evaluation of one plan."""

    def __init__(self, subject: Subject, cut: Cut, ledger: Ledger, manifest: Manifest) -> None:
        self._plan = cut.whole
        self._cut = cut
        self._ledger = ledger
        self._manifest = manifest
        self._fingerprint = subject.plan.fingerprint
        self._marked = frozenset(sink.node for sink in subject.sinks if sink.marked)
        self._several = frozenset(source.node for source in subject.sources if source.several)
        self._found: dict[str, JudgedOperator | str] = {}

    def judged(self, behind: Sequence[str]) -> JudgeableWindows:
        for node in self._plan.nodes:
            if node.keyed:
                self._found[node.name] = self._operator(node)
        why = {sink: reason for sink in behind if (reason := self._reason(sink) or self._mixed(sink))}
        sinks = frozenset(behind) - why.keys()
        found = [each for each in self._found.values() if isinstance(each, JudgedOperator)]
        used = [each for each in found if sinks & self._plan.find_descendants(each.name)]
        return JudgeableWindows(tuple(used), sinks, why)

    def _above(self, name: str) -> Iterator[Node]:
        return (node for node in self._plan.nodes if name in self._plan.find_descendants(node.name))

    def _reason(self, name: str) -> str:
        """Return the reason why the input of a node is unknown; empty if it is known."""
        if name in self._cut.asked:
            return self._cut.why_unknown(name)
        for node in self._above(name):
            if node.name in self._several:
                return f"source {node.name!r} reads several topics: give each one a source of its own, and union them"
            if isinstance(found := self._found.get(node.name, ""), str) and found:
                return found
            if isinstance(node, LoopNode | FeedbackNode):
                return "its windows are behind a loop"
            if node.partitioning is Partitioning.BROADCAST and self._cut.parallelism > 1:
                return "the number of copies of a row in its windows depends on the number of workers"
        return ""

    def _operator(self, node: Node) -> JudgedOperator | str:
        """Return the facts about an operator with windows, or the reason why it and its outputs cannot be judged."""
        if not isinstance(node, WindowNode | JoinNode | PatternNode):
            timers = "its outputs come from timers of a process function, or depend on them"
            state = f"it is behind both windows and the state of {node.name!r}"
            return timers if node.name in self._cut.timed else state
        if reason := self._by_chance(node) or self._reason(node.name):
            return reason
        handles = [handle for handle in self._manifest.states if handle.operator == node.name]
        floors = tuple(_floors(handles))
        if not floors:
            return f"the last checkpoint does not show the watermark of {node.name!r}"
        if self._added(node.name):
            return f"{node.name!r} was added to the job later, so its windows lack the input that was read before"
        late = self._late(node)
        if isinstance(late, str):
            return late
        given = (node.name, node.inputs[0], node, floors)
        found = JudgedOperator(*given, self._clocks(node.name), *late)
        unfired = tuple(n for n, handle in enumerate(self._manifest.states) if handle in handles and _is_amid(handle))
        return replace(found, early=self._early(found), ordered=self._is_ordered(found), unfired=unfired)

    # ------------------------------------------------------------ results before the end

    def _by_chance(self, node: Node) -> str:
        """Return the reason why a window's content or an operator's input depends on chance; empty if it does not."""
        for other in self._above(node.name):
            if isinstance(other, WindowNode) and other.trigger is not None:
                return f"{other.name!r} has windows {other.trigger}, and {node.name!r} receives all of their results"
        trigger = node.trigger if isinstance(node, WindowNode) else None
        if trigger is not None and trigger.purges:
            return f"{node.name!r} has windows {trigger}, and no record shows which rows had arrived by then"
        if isinstance(trigger, CountTrigger) and isinstance(node, WindowNode) and node.lateness:
            return f"{node.name!r} has windows {trigger}, whose results cannot be told from those that late rows caused"
        return ""

    def _early(self, operator: JudgedOperator) -> frozenset[str]:
        """Return the sinks with early results. Results by count are named after rows; those by the clock are
        firings.
        """
        if operator.by_clock is not None:
            return self._plan.find_descendants(operator.name) & self._marked
        if operator.by_count is not None:
            return self._told_by(_main(operator.node), _ONE_TO_ONE) - operator.aside
        return frozenset()

    def _mixed(self, sink: str) -> str:
        """Return the reason why early results of windows look like others; empty if they do not."""
        triggered = [each for each in self._found.values() if isinstance(each, JudgedOperator) and each.has_early]
        for each in triggered:
            if sink in self._plan.find_descendants(each.name) - each.early:
                return f"no record shows which of its outputs are early results of {each.name!r}"
        return ""

    def _is_ordered(self, operator: JudgedOperator) -> bool:
        """Return whether the order of rows is known: their windows do not depend on earlier rows, and they come from
        sources directly.
        """
        if operator.by_count is None or operator.is_session or not self._is_steady:
            return False
        moved = self._cut.shuffled | self._cut.parted
        return operator.name not in moved and not any(node.keyed for node in self._above(operator.name))

    @property
    def _is_steady(self) -> bool:
        """Return whether the plan was the same in all epochs."""
        return all(entry.plan == self._fingerprint for entry in self._ledger.entries.values())

    def _added(self, operator: str) -> bool:
        entries = [entry for entry in self._ledger.entries.values() if entry.id.epoch.n]
        return bool(entries) and operator not in entries[0].states

    def _clocks(self, operator: str) -> dict[str, Clock]:
        """Return the clocks by source, without a delay if a source has several, or may have had another one before."""
        same = self._is_steady
        first = next((entry for entry in self._ledger.entries.values() if not entry.id.epoch.n), None)
        found: dict[str, Clock] = {}
        for node in self._above(operator):
            if isinstance(node, TimestampsNode):
                known = {} if first is None else first.sources.get(node.source, {})
                is_known = same and node.strategy.generator is None and not node.strategy.detects_idleness
                delay = node.strategy.delay if is_known and node.source not in found else None
                splits = frozenset(map(partition_of, known))
                found[node.source] = Clock(node.name, delay, splits)
        return found

    # ------------------------------------------------------------ late rows

    def _late(
        self, node: WindowNode | JoinNode | PatternNode
    ) -> tuple[frozenset[str], frozenset[str], frozenset[str]] | str:
        """Return the sinks that receive late rows, or the reason why it is unknown which rows were late."""
        tags = node.late if isinstance(node, JoinNode) else (node.late,)
        letters = {
            sink for each in self._above(node.name) if (sink := self._plan.find_dead_letter_sink(each.name)) is not None
        }
        refused = frozenset(sink.name for sink in letters) & self._marked
        through = tuple(kind for kind in _ONE_TO_ONE if not letters or kind not in _MAY_REFUSE)
        asides = [self._told_by(f"{node.name}-{tag}", through) for tag in tags if tag is not None]
        aside = frozenset[str]().union(*asides)
        if (len(refused) < len(letters) or not all(asides)) and were_late(self._ledger, node.name):
            return f"rows were late for {node.name!r}, and no audited output shows which"
        again = frozenset[str]()
        if isinstance(node, WindowNode) and node.lateness:
            again = self._told_by(_main(node), through)
            if not again or isinstance(node.contents.codec, ElementsCodec):
                return f"no output shows which rows arrived after windows of {node.name!r} had closed"
        return refused, aside, again

    def _told_by(self, name: str, through: tuple[type[Node], ...]) -> frozenset[str]:
        """Return the sinks that have a record of each row that leaves a node. ``through``: node types allowed in
        between.
        """
        found: set[str] = set()
        todo = [name]
        while todo:
            for node, _ in self._plan.downstream(todo.pop()):
                if isinstance(node, SinkNode) and node.name in self._marked:
                    found.add(node.name)
                elif isinstance(node, through) and node.name not in self._cut.copied:
                    todo.append(node.name)
        return frozenset(found)


def were_late(ledger: Ledger, operator: str) -> bool:
    """Return whether rows may have been late for the operator: False only if the history excludes it for each epoch.

    A supervisor that dies after it has decided an epoch has not recorded its late rows, and the next start commits it.
    """
    late = [event for event in ledger.events if event.get("event") == "late-rows"]
    decided_epochs = {event.get("epoch") for event in ledger.events if event.get("event") == "decided"}
    # The epoch that a job begins with has no rows.
    decided_epochs |= {
        event.get("epoch") for before, event in pairwise(ledger.events) if before.get("event") == "began"
    }
    untold = any(epoch.epoch.n not in decided_epochs for epoch in ledger.committed if epoch.epoch.n > 0)
    return not ledger.has_history or untold or any(_counted(event).get(operator) for event in late)


def _main(node: Node) -> str:
    """Return the stream of results of windows, without late rows."""
    return node.name if isinstance(node, WindowNode) and node.late is None else f"{node.name}-main"


def _counted(event: Mapping[str, Any]) -> Mapping[str, Any]:
    counts = event.get("counts")
    return counts if isinstance(counts, dict) else {}


def _is_amid(handle: StateHandle) -> bool:
    """Return whether the snapshot was taken while timers fired."""
    return any(state.get("name") == EVENT_STATE and UNFIRED in state for state in handle.states)


def _floors(handles: Collection[StateHandle]) -> Iterator[GroupWatermark]:
    for state in (state for handle in handles for state in handle.states):
        if state.get("name") == EVENT_STATE:
            watermarks: Any = state.get(WATERMARKS, ())
            yield from ((first, last, time) for first, last, time in watermarks)
