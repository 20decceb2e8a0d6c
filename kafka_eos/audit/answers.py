"""Answers of services, which nobody can be asked for again: a recompute goes as far as the rows that wait for them.

Rule: a function of ``async_map`` is never called by the audit. What is behind it is named as not recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kafka_eos.plan import AsyncMap, FlatMap, Node, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered(FlatMap):
    """In the place of an ``AsyncMap``: no row comes out."""

    kind: ClassVar[str] = AsyncMap.kind


def unanswered(plan: Plan) -> Plan:
    """The plan as it can be computed again."""
    return replace(plan, nodes=tuple(map(_unanswered, plan.nodes)))


def why(plan: Plan, below: str) -> str:
    """Why what comes to the node ``below`` is not known."""
    names = [n.name for n in plan.nodes if isinstance(n, Unanswered) and below in {n.name, *plan.below(n.name)}]
    return f"a service has answered, and cannot be asked for the same again: async_map {', '.join(names)}"


def _unanswered(node: Node) -> Node:
    if not isinstance(node, AsyncMap):
        return node
    return Unanswered(name=node.name, where=node.where, inputs=node.inputs, derived=node.derived, fn=_nothing)


def _nothing(value: Any) -> Iterable[Any]:
    return ()
