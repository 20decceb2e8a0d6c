"""Insertion of forward exchanges where rows meet rows of the same operator chain that have passed an exchange.

Without a forward exchange, the chain would be both before and behind that exchange, and wait for its own barriers.

Rule: a plan that can be cut without forwards stays unchanged. An inserted exchange is named after the union behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from kafka_eos.abc.codec import ListCodec
from kafka_eos.plan.nodes import ForwardNode, Node
from kafka_eos.plan.plan import Plan


def insert_forwards(plan: Plan, codec_of: Callable[[str], ListCodec[Any]]) -> Plan:
    """Insert a forward exchange wherever an operator chain would wait for its own barriers."""
    needed = dict(_needed(plan))
    nodes: list[Node] = []
    for node in plan.nodes:
        early = needed.get(node.name, ())
        names = {index: f"{node.name}-forward-{index}" for index in early}
        for index, name in names.items():
            above = node.inputs[index]
            nodes.append(
                ForwardNode(
                    name=name,
                    code_line=node.code_line,
                    inputs=(above,),
                    has_generated_name=True,
                    value_codec=codec_of(above),
                )
            )
        inputs = tuple(names.get(index, above) for index, above in enumerate(node.inputs))
        nodes.append(structs.replace(node, inputs=inputs) if early else node)
    return replace(plan, nodes=tuple(nodes))


def _needed(plan: Plan) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield nodes, and those of their inputs whose chain lies before the chain of another input."""
    cuts = _ChainOrder()
    for node in plan.nodes:
        early = cuts.add(node)
        if early:
            yield node.name, early


class _ChainOrder:
    """The operator chains of a growing plan and their order.

    Feedback edges are omitted: barriers do not wait for them.
    """

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        """The segment where a node's output is read."""
        self._before: dict[int, frozenset[int]] = {}
        """All segments from which a segment's rows come."""

    def add(self, node: Node) -> Sequence[int]:
        """Add a node whose inputs are known. Return those inputs that cannot be read in one chain with the others."""
        met = [self._of[name] for name in node.inputs]
        early = [index for index, segment in enumerate(met) if any(segment in self._before[other] for other in met)]
        here = self._joined({segment for index, segment in enumerate(met) if index not in early})
        self._of[node.name] = here if node.partitioning is None else self._new(self._before[here] | {here})
        return early

    def _new(self, before: frozenset[int]) -> int:
        segment = len(self._before)
        self._before[segment] = before
        return segment

    def _joined(self, segments: set[int]) -> int:
        """Merge chains, none of which lies before another, into one; without any, start a chain at a source."""
        if len(segments) < 2:
            return segments.pop() if segments else self._new(frozenset())
        one = self._new(frozenset().union(*(self._before[segment] for segment in segments)))
        self._of = {name: one if segment in segments else segment for name, segment in self._of.items()}
        for segment, before in self._before.items():
            if before & segments:
                self._before[segment] = (before - segments) | self._before[one] | {one}
        return one
