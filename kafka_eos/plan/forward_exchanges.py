"""Where a plan needs a forward exchange: where rows of one segment meet rows that have passed an exchange behind it.

Without one the segment would wait for its own barriers: it would lie both before the exchange and behind it.

Rule: a plan that can be cut as it is stays as it is. What is put in is named after the union that it stands before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from kafka_eos.abc.codec import ListCodec
from kafka_eos.plan.nodes import Forward, Node
from kafka_eos.plan.plan import Plan


def with_forwards(plan: Plan, codec_of: Callable[[str], ListCodec[Any]]) -> Plan:
    """The plan with a forward exchange wherever it needs one; ``codec_of``: of the values that a node makes."""
    needed = dict(_needed(plan))
    nodes: list[Node] = []
    for node in plan.nodes:
        early = needed.get(node.name, ())
        names = {index: f"{node.name}-forward-{index}" for index in early}
        for index, name in names.items():
            above = node.inputs[index]
            nodes.append(Forward(name=name, where=node.where, inputs=(above,), derived=True, values=codec_of(above)))
        inputs = tuple(names.get(index, above) for index, above in enumerate(node.inputs))
        nodes.append(replace(node, inputs=inputs) if early else node)
    return replace(plan, nodes=tuple(nodes))


def _needed(plan: Plan) -> Iterator[tuple[str, Sequence[int]]]:
    """Nodes, and at which of their inputs rows come from a segment that lies before that of another input."""
    cuts = _Cuts()
    for node in plan.nodes:
        early = cuts.add(node)
        if early:
            yield node.name, early


class _Cuts:
    """The segments of a plan that grows from its sources on. Ways back are left out: they wait for nothing."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        """The segment where a node's output is read."""
        self._before: dict[int, frozenset[int]] = {}
        """All segments from which a segment's rows come."""

    def add(self, node: Node) -> Sequence[int]:
        """Take in a node whose inputs are known; returns those that cannot be read in one segment with the others."""
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
        """One segment of several, none of which lies before another; a source begins one."""
        if len(segments) < 2:
            return segments.pop() if segments else self._new(frozenset())
        one = self._new(frozenset().union(*(self._before[segment] for segment in segments)))
        self._of = {name: one if segment in segments else segment for name, segment in self._of.items()}
        for segment, before in self._before.items():
            if before & segments:
                self._before[segment] = (before - segments) | self._before[one] | {one}
        return one
