"""Facts that no record contains: responses of services, which cannot be requested again, and the rules a row has met.

Rule: a function of ``async_map`` is never called by the audit. The recompute covers the rows before such a node;
outputs behind it are named as not recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from kafka_eos.plan import AsyncMapNode, BroadcastProcessNode, FlatMapNode, KeyedBroadcastNode, Node, Plan


class UnansweredNode(FlatMapNode, frozen=True, kw_only=True):
    """A node that replaces one whose outputs cannot be computed, and emits nothing. ``why``: the unknown fact."""

    kind: ClassVar[str] = "unanswered"

    why: str


def unanswered(plan: Plan) -> Plan:
    """Return the part of a plan that can be recomputed."""
    return replace(plan, nodes=tuple(map(_unanswered, plan.nodes)))


def why(plan: Plan, below: str) -> str:
    """Return the reasons why the input of the node ``below`` is unknown."""
    found = [
        n for n in plan.nodes if isinstance(n, UnansweredNode) and below in {n.name, *plan.find_descendants(n.name)}
    ]
    reasons = {reason: [n.name for n in found if n.why == reason] for reason in dict.fromkeys(n.why for n in found)}
    return "; ".join(f"{reason}: {', '.join(names)}" for reason, names in reasons.items())


def _unanswered(node: Node) -> Node:
    match node:
        case AsyncMapNode():
            return _instead(node, "the requests to a service cannot be repeated: async_map")
        case BroadcastProcessNode() | KeyedBroadcastNode():
            return _instead(node, "no record shows which rules a row met: broadcast state of")
    return node


def _instead(node: Node, reason: str) -> Node:
    place: dict[str, Any] = {
        "name": node.name,
        "code_line": node.code_line,
        "inputs": node.inputs,
        "has_generated_name": node.has_generated_name,
    }
    return UnansweredNode(fn=_nothing, why=reason, **place)


def _nothing(value: Any) -> Iterable[Any]:
    return ()
