"""Operator chains: the plan, cut at its exchanges, where rows move between subtasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from kafka_eos.plan.graph import Graph
from kafka_eos.plan.nodes import FeedbackNode, Node, is_dead_letter_sink


class ChainSpec(Struct, frozen=True):
    """The operators of a plan between two exchanges: they run in one thread and pass rows by calls.

    ``heads`` are where rows enter: sources, and exchanges whose output is read here. ``tails`` are the exchanges
    through which rows leave; an exchange node itself works in the chain before it. ``nodes`` are all nodes that work
    here, in plan order; sinks for dead letters are in every chain that can reject a record for them.
    """

    index: int
    heads: tuple[str, ...]
    tails: tuple[str, ...]
    nodes: tuple[str, ...]


def cut_plan(plan: Graph, cuts: Collection[Node]) -> Iterator[ChainSpec]:
    """Cut a plan at exchanges into operator chains."""
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
        if not is_dead_letter_sink(node):
            for name in node.inputs:
                join(out(name), node.name)
            if isinstance(node, FeedbackNode):
                join(out(node.name), node.to)
    heads = [*plan.sources, *cuts]
    for index, first in enumerate(dict.fromkeys(find(out(head.name)) for head in heads)):
        sources = {s for s in plan.sources if _reaches(plan, s.name, first, find, out)}
        letters = {sink.name for s in sources if (sink := plan.find_dead_letter_sink(s.name)) is not None}
        yield ChainSpec(
            index,
            tuple(head.name for head in heads if find(out(head.name)) == first),
            tuple(node.name for node in cuts if find(node.name) == first),
            tuple(
                node.name
                for node in plan.nodes
                if (node.name in letters if is_dead_letter_sink(node) else find(node.name) == first)
            ),
        )


def _reaches(plan: Graph, source: str, first: str, find: Callable[[str], str], out: Callable[[str], str]) -> bool:
    """Return whether rows of ``source`` reach the chain of ``first``."""
    todo, seen = [source], set[str]()
    while todo:
        name = todo.pop()
        if find(out(name)) == first:
            return True
        if name not in seen:
            seen.add(name)
            todo += [reader.name for reader, _ in plan.downstream(name)]
    return False
