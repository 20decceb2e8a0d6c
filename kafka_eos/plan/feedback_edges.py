"""The feedback edges of a plan (Algorithm 2 of the ABS paper), found before anything runs.

Pure. Rule: without its back-edges the graph has no cycle, so barriers that wait for all other inputs always arrive. The
same plan has the same back-edges in every process and every session.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from kafka_eos.core.errors import Bug

N = TypeVar("N", bound=Hashable)


def back_edges(nodes: Iterable[N], edges: Iterable[tuple[N, N]]) -> frozenset[tuple[N, N]]:
    """Return the edges (from, to) that close a cycle in a depth-first search over ``nodes`` and ``edges`` in their
    order.

    Every cycle contains at least one of them. Put sources first: then the edge found is the one that returns to the
    entry of a loop. Raises Bug for an edge from or to a node that is not in ``nodes``.
    """
    below: dict[N, list[N]] = {node: [] for node in nodes}
    for start, end in edges:
        if start not in below or end not in below:
            raise Bug(f"the edge {start!r} -> {end!r} leads out of the graph")
        below[start].append(end)
    found: set[tuple[N, N]] = set()
    done: set[N] = set()
    for root in below:
        if root not in done:
            found.update(_search(root, below, done))
    return frozenset(found)


def _search(root: N, below: dict[N, list[N]], done: set[N]) -> Iterator[tuple[N, N]]:
    """Yield back-edges of nodes that ``root`` reaches and no earlier search has reached.

    Not recursive: a plan may be long.
    """
    path = {root: iter(below[root])}
    while path:
        node, left = next(reversed(path.items()))
        following = next((n for n in left if n not in done), None)
        if following is None:
            done.add(node)
            del path[node]
        elif following in path:
            yield node, following
        else:
            path[following] = iter(below[following])
