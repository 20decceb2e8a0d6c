"""What no record tells: answers of services, which nobody can be asked for again, and which rules a row has met. A
recompute goes as far as the rows that come to it.

Rule: a function of ``async_map`` is never called by the audit. What is behind such a node is named as not recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kafka_eos.plan import AsyncMap, BroadcastProcess, FlatMap, KeyedBroadcastProcess, Node, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered(FlatMap):
    """In the place of a node whose outputs nobody can compute: no row comes out. ``why``: what is not known."""

    kind: ClassVar[str] = "unanswered"

    why: str


def unanswered(plan: Plan) -> Plan:
    """The plan as it can be computed again."""
    return replace(plan, nodes=tuple(map(_unanswered, plan.nodes)))


def why(plan: Plan, below: str) -> str:
    """Why what comes to the node ``below`` is not known."""
    found = [n for n in plan.nodes if isinstance(n, Unanswered) and below in {n.name, *plan.below(n.name)}]
    reasons = {reason: [n.name for n in found if n.why == reason] for reason in dict.fromkeys(n.why for n in found)}
    return "; ".join(f"{reason}: {', '.join(names)}" for reason, names in reasons.items())


def _unanswered(node: Node) -> Node:
    match node:
        case AsyncMap():
            return _instead(node, "a service has answered, and cannot be asked for the same again: async_map")
        case BroadcastProcess() | KeyedBroadcastProcess():
            return _instead(node, "which of the rules a row met, nothing tells: broadcast state of")
    return node


def _instead(node: Node, reason: str) -> Node:
    place: dict[str, Any] = {"name": node.name, "where": node.where, "inputs": node.inputs, "derived": node.derived}
    return Unanswered(fn=_nothing, why=reason, **place)


def _nothing(value: Any) -> Iterable[Any]:
    return ()
