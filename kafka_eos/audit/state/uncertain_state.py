"""State of a job that a recompute cannot determine, with the reasons.

Pure. Rule: state that was found equal is correct for any operator. A difference is a finding only where nothing else
explains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kafka_eos.abc.state import StateDescriptor, StateHandle
from kafka_eos.audit.facts.code_changes import OtherCode
from kafka_eos.audit.facts.job_ledger import Ledger
from kafka_eos.audit.tables.plan_cut import Cut, expires
from kafka_eos.audit.tables.unanswered_requests import UnansweredNode
from kafka_eos.core.errors import UserError
from kafka_eos.core.json_values import Json
from kafka_eos.plan import (
    BroadcastConnectNode,
    CountWindowNode,
    FoldNode,
    JoinNode,
    PatternNode,
    Plan,
    ProcessNode,
    ReduceNode,
    TableJoinNode,
    WindowNode,
)
from kafka_eos.runtime.operators import join, process, windows
from kafka_eos.runtime.operators.fold import STATE
from kafka_eos.runtime.operators.joins.table_join import TableJoinOperator
from kafka_eos.runtime.operators.patterns.pattern_operator import PatternOperator
from kafka_eos.runtime.operators.process import list_declared_states as declared_by
from kafka_eos.runtime.operators.windows.count_windows import RowCountWindowOperator as CountedOperator
from kafka_eos.runtime.state.local_keys import is_local
from kafka_eos.runtime.state.schema_evolution import describe, redefined, resolve_codec, split_description

Name: TypeAlias = tuple[str, str]
"""An operator and one of its states."""
_FORM = ("key", "kind", "namespace", "entry", "ttl")
_TIME = "no record shows the watermark, or the time of the clock, at which it was stored"
_EXPIRES = "it depends on when state with a time to live expired"


@dataclass(frozen=True)
class Doubts:
    """The limits of a comparison of state.

    ``blind``: states that are not compared at all. ``unsure``: operators for which a difference proves nothing.
    """

    blind: Mapping[Name, str]
    unsure: Mapping[str, str]


def declared(plan: Plan) -> dict[Name, StateDescriptor[Any]]:
    """Return the states that the operators of a plan declare. Process functions are opened, but process nothing."""
    found: dict[Name, StateDescriptor[Any]] = {}
    for node in plan.nodes:
        if isinstance(node, FoldNode | ReduceNode):
            found[node.name, STATE] = StateDescriptor(STATE, node.key_codec, node.entry_codec, ttl=node.ttl)
        elif isinstance(node, ProcessNode):
            found |= {(node.name, each.name): each for each in declared_by(process(node))}
        elif isinstance(node, TableJoinNode):
            found |= {(node.name, each.name): each for each in TableJoinOperator(node).states()}
        elif isinstance(node, CountWindowNode):
            counted = CountedOperator(node)
            found |= {(node.name, each.name): each for each in counted.states()}
        elif isinstance(node, WindowNode | JoinNode):
            operator = windows(node) if isinstance(node, WindowNode) else join(node)
            found |= {(node.name, each.name): each for each in (*operator.states(), *operator.list_timer_states())}
        elif isinstance(node, PatternNode):
            sequences = PatternOperator(node)
            found |= {(node.name, each.name): each for each in (*sequences.states(), *sequences.list_timer_states())}
    return found


def stored(handles: Sequence[StateHandle]) -> dict[Name, Mapping[str, Json]]:
    """Return the description of each stored state."""
    return {(h.operator, str(each["name"])): split_description(each)[0] for h in handles for each in h.states}


def doubts(
    cut: Cut, ledger: Ledger, handles: Sequence[StateHandle], several: bool, other: OtherCode | None = None
) -> Doubts:
    """Return the doubts.

    ``several``: records may have arrived in an unknown order, at a plan that is recomputed in one task.
    ``other``: code that processed a part of the input, if the audit has loaded other code.
    """
    known, local = declared(cut.plan), {handle.operator for handle in handles if is_local(handle)}
    blind = {name: why for name, each in stored(handles).items() if (why := _unreadable(cut.plan, known, name, each))}
    blind |= {name: f"{_EXPIRES}: its own" for name, descriptor in known.items() if descriptor.ttl is not None}
    reason = "key_by(local=True) leaves keys where their partitions are read"
    blind |= {name: reason for name in known if name[0] in local or cut.plan.has_local_state(name[0])}
    operators = {operator for operator, _ in known}
    unsure = {name: why for name in sorted(operators) if (why := _unsure(cut, ledger, name, several, other))}
    return Doubts(dict(sorted(blind.items())), unsure)


def _unreadable(
    plan: Plan, known: Mapping[Name, StateDescriptor[Any]], name: Name, described: Mapping[str, Json]
) -> str | None:
    """Return the reason why stored state cannot be compared with what the code would store; None if it can."""
    if name[0] not in {node.name for node in plan.nodes}:
        return "the plan has no such operator"
    match plan.node(name[0]):
        case BroadcastConnectNode():
            return "broadcast state is not recomputed"
        case UnansweredNode(why=why):
            return why
        case node if not node.keyed:
            return _TIME
    if name not in known:
        return "the operator does not declare it any more"
    today = describe(known[name])
    if any(described.get(part) != today.get(part) for part in _FORM):
        return "it was stored in another form than the code declares: verify with the code that stored it"
    if redefined(described, today):
        return (
            "it was stored for other windows, or another join, than the code declares: verify with the "
            "code that stored it"
        )
    try:
        resolve_codec(known[name].value, described["value"])
    except UserError as error:
        return f"the code cannot read what is stored ({error}): verify with the code that stored it"
    return None


def _unsure(cut: Cut, ledger: Ledger, operator: str, several: bool, other: OtherCode | None) -> str | None:
    if other is not None:
        return str(other)
    if operator in cut.expiring or expires(cut.plan.node(operator)):
        return _EXPIRES
    if operator in cut.asked:
        return cut.why_unknown(operator)
    if operator in cut.timed | cut.forgetting:
        return _TIME
    if operator in cut.summed:
        return "it depends on where epochs of a fold with merge= ended"
    if operator in cut.copied:
        return "it depends on the number of workers"
    if (epoch := _added(ledger, operator)) is not None:
        return f"the operator was added in epoch {epoch}, and did not receive the input that was read before"
    if cut.serial and operator in (cut.below if several else cut.shuffled):
        return "no record shows in which order its input was read"
    return None


def _added(ledger: Ledger, operator: str) -> int | None:
    """Return the epoch in which an operator was added, if it did not exist from the first one on."""
    epochs = [(entry.id.epoch.n, operator in entry.states) for entry in ledger.entries.values() if entry.id.epoch.n]
    if not epochs or epochs[0][1]:
        return None
    return next((epoch for epoch, is_there in epochs if is_there), None)
