"""The plan cut where rows change subtasks: what one subtask does with a row in one go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from kafka_eos.plan.graph import Graph
from kafka_eos.plan.nodes import Feedback, Node, for_dead_letters


@dataclass(frozen=True, slots=True)
class Segment:
    """Operators that work on a row in one go, in one subtask: what lies between two exchanges.

    ``heads`` are where rows come in: sources, and exchanges whose output is read here. ``tails`` are the exchanges
    that rows leave through; an exchange node itself works in the segment before it. ``nodes`` are all nodes that
    work here, in plan order; sinks for dead letters are in every segment that can refuse a record for them.
    """

    index: int
    heads: tuple[str, ...]
    tails: tuple[str, ...]
    nodes: tuple[str, ...]


def segments(plan: Graph, cuts: Collection[Node]) -> Iterator[Segment]:
    """Unions of nodes that pass rows to each other directly; ``group`` leads to a set's first member."""
    group: dict[str, str] = {}

    def find(member: str) -> str:
        while group.setdefault(member, member) != member:
            member = group[member]
        return member

    def join(one: str, other: str) -> None:
        group[find(other)] = find(one)

    def out(name: str) -> str:
        return f"{name} " if plan.node(name) in cuts else name

    for node in plan.nodes:
        find(node.name)
        if not for_dead_letters(node):
            for name in node.inputs:
                join(out(name), node.name)
            if isinstance(node, Feedback):
                join(out(node.name), node.to)
    heads = [*plan.sources, *cuts]
    for index, first in enumerate(dict.fromkeys(find(out(head.name)) for head in heads)):
        sources = {s for s in plan.sources if _reaches(plan, s.name, first, find, out)}
        letters = {sink.name for s in sources if (sink := plan.dead_letters(s.name)) is not None}
        yield Segment(
            index,
            tuple(head.name for head in heads if find(out(head.name)) == first),
            tuple(node.name for node in cuts if find(node.name) == first),
            tuple(
                node.name
                for node in plan.nodes
                if (node.name in letters if for_dead_letters(node) else find(node.name) == first)
            ),
        )


def _reaches(plan: Graph, source: str, first: str, find: Callable[[str], str], out: Callable[[str], str]) -> bool:
    """Do rows of ``source`` come into the segment of ``first``?"""
    todo, seen = [source], set[str]()
    while todo:
        name = todo.pop()
        if find(out(name)) == first:
            return True
        if name not in seen:
            seen.add(name)
            todo += [reader.name for reader, _ in plan.downstream(name)]
    return False
